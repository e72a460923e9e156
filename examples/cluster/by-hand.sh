#!/usr/bin/env bash
# A Ray cluster by hand, and a training on it:
#
#   ./by-hand.sh head                  on the first machine; prints what the others have to run
#   ./by-hand.sh join HEAD_IP          on every other machine
#   ./by-hand.sh train impala --env CartPole-v1 --actors 64       on any of them
#   ./by-hand.sh stop                  on every machine
#
# All machines have the same Python, Shoal (with the extra ray) and token. RAY_PORT changes the port.
set -euo pipefail

port=${RAY_PORT:-6379}
temp=${RAY_TEMP:-/tmp/ray-$(id -un)} # not Ray's own /tmp/ray, which all users of a machine can read
export RAY_AUTH_MODE=token # who has no token is not let in
export RAY_USAGE_STATS_ENABLED=0

case ${1:-} in
head)
    mkdir -p -m 700 "$temp"
    ray get-auth-token --generate >/dev/null
    ip=${HEAD_IP:-$(hostname -I | awk '{print $1}')}
    ray start --head --node-ip-address="$ip" --port="$port" --temp-dir="$temp" --disable-usage-stats
    echo
    echo "On every other machine, with ~/.ray/auth_token copied from here (mode 600):"
    echo "  ./by-hand.sh join $ip"
    ;;
join)
    mkdir -p -m 700 "$temp"
    [ -s ~/.ray/auth_token ] || { echo "Copy ~/.ray/auth_token from the head's machine first." >&2; exit 2; }
    ray start --address="${2:?give the IP address of the head}:$port" --temp-dir="$temp" --disable-usage-stats
    ;;
train)
    shift
    exec shoal train "$@" --runtime ray --ray-address "${RAY_ADDRESS:-auto}"
    ;;
stop)
    ray stop
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
