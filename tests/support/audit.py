"""What rows can show of the invariants: an account of every job, drawn up by plain SQL.

1, 3   every live job stands in exactly one place: in line, due, parked, or on one lease with
       its current token; no id is both live and in history
4      no ticket, lease, event, note or step carries a token above its job's
8      attempts never exceed max_attempts, and a live job has one left
10     the jobs that count at a gate are those that run; no more permits are used than there are,
       unless an operator has lowered the limit; a claim will look at every waiting job: its line
       has a turn, or a running job that writes one when it ends
9      a unique key that ends with its job points to a live one, and each live job has its key
12     a waiting job has an unfinished parent; an unfinished parent is live; a workflow is open as
       long as one of its nodes is live, and no longer
15     counts equal a recount of the rows
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tenure.rules.job import Feature
from tests.support.plain import KEPT, Plain, Row

JOB = (
    "id", "token", "queue", "priority", "position", "due_at", "parked", "held", "attempts",
    "max_attempts", "tenant", "task", "unique_scope", "unique_key", "unique_until", "gate",
    "gate_key",
)  # fmt: skip


@dataclass
class Live:
    """A live job, and every place in which it was found."""

    row: dict[str, Any]
    places: list[str] = field(default_factory=list)


def audit(store_url: str) -> None:
    """Assert the structural invariants of the database behind a URL."""
    if works(kept := KEPT.get(store_url)):
        check(Plain.over(kept))
        return
    with Plain(store_url) as plain:
        check(plain)


def works(kept: Any) -> bool:
    """Is there a connection, and did no test end it?"""
    if kept is not None:
        with suppress(Exception):  # of a driver that may be missing
            kept.execute("select 1")
            return True
    return False


def check(plain: Plain) -> None:
    """Assert them on an open connection."""
    live = {row[0]: Live(dict(zip(JOB, row, strict=True))) for row in plain.pick("job", JOB)}
    final = _final(plain, live)
    tokens = {id: job.row["token"] for id, job in live.items()} | final
    _find_tickets(plain, live, tokens)
    _find_leases(plain, live, tokens)
    for id, job in live.items():
        _check_place(id, job)
    _check_keys(plain, live)
    _check_parents(plain, live)
    _check_workflows(plain, live, set(final))
    _check_gates(plain, live)
    for table in ("event", "note", "step"):
        for job_id, token in plain.pick(table, ("job_id", "token")):
            assert token <= tokens.get(job_id, token), f"{table} of job {job_id} is from the future"
    _check_counts(plain, live)


def _final(plain: Plain, live: dict[int, Live]) -> dict[int, int]:
    rows = plain.pick("history", ("id", "token", "attempts", "max_attempts"))
    times = Counter(row[0] for row in rows)
    for id, token, attempts, most in rows:
        assert times[id] == 1, f"job {id} is {times[id]} times in history"
        assert id not in live, f"job {id} is live and in history"
        assert token >= 1, f"job {id} is in history without an attempt's token"
        assert 0 <= attempts <= most, f"job {id} used {attempts} of {most} attempts"
    return {row[0]: row[1] for row in rows}


def _find_tickets(plain: Plain, live: dict[int, Live], tokens: dict[int, int]) -> None:
    for queue, priority, position, id, token in plain.pick(
        "ready", ("queue", "priority", "position", "job_id", "token")
    ):
        assert token <= tokens.get(id, token), f"a ticket of job {id} is from the future"
        job = live.get(id)
        if job is not None and job.row["token"] == token:
            where = (job.row["queue"], job.row["priority"], job.row["position"])
            assert (queue, priority, position) == where, f"job {id} does not know its ticket"
            job.places.append("ready")
    for queue, gate, key, priority, position, id, token in plain.pick(
        "gated", ("queue", "gate", "key", "priority", "position", "job_id", "token")
    ):
        assert token <= tokens.get(id, token), f"a ticket of job {id} is from the future"
        job = live.get(id)
        if job is not None and job.row["token"] == token:
            names = ("queue", "gate", "gate_key", "priority", "position")
            stands = tuple(job.row[name] for name in names)
            here = (queue, gate, key, priority, position)
            assert here == stands, f"job {id} does not know its ticket"
            job.places.append("gated")
    for due_at, id, token in plain.pick("due", ("due_at", "job_id", "token")):
        assert token <= tokens.get(id, token), f"a due ticket of job {id} is from the future"
        job = live.get(id)
        if job is not None and job.row["token"] == token:
            assert job.row["due_at"] == due_at, f"job {id} does not know its due time"
            job.places.append("due")


def _find_leases(plain: Plain, live: dict[int, Live], tokens: dict[int, int]) -> None:
    for lease_id, text in plain.rows("select id, cast(jobs as text) from tenure.lease"):
        for id, token in json.loads(text):
            assert token <= tokens.get(id, token), f"lease {lease_id} of job {id} is of the future"
            if id in live and live[id].row["token"] == token:
                live[id].places.append("lease")


def _check_place(id: int, job: Live) -> None:
    row = job.row
    if row["parked"] is not None:
        job.places.append(row["parked"])
    assert len(job.places) == 1, f"job {id} stands in {job.places or 'no place'}"
    assert row["attempts"] < row["max_attempts"], f"live job {id} has no attempt left"
    assert row["parked"] != "held" or row["held"], f"job {id} is parked as held, but is not held"
    [place] = job.places
    in_line = ("ready", "gated", "due")
    assert not (row["held"] and place in in_line), f"held job {id} stands in line"
    wrong = "ready" if row["gate"] is not None else "gated"
    assert place != wrong, f"job {id} with the gate {row['gate']} is {place}"
    if place in ("ready", "gated", "lease"):
        assert row["due_at"] is None, f"job {id} is {place} and has a due time"


def _check_keys(plain: Plain, live: dict[int, Live]) -> None:
    held: dict[tuple[str, str, str], int] = {}
    for tenant, scope, key, id, until in plain.pick(
        "unique_key", ("tenant", "scope", "key", "job_id", "until")
    ):
        held[tenant, scope, key] = id
        if until in ("started", "finished"):
            assert id in live, f"key {key!r} is held by job {id}, which is not live"
        if until == "started":
            assert live[id].places != ["lease"], f"job {id} has started and kept key {key!r}"
    by_key = defaultdict(list)
    for id, job in live.items():
        row = job.row
        if row["unique_key"] is not None and row["unique_until"] != "started":
            by_key[row["tenant"], row["unique_scope"], row["unique_key"]].append(id)
    for full_key, ids in by_key.items():
        assert ids == [held.get(full_key)], f"key {full_key} belongs to {held.get(full_key)}: {ids}"


def _check_parents(plain: Plain, live: dict[int, Live]) -> None:
    unfinished: set[int] = set()
    silent = "silent" if plain.is_postgres else "false"
    for id, parent_id, state, says_nothing in plain.rows(
        f"select job_id, parent_id, parent_state, {silent} from tenure.parent"
    ):
        has_succeeded = says_nothing and parent_id not in live
        if state is None and not has_succeeded:
            assert parent_id in live, f"job {id} waits for {parent_id}, which is not live"
            unfinished.add(id)
    waiting = {id for id, job in live.items() if job.row["parked"] == "parents"}
    assert waiting <= unfinished, f"jobs {waiting - unfinished} wait for nobody"


def _check_workflows(plain: Plain, live: dict[int, Live], final: set[int]) -> None:
    nodes: dict[int, int] = dict(plain.pick("node", ("job_id", "workflow_id")))
    assert nodes.keys() <= live.keys() | final, "a node has no job"
    marked = {
        id for id, features in plain.pick("job", ("id", "features")) if features & Feature.WORKFLOW
    }
    assert marked == nodes.keys() & live.keys(), "a node is not marked as one"
    open_ones = {nodes[id] for id in live if id in nodes}
    waited_for = {
        -id for id, state in plain.pick("parent", ("job_id", "parent_state"))
        if id < 0 and state is None
    }  # fmt: skip
    for id, ended_at, stopping in plain.pick("workflow", ("id", "ended_at", "stopping")):
        assert (ended_at is None) == (id in open_ones), f"workflow {id} ended at {ended_at}"
        assert (ended_at is None) == (id in waited_for), f"the end of workflow {id} waits"
        assert not stopping or ended_at is None, f"workflow {id} has ended and is to be stopped"


def _check_gates(plain: Plain, live: dict[int, Live]) -> None:
    run = Counter(
        (job.row["queue"], job.row["gate"], job.row["gate_key"])
        for job in live.values()
        if job.places == ["lease"] and job.row["gate"] is not None
    )
    holds: Counter[Row] = Counter()
    for queue, gate, key, count in plain.pick("gate_live", ("queue", "gate", "key", "live")):
        holds[queue, gate, key] += count
    assert +holds == run, f"past gates there are: {holds}, and these run: {run}"
    lines = set(plain.pick("gated", ("queue", "gate", "key")))
    turns = set(plain.pick("turn", ("queue", "gate", "key")))
    assert lines <= turns | set(run), f"nobody will look at {lines - turns - set(run)}"
    _check_limits(plain)


def _check_limits(plain: Plain) -> None:
    rows = plain.pick("gate", ("name", "max_running", "by_hand"))
    limits = {name: most for name, most, by_hand in rows if most and not by_hand}
    used: Counter[Row] = Counter()
    for gate, key, count in plain.pick("gate_used", ("gate", "key", "used")):
        used[gate, key] += count
    for (gate, key), count in used.items():
        assert count <= limits.get(gate, count), f"{count} run at gate {gate} {key!r}"


_STATES = {
    "ready": "queued",
    "gated": "queued",
    "due": "scheduled",
    "held": "queued",
    "parents": "waiting",
    "lease": "running",
}


def _check_counts(plain: Plain, live: dict[int, Live]) -> None:
    """The view that counts are taken from tells the same as the rows."""
    recount: Counter[Row] = Counter(
        (job.row["queue"], job.row["task"], _STATES[job.places[0]], job.row["tenant"])
        for job in live.values()
    )
    counted = plain.rows(
        "select queue, task, cast(state as text), tenant, count(*) from tenure.live"
        " group by queue, task, state, tenant"
    )
    assert {row[:4]: row[4] for row in counted} == recount
    shown = plain.one("select count(*) from tenure.jobs")
    assert shown == len(live) + plain.one("select count(*) from tenure.history")
