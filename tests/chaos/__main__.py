"""python -m tests.chaos [--store sqlite|shared|postgres] [--kills N] [--seed N] [--rest SECONDS]

Thousands of kills, in plays of 100 with a seed each, until one breaks an invariant: then its seed,
its records and its database stay where the last line says.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from math import inf
from pathlib import Path

from tests.chaos.figures import table
from tests.chaos.play import Plan, Play, Seen
from tests.chaos.stages import STORES, staged

KILLS_PER_PLAY = 100


def main() -> None:
    """Play until there were enough kills, and say how long lost jobs waited."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="default: all of them")
    parser.add_argument("--kills", type=int, default=1000, help="on each store (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first play (default 1)")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no play after so long")
    parser.add_argument(
        "--rest", type=float, default=0.5, metavar="SECONDS",
        help="at most so long between two disturbances (default 0.5); those who are replaced need "
        "all of two CPUs, so take 10 to see how long recovery takes on a machine that is not busy",
    )  # fmt: skip
    chosen = parser.parse_args()
    began = time.monotonic()
    stores = chosen.store or STORES
    seen: dict[str, list[Seen]] = {store: [] for store in stores}
    done: Counter[str] = Counter()
    for seed in count(chosen.seed):
        left = [store for store in stores if done[store] < chosen.kills]
        if not left or time.monotonic() - began > 60 * chosen.minutes:
            break
        for store in left:
            kills = min(KILLS_PER_PLAY, chosen.kills - done[store])
            plan = _plan(store, seed, kills, chosen.rest)
            play = _play(store, plan)
            seen[store].append(play)
            done[store] += plan.kills
            print(f"{store}, seed {seed}: {play}", flush=True)
    print("\n".join(table(seen)), flush=True)


def _plan(store: str, seed: int, kills: int, rest_seconds: float) -> Plan:
    cuts, restarts = (kills // 5, 4) if store == "postgres" else (0, 0)
    return Plan(
        seed, kills, kills // 5, kills // 10, cuts=cuts, restarts=restarts,
        rest_seconds=rest_seconds,
    )  # fmt: skip


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


if __name__ == "__main__":
    main()
