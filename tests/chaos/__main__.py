"""python -m tests.chaos [--store sqlite|shared|postgres] [--kills N] [--seed N]

Thousands of kills, in plays of 100 with a seed each, until one breaks an invariant: then its seed,
its records and its database stay where the last line says.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from itertools import count
from pathlib import Path

from tests.chaos.play import Plan, Play, Seen
from tests.chaos.stages import STORES, staged

KILLS_PER_PLAY = 100


def main() -> None:
    """Play until there were enough kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="default: all of them")
    parser.add_argument("--kills", type=int, default=1000, help="on each store (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first play (default 1)")
    chosen = parser.parse_args()
    for store in chosen.store or STORES:
        recoveries: list[float] = []
        done = 0
        for seed in count(chosen.seed):
            if done >= chosen.kills:
                break
            plan = _plan(store, seed, min(KILLS_PER_PLAY, chosen.kills - done))
            seen = _play(store, plan)
            done += plan.kills
            recoveries += seen.recoveries
            print(f"{store}, seed {seed}: {seen}", flush=True)
        print(f"{store}: {done} kills, 0 violations; {_spread(recoveries)}", flush=True)


def _plan(store: str, seed: int, kills: int) -> Plan:
    wires = {"cuts": kills // 5, "restarts": 4} if store == "postgres" else {}
    return Plan(seed, kills, pauses=kills // 5, ends=kills // 10, **wires)


def _play(store: str, plan: Plan) -> Seen:
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{store}-{plan.seed}-"))
    try:
        with staged(store, folder) as (stage, server):
            seen = Play(stage, plan, server, books=store != "sqlite", tell=_tell).run()
    except BaseException:
        print(f"\n{store}, seed {plan.seed}: see {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)
    return seen


def _tell(line: str) -> None:
    print(f"\r  {line:60}", end="\r", file=sys.stderr, flush=True)


def _spread(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return "nothing was lost"
    cuts = statistics.quantiles(seconds, n=100)
    return (
        f"{len(seconds)} lost attempts claimed again {cuts[49]:.2f} s (median), {cuts[98]:.2f} s"
        f" (99 %), {max(seconds):.2f} s (most) after the end of their lease"
    )


if __name__ == "__main__":
    main()
