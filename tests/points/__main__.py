"""python -m tests.points [--store sqlite|postgres] [OPERATION ...]

SIGKILL at every point of every operation, and a table of what came of it. Ends with 1 if an
invariant was broken, and says which, where.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tenure.store import open_store
from tests.points.play import DEEDS, Report
from tests.points.warm import Warm, Wish, quick_folder
from tests.support.postgres import Server

STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
PROCESSES = 2


def main() -> None:
    """Play all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.points", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="default: all of them")
    parser.add_argument("operation", nargs="*", help="default: all of them")
    chosen = parser.parse_args()
    operations = chosen.operation or list(DEEDS)
    if unknown := set(operations) - DEEDS.keys():
        parser.error(f"no such operation: {', '.join(sorted(unknown))}; there are: {list(DEEDS)}")
    began = time.monotonic()
    reports = [_play(store, operations) for store in chosen.store or STORES]
    broken = _show([STORES[store] for store in chosen.store or STORES], reports)
    print(f"\n{time.monotonic() - began:.0f} s")
    sys.exit(1 if broken else 0)


def _play(store: str, operations: list[str]) -> list[Report]:
    """Two at a time, each with a database of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="points-")))
        server = stack.enter_context(Server()) if store == "postgres" else None
        free: SimpleQueue[tuple[Warm, str | None]] = SimpleQueue()
        for n in range(PROCESSES):
            (folder / str(n)).mkdir()
            quick = stack.enter_context(quick_folder(folder / str(n)))
            free.put((stack.enter_context(Warm(quick)), None if server is None else _new(server)))

        def play(operation: str) -> Report:
            warm, url = free.get()
            try:
                return warm.play(Wish(operation=operation, url=url))
            finally:
                free.put((warm, url))

        with ThreadPoolExecutor(PROCESSES) as pool:
            return list(_told(store, pool.map(play, operations)))


def _new(server: Server) -> str:
    url = server.create_database()
    with open_store(url) as store:
        store.migrate()
    return url


def _told(store: str, reports: Iterator[Report]) -> Iterator[Report]:
    for report in reports:
        print(f"\r  {store}: {report.operation:60}", end="\r", file=sys.stderr, flush=True)
        yield report


def _show(stores: list[str], reports: list[list[Report]]) -> int:
    heads = " | ".join(f"{store}: statements | kills" for store in stores)
    print(f"| operation | {heads} | violations |")
    print(f"|---|{'--:|--:|' * len(stores)}--:|")
    for row in zip(*reports, strict=True):
        figures = " | ".join(f"{len(report.statements)} | {report.kills}" for report in row)
        broken = sum(len(report.violations) for report in row)
        print(f"| {row[0].operation} | {figures} | {broken} |")
    figures = " | ".join(
        f"{sum(len(report.statements) for report in each):,}"
        f" | {sum(report.kills for report in each):,}"
        for each in reports
    )
    everything = [violation for each in reports for one in each for violation in one.violations]
    print(f"| all | {figures} | {len(everything)} |")
    for violation in everything:
        print(violation, file=sys.stderr)
    return len(everything)


if __name__ == "__main__":
    main()
