"""Tell stories at random for as long as asked.

    python -m tests.model.explore --steps 100000          stories 0, 1, 2 ... until it is enough
    python -m tests.model.explore --seed 17               story 17 alone, as a test would tell it

A step is one operation on one store whose answer was compared with the model's.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack

from tests.model.machine import STORY_LENGTH, Differs, run
from tests.model.sides import open_sides
from tests.support.postgres import Server

STYLES = {
    "sqlite": ("sqlite-apsw",),
    "postgres": ("postgres-sync",),
    "both": ("sqlite-apsw", "postgres-sync"),
    "others": ("sqlite-sqlite3", "postgres-async"),
}
REPORT_SECONDS = 5.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model.explore", description=__doc__)
    parser.add_argument("--steps", type=int, help="how many steps to run; 2000 unless told")
    parser.add_argument("--seed", type=int, help="the story to begin with, or the only one")
    parser.add_argument("--store", choices=list(STYLES), default="both")
    parser.add_argument("--length", type=int, default=STORY_LENGTH, help="of one story")
    options = parser.parse_args(arguments)
    single = options.seed is not None and options.steps is None
    wanted = 1 if single else options.steps or 2000
    styles = STYLES[options.store]
    with ExitStack() as stack:
        needs_server = any(style.startswith("postgres") for style in styles)
        server = stack.enter_context(Server()) if needs_server else None
        sides = stack.enter_context(open_sides(styles, server))
        steps, seed = 0, options.seed or 0
        started = shown = time.monotonic()
        while steps < wanted:
            try:
                steps += run(seed, sides, options.length)
            except Differs as error:
                print(f"\n{error}\n\nagain: python -m tests.model.explore --seed {seed}"
                      f" --store {options.store} --length {options.length}")  # fmt: skip
                return 1
            seed += 1
            if time.monotonic() - shown > REPORT_SECONDS:
                shown = time.monotonic()
                print(f"{steps:,} steps, {steps / (shown - started):,.0f} a second", flush=True)
        seconds = time.monotonic() - started
        stories = seed - (options.seed or 0)
        print(f"{steps:,} steps in {stories} stories on {', '.join(styles)}: no difference "
              f"({seconds:.1f} s, {steps / seconds:,.0f} steps a second)")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
