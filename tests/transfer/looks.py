"""Two stores, looked at from all sides: what they tell, what they hand out, what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from tenure.rules.job import Job
from tenure.rules.limits import FAR_FUTURE, LONG_AGO
from tenure.store import Store
from tests.support.plain import Plain, Row
from tests.support.stores import Clock


def all_jobs(store: Store, now: datetime) -> Iterator[Job]:
    """Every job, newest first."""
    page = store.list_jobs(limit=1000, now=now)
    yield from page.jobs
    while page.next is not None:
        page = store.list_jobs(limit=1000, after=page.next, now=now)
        yield from page.jobs


def told(store: Store, now: datetime) -> dict[str, object]:
    """All that a store tells of its jobs."""
    ids = [job.id for job in all_jobs(store, now)]
    return {
        "jobs": {id: store.get(id, now=now) for id in ids},
        "stories": {id: store.timeline(id, now=now) for id in ids},
        "progress": {id: store.progress(id, now=now) for id in ids},
        "steps": {id: store.steps(id, now=now) for id in ids},
        "live": store.count_live(now=now),
        "finished": store.count_finished(LONG_AGO, FAR_FUTURE, now=now),
        "paused": store.paused_queues(now=now),
        "gates": store.gates(now=now),
        "workflows": store.list_workflows(now=now),
        "parents": {id: store.parent_ends(id, now=now) for id in ids},
        "schedules": store.list_schedules(now=now),
        "statistics": store.statistics(now - timedelta(days=100), now, now=now),
        "feed": {
            reader.name: store.read_feed(reader.name, limit=1000, now=now).ends
            for reader in store.readers(now=now)
            if reader.lost_at is None and not reader.tenant
        },
        "readers": store.readers(now=now),
        "hooks": store.failure_hooks(now=now),
        "oldest": [(each.queue, each.since) for each in store.oldest_ready(now=now)],
    }


def handed_out(store: Store, clock: Clock) -> list[tuple[object, ...]]:
    """Every job that can be claimed, a few at a time, in the order in which they come.

    First those in line, then those that are due within a century.
    """
    queues = sorted({job.queue for job in all_jobs(store, clock.now)})
    for paused in store.paused_queues(now=clock.now):
        store.resume(paused.name, now=clock.now)
    order: list[tuple[object, ...]] = []
    for now in (clock.now, clock.now + timedelta(days=36_500)):
        while store.promote(most=1, now=now):  # one by one: so their order is told
            pass
        for queue in queues:
            while leases := store.claim("w1", {queue: 3}, lease_seconds=10**9, now=now):
                order += [
                    (job.id, job.token, job.queue, job.priority, job.attempts, job.crashes)
                    for lease in leases
                    for job in lease.jobs
                ]
    return order


def rows(url: str) -> dict[str, list[Row]]:
    """All rows of what a copy carries, as the database has them, and in no order but events'."""
    with Plain(url) as plain:
        held = plain.everything()
        held["event"] = [
            tuple(row)
            for row in plain.rows(
                "select job_id, at, token, kind, worker, request_id, cast(detail as text)"
                " from tenure.event order by job_id, seq"
            )
        ]
        for table in ("job", "history"):
            texts = ", ".join(f"cast({name} as text)" for name in ("args", "metadata", "error"))
            held[f"{table} to the letter"] = sorted(
                plain.rows(f"select id, {texts} from tenure.{table}"), key=repr
            )
        held["step to the letter"] = plain.rows(
            "select job_id, n, name, cast(result as text) from tenure.step order by job_id, n"
        )
        if plain.is_postgres:  # a silent edge comes out as one that says how its parent ended
            held["parent"] = sorted(plain.rows("select * from tenure.edge"), key=repr)
    for apart in ("lease", "gate_hold", "turn", "bucket"):
        del held[apart]
    return held


def counters(url: str) -> Any:
    """The highest ids and positions that were drawn."""
    with Plain(url) as plain:
        if plain.is_postgres:
            return plain.rows(
                "select i.last_value, i.is_called, p.last_value, p.is_called"
                " from tenure.job_id i, tenure.position p"
            )
        return plain.rows("select job_id, position from tenure.counter")
