"""The rows behind a store, in the model's terms, and the rows that the model expects.

`list_jobs` shows what a job looks like; this is what stands around it: lines in the order of their
positions, due tickets, leases, keys, edges, notes, pauses and stories.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.rules.job import Progress, Step
from tests.model.books import JobId, Where
from tests.model.reference import Model
from tests.model.sides import Side

Rows = dict[str, Any]


def expected_rows(model: Model) -> Rows:
    """What the tables must hold."""
    jobs = model.jobs.values()
    return {
        "lines": {lane: line for lane, line in model.lines.items() if line},
        "due": sorted(
            (work.due_at, work.id, work.token) for work in jobs if work.where is Where.DUE
        ),
        "leases": sorted(
            (x.worker, x.claimed_at, x.expires_at, sorted(x.jobs), sorted(x.started),
             sorted(x.once))
            for x in model.leases.values()
        ),
        "keys": {
            key: (hold.id, hold.until, hold.expires_at, hold.outcome)
            for key, hold in model.keys.items()
        },
        "parents": {
            (work.id, parent): state
            for work in jobs if work.where is Where.WAITING
            for parent, state in work.parents.items()
        },
        "notes": {id: (told, model.jobs[id].notes_json) for id, told in model.notes.items()},
        "steps": {id: taken for id, taken in model.taken.items() if taken},
        "paused": {name: (x.paused_at, x.reason) for name, x in model.paused.items()},
        "stories": {
            work.id: [(x.at, x.kind, x.token, x.worker) for x in work.story]
            for work in jobs if work.story
        },
        "finished": sorted(
            (work.id, work.keep_until is not None, work.keep_until or work.finished_at)
            for work in jobs if not work.live
        ),
        "statistics": dict(model.counted),
    }  # fmt: skip


def stored_rows(side: Side) -> Rows:
    """What they hold."""
    rows = side.plain.rows
    when = _time if not side.plain.is_postgres else _utc

    def mine(id: int) -> int:
        return side.jobs.get(id, -id)

    lines: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for queue, priority, id, token in rows(
        "select queue, priority, job_id, token from tenure.ready order by queue, priority, position"
    ):
        lines[queue, priority].append((mine(id), token))
    stories: dict[int, list[Any]] = defaultdict(list)
    for id, at, kind, token, worker in rows(
        "select job_id, at, kind, token, worker from tenure.event order by seq"
    ):
        stories[mine(id)].append((when(at), kind, token, worker))
    steps: dict[int, list[Step]] = defaultdict(list)
    for id, name, function, token, at, result in rows(
        "select job_id, name, function, token, recorded_at, cast(result as text) from tenure.step"
        " order by job_id, n"
    ):
        recorded_at = when(at)
        assert recorded_at is not None
        steps[mine(id)].append(Step(name, function, token, recorded_at, result))
    return {
        "lines": dict(lines),
        "due": sorted(
            (when(at), mine(id), token)
            for at, id, token in rows("select due_at, job_id, token from tenure.due")
        ),
        "leases": sorted(
            (worker, when(claimed), when(expires),
             sorted((mine(id), token) for id, token in json.loads(jobs)),
             sorted(mine(id) for id in json.loads(started or "[]")), sorted(map(mine, _ids(once))))
            for worker, claimed, expires, jobs, started, once in rows(
                "select worker, claimed_at, expires_at, cast(jobs as text), cast(started as text),"
                " once from tenure.lease")
        ),
        "keys": {
            (tenant, scope, key): (mine(id), until, when(expires), outcome)
            for tenant, scope, key, id, until, expires, outcome in rows(
                "select tenant, scope, key, job_id, until, expires_at, outcome"
                " from tenure.unique_key")
        },
        "parents": {
            (mine(id), mine(parent)): state
            for id, parent, state in rows(
                "select p.job_id, p.parent_id, p.parent_state from tenure.parent as p"
                " join tenure.job as j on j.id = p.job_id where j.parked = 'parents'")
        },
        "notes": {
            mine(id): (
                Progress(fraction, message, when(reported), checkpoint, when(saved)), notes
            )
            for id, fraction, message, reported, checkpoint, saved, notes in rows(
                "select job_id, fraction, message, reported_at, cast(checkpoint as text), saved_at,"
                " cast(notes as text) from tenure.note")
        },
        "steps": dict(steps),
        "paused": {
            name: (when(at), reason)
            for name, at, reason in rows("select name, paused_at, reason from tenure.queue")
        },
        "stories": dict(stories),
        "finished": sorted(
            (mine(id), keep_until is not None, when(keep_until) or when(finished_at))
            for id, keep_until, finished_at in rows(
                "select id, keep_until, finished_at from tenure.history")
        ),
        "statistics": {
            (queue, task, outcome): int(ends)
            for queue, task, outcome, ends in rows(
                "select queue, task, outcome, sum(ends) from tenure.statistic"
                " group by queue, task, outcome")
        },
    }  # fmt: skip


def differences(expected: Rows, found: Rows) -> list[str]:
    """One line for each table that differs."""
    return [
        f"{table}: expected {expected[table]!r}\n      found    {found[table]!r}"
        for table in expected
        if expected[table] != found[table]
    ]


def add_void_ticket(side: Side, queue: str, priority: int, id: JobId, token: int) -> None:
    """Write a ticket that no attempt belongs to, at the end of its line."""
    rows = side.plain.rows
    if side.plain.is_postgres:
        [(position,)] = rows("select 1000 * nextval('tenure.position')")
    else:
        [(position,)] = rows("update tenure.counter set position = position + 1 returning position")
    rows(
        "insert into tenure.ready (queue, priority, position, job_id, token)"
        " values (?, ?, ?, ?, ?)",
        queue, priority, position, side.job_id(id), token,
    )  # fmt: skip


def _ids(once: str | list[int] | None) -> list[int]:
    """PostgreSQL has an array, SQLite a text."""
    return list(json.loads(once) if isinstance(once, str) else once or [])


def _time(value: int | None) -> datetime | None:
    return (
        None if value is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
    )


def _utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)
