"""What a job costs PostgreSQL when a worker drains in bulk, and the memory of a worker.

Everything is counted, from the start of the worker to its end: write-ahead log, commits, and row
versions left for vacuum, divided by the jobs. They are enqueued 1,000 at a time. A checkpoint comes
before the database is made, and none may fall into the count, so that no full-page image does.
Limits: 900 bytes, 0.05 commits. Memory is the resident set after the drain, against that after the
warm-up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import psycopg

from bench.harness import Result, check
from bench.lab import Lab
from bench.workloads.crew import PATIENCE_SECONDS, crew
from bench.workloads.place import KINDS, Kind, Place, fresh_place, plain
from bench.workloads.turns import against_limit, compare_sides
from tests.support.pages import connection_of

LIMITS = {"wal_bytes": 900.0, "commits": 0.05, "dead_rows": 2.0}
COUNTS = tuple(f"workloads.postgres.{figure}_per_job" for figure in LIMITS)
MEMORY = tuple(f"workloads.{store}.worker_memory" for store in KINDS)
NAMES = (*COUNTS, *MEMORY)
JOBS = 60_000

_COUNTERS = {
    "wal_bytes": "select (pg_current_wal_insert_lsn() - '0/0')::bigint",
    "commits": "select xact_commit from pg_stat_database where datname = current_database()",
    "dead_rows": "select sum(n_tup_upd + n_tup_del)::bigint from pg_stat_user_tables"
    " where schemaname = 'tenure'",
}
_CHECKPOINT = "select (checkpoint_lsn - '0/0')::bigint from pg_control_checkpoint()"
_OTHERS = """
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    jobs = lab.few(JOBS)
    if any(lab.wants(name) for name in COUNTS):
        rounds = [_written(lab, jobs) for _ in range(lab.rounds)]
        for name, (figure, limit) in zip(COUNTS, LIMITS.items(), strict=True):
            result = against_limit(
                name,
                [each[figure] for each in rounds],
                limit,
                unit="per job",
                against="a ticket and a live row" if figure == "dead_rows" else "limit",
            )
            yield msgspec.structs.replace(result, detail={"rounds": rounds})
    for store, name in zip(KINDS, MEMORY, strict=True):
        if lab.wants(name):
            seen = [_memory(lab, store, jobs) for _ in range(lab.rounds)]
            yield compare_sides(name, seen, "drained", "warmed up", unit="MiB")


def _written(lab: Lab, jobs: int) -> dict[str, float]:
    """What was written per job, by all that happened from the start of the worker to its end."""
    with psycopg.connect(lab.server.url(), autocommit=True) as connection:
        connection.execute("checkpoint")
    with fresh_place(lab, "postgres") as place:
        before, checkpoint = _counters(place), place.number(_CHECKPOINT)
        with place.quietly(), crew(place) as team:
            idle = place.number(_COUNTERS["wal_bytes"])
            last = team.line_up(list(plain(jobs)))
            enqueued = place.number(_COUNTERS["wal_bytes"])
            team.run(last)
            all_jobs = team.done
        place.check_finished(all_jobs)
        _wait_for_reports(place)
        after = _counters(place)
        check(place.number(_CHECKPOINT) == checkpoint, "a checkpoint fell into the count")
    per_job = {name: (after[name] - before[name]) / all_jobs for name in before}
    return per_job | {"enqueue_wal_bytes": (enqueued - idle) / jobs}


def _counters(place: Place) -> dict[str, int]:
    return {name: place.number(query) for name, query in _COUNTERS.items()}


def _wait_for_reports(place: Place) -> None:
    """A session reports its counts at its end at the latest; ours is asked to."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while place.number(_OTHERS) > 1:
        check(time.monotonic() < deadline, "a worker is still connected")
        time.sleep(0.01)
    connection_of(place.store).execute("select pg_stat_force_next_flush()")


def _memory(lab: Lab, store: Kind, jobs: int) -> dict[str, float]:
    """Resident memory of a worker, in MiB."""
    with fresh_place(lab, store) as place, crew(place) as team:
        warmed_up = team.mib()
        team.drain(list(plain(jobs)))
        return {"warmed up": warmed_up, "drained": team.mib()}
