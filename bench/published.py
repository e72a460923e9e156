"""What published sizes come to in the simulation: rates that others have written down are input, the rest is computed.

    python -m bench.published

Bytes are those of 84 x 84 grey frames, stored once; a call of the replay takes what it took in `bench.planning`
(0.32 ms of a core) and half a nanosecond a byte. Actors have a core each, machines 32 cores and 10 Gbit/s. Learners
compute on a device for as long as the published rate says. Four frames are a step.
"""

from __future__ import annotations

from typing import Any

from shoal.planning.costs import Costs, Layout
from shoal.planning.program import simulate

FRAME = 84 * 84  # bytes
CALL, BYTE = 3.2e-4, 0.5e-9  # seconds of a core
CORES, NETWORK = 32, 1.25e9


def costs(
    steps: float, rows: int, items: float, batch: float, batch_bytes: float, updates: float, **more: Any
) -> Costs:
    """Of actors of one environment that make so many steps per second on a core of their own."""
    block = rows * FRAME
    options = {"family": "queue", "ratio": 1.0, "room": 4 * batch, "weights_bytes": 6.8e6, "publish_every": 1, **more}
    return Costs(
        envs=1,
        rows=rows,
        row_cpu=1.0 / steps,
        row_wait=0.0,
        block_bytes=block,
        block_items=items,
        insert_cpu=CALL + BYTE * block,
        sample_cpu=CALL + BYTE * batch_bytes,
        batch_items=batch,
        batch_bytes=batch_bytes,
        stored_bytes=0.0,
        update_cpu=0.0,
        update_fixed=0.0,
        update_beside=1.0 / updates,
        together=1.0,  # the published rate is that of a machine whose cores are all busy
        **options,
    )


def main() -> None:
    unroll = 32 * 21 * FRAME
    programs = {
        "IMPALA, 500 actors": (500, costs(62_500 / 500, 20, 1, 32, unroll, 62_500 / (32 * 20))),
        "IMPALA, 150 actors": (150, costs(20_000 / 150, 20, 1, 32, unroll, 20_000 / (32 * 20))),
        "Ape-X, 360 actors": (
            360,
            costs(12_500 / 360, 50, 50, 512, 512 * 8 * FRAME, 19, family="replay", ratio=0.0, publish_every=20),
        ),
    }
    print("| | steps/s | machines | replay or queue busy | learner busy | into the learner's machine | out of it |")
    print("|---|---|---|---|---|---|---|")
    for name, (actors, of) in programs.items():
        others = -(-actors // CORES)
        spread = tuple(actors // others + (place < actors % others) for place in range(others))
        found = simulate(of, Layout(cores=CORES, network=NETWORK, actors=(0, *spread)))
        into, out = (8e-9 * rates[0] for rates in (found.received, found.sent))
        busy = f"{max(found.services):.0%} | {found.learner:.0%}"
        print(f"| {name} | {found.rate:,.0f} | {others + 1} | {busy} | {into:.2f} Gbit/s | {out:.2f} Gbit/s |")


if __name__ == "__main__":
    main()
