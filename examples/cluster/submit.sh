#!/usr/bin/env bash
# A training as a job of a Ray cluster that runs: the folder that you are in goes along, with your own modules.
#
#   RAY_ADDRESS=http://HEAD_IP:8265 RUN=/shared/runs/mine ./submit.sh impala --env my_module:make_env --actors 64
#
# The command comes back at once with the job's name: ray job logs NAME --follow, ray job stop NAME (which saves a
# checkpoint). RUN is a folder on the cluster's machines; the same command again goes on with it.
set -euo pipefail

: "${RAY_ADDRESS:?say where the cluster is: RAY_ADDRESS=http://HEAD_IP:8265}"
: "${RUN:?say where the run is kept on the cluster: RUN=/shared/runs/mine}"
: "${1:?say what is trained: ./submit.sh impala --env my_module:make_env}"
exec ray job submit --no-wait --working-dir "${WORKING_DIR:-.}" -- \
    shoal train "$@" --runtime ray --ray-address auto --run-dir "$RUN" --resume auto
