"""Put known bugs into a copy of the code, one at a time, and see what finds each.

    python -m scripts.bugs                        all of them
    python -m scripts.bugs read-back sweep-by-id  some of them
    python -m scripts.bugs --write                write what was found into the documentation
    python -m scripts.bugs --list                 what there is

Nothing here changes a file of the project, but for the table. It ends with status 1 when a patch no
longer applies, when a test fails without any patch, or when a bug was not found by who must find
it. `make trust ARGS=bugs` runs it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from scripts.bugs import BUGS, table
from scripts.bugs.finding import Finding, find, passes

STEPS = 16_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts.bugs", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("names", nargs="*", help="names of bugs; all if none is given")
    parser.add_argument("--steps", type=int, default=STEPS, help="for the simulation of each bug")
    parser.add_argument("--jobs", type=int, default=2, help="how many copies at a time")
    parser.add_argument("--ask-all", action="store_true", help="ask every layer about every bug")
    parser.add_argument(
        "--write", action="store_true", help="write what was found into the documentation"
    )
    parser.add_argument("--list", action="store_true", help="show the bugs and end")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {bug.name for bug in BUGS}
    if unknown:
        parser.error(f"there is no bug {', '.join(sorted(unknown))}")
    chosen = [bug for bug in BUGS if not options.names or bug.name in options.names]
    if options.list:
        for bug in chosen:
            print(f"{bug.name:<34} {bug.how}")
        return 0
    started = time.monotonic()
    if not passes(sorted({bug.test for bug in chosen})):
        return 1
    findings: list[Finding] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        asked = [pool.submit(find, bug, options.steps, ask_all=options.ask_all) for bug in chosen]
        for done in as_completed(asked):
            finding = done.result()
            findings.append(finding)
            tell(finding)
            if options.write and finding.is_good:
                table.write([finding])
    missed = [finding for finding in findings if not finding.is_good]
    seconds = time.monotonic() - started
    print(f"{len(chosen) - len(missed)} of {len(chosen)} bugs found, {seconds:.0f} s")
    for finding in missed:
        print(f"  missed: {finding.bug.title}")
    return 1 if missed else 0


def tell(finding: Finding) -> None:
    """Say what came of a bug."""
    print(f"{'ok  ' if finding.is_good else 'FAIL'} {finding.bug.title}")
    for layer in finding.layers:
        said = layer.said if layer.found or layer.name != "simulation" else layer.said[:2000]
        print(f"      {layer.name}: {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
