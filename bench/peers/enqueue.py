"""Bulk enqueue on PostgreSQL and on SQLite, by the best call that each competitor has."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Result
from bench.lab import Lab
from bench.peers.catalogue import ON_POSTGRES
from bench.peers.contest import Competitor, Pair, Turn, compare_turns, compete, names, take_turns

POSTGRES, SQLITE = "peers.postgres.enqueue", "peers.sqlite.enqueue"
ON_SQLITE = ("huey", "litequeue")
NAMES = names(POSTGRES, ON_POSTGRES) + names(SQLITE, ON_SQLITE)


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    yield from compete(lab, POSTGRES, "tenure-postgres", ON_POSTGRES, _results)
    yield from compete(lab, SQLITE, "tenure-sqlite", ON_SQLITE, _results)


def _results(lab: Lab, pair: Pair) -> Iterator[Result]:
    rounds = take_turns(lab, pair, _enqueue)
    yield compare_turns(pair.named(), pair, rounds, "jobs_per_second", "jobs/s")


def _enqueue(lab: Lab, competitor: Competitor) -> Turn:
    jobs = lab.few(competitor.adapter.enqueue_jobs)
    with competitor.trial(lab, jobs) as one:
        one.place.settle_down()
        rate = one.enqueue_many(0, jobs)
        one.check_stored(jobs)
    return {"jobs_per_second": rate, "jobs": float(jobs)}
