"""No-op jobs through one worker process on SQLite, `async def` and `def` handlers, against huey."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.harness import Result
from bench.lab import Lab
from bench.peers.contest import Pair, compare_turns, compete, names, take_turns
from bench.peers.drain import drain

PEERS = ("huey",)
OURS = {
    "peers.sqlite.drain1": "tenure-sqlite",
    "peers.sqlite.drain1_thread": "tenure-sqlite-thread",
}
NAMES = tuple(name for workload in OURS for name in names(workload, PEERS))


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for workload, ours in OURS.items():
        yield from compete(lab, workload, ours, PEERS, _results)


def _results(lab: Lab, pair: Pair) -> Iterator[Result]:
    rounds = take_turns(lab, pair, partial(drain, workers=1))
    yield compare_turns(pair.named(), pair, rounds, "jobs_per_second", "jobs/s")
