"""python -m tests.power [--images N] [--seed N]

Power cuts at every sync of one play after the other, until there were so many images. The record
of a play differs from run to run, as threads do; an image that is wrong stays where the last line
says.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from itertools import count
from pathlib import Path

from tests.power.cuts import Seen, cut, many
from tests.power.play import Plan, play

DRAWN = 3
"""So many images of each kind that is drawn by lot, at each sync."""


def plan_of(seed: int) -> Plan:
    """Every fifth with the store's own distance between checkpoints, and large jobs."""
    if seed % 5 == 0:
        return Plan(seed, operations=25, checkpoint_pages=4000, payload_bytes=400_000)
    return Plan(seed, threads=1 + seed % 4, checkpoint_pages=(20, 60, 200)[seed % 3])


def main() -> None:
    """Cut the power until there were enough images."""
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--images", type=int, default=10_000, help="at least (default 10,000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first play (default 1)")
    chosen = parser.parse_args()
    total = Seen()
    for seed in count(chosen.seed):
        if total.images.total() >= chosen.images:
            break
        folder = Path(tempfile.mkdtemp(prefix=f"power-{seed}-"))
        (folder / "play").mkdir()
        seen = cut(play(plan_of(seed), folder / "play"), folder, seed, many(DRAWN))
        print(f"seed {seed}: {seen}", flush=True)
        if seen.violations:
            sys.exit("\n".join([*seen.violations[:20], f"see {folder}"]))
        shutil.rmtree(folder)
        total.syncs += seen.syncs
        total.jobs += seen.jobs
        total.images += seen.images
    print(f"power loss: {total}")


if __name__ == "__main__":
    main()
