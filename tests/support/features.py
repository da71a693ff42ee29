"""The checker, continued: gates, schedules, workflows, tenants, counts.

10  gate exceeded, gate too fast, gate out of order        14  tenant crossed
11  tick twice, tick missing, tick without its job         15  counts differ
12  child before parent, child without its parents, finaliser early, workflow ended early,
    workflow open, wrong outcome
16  hook called twice, hook without a failure
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

from tenure.rules.gates import Limits
from tenure.rules.permits import Limited, limited_by
from tenure.rules.ticks import ticks
from tests.support.books import (
    ENDS,
    SLACK_SECONDS,
    Books,
    Expected,
    Grant,
    Told,
    Violation,
    Violations,
)
from tests.support.history import Run, WorkflowRow

ANY = ("any_succeeded", "any_failed")
"""The rules of nodes that do not wait for all of their parents."""
WANTED = {"all_succeeded": "succeeded", "any_succeeded": "succeeded", "any_failed": "failed"}
"""The ends of parents that each rule is about; the rule that is missing takes every end."""


def violations(books: Books, expected: Expected) -> Violations:
    """Everything that is wrong here."""
    yield from no_gate_is_exceeded(books)
    yield from no_gate_is_too_fast(books)
    yield from lines_are_in_order(books)
    yield from one_job_per_tick(books)
    if expected.every_tick:
        yield from no_tick_is_missing(books)
    yield from children_come_after_parents(books)
    yield from workflows_end_once(books, drained=expected.drained)
    yield from hooks_are_called_once(books)
    yield from tenants_are_kept_apart(books)
    yield from counts_are_right(books)


# --- 10 ------------------------------------------------------------------------------------------


def _by_limit(books: Books, ids: Iterable[int]) -> Iterator[tuple[Limited, Limits, int]]:
    """Of these jobs, those at gates, with where they count."""
    gates = {gate.name: gate.limits for gate in books.final.gates if not gate.by_hand}
    for id in ids:
        row = books.rows.get(id)
        if row is not None and row.gate in gates:
            limits = gates[row.gate]
            yield limited_by(row.gate, row.gate_key or "", limits), limits, id


def no_gate_is_exceeded(books: Books) -> Violations:
    """10: no more handlers run on valid leases than a gate says."""
    by_job: dict[int, list[Run]] = defaultdict(list)
    for run in books.records.runs:
        by_job[run.id].append(run)
    at: dict[Limited, list[Run]] = defaultdict(list)
    most: dict[Limited, int | None] = {}
    for where, limits, id in _by_limit(books, by_job):
        most[where] = limits.max_running
        at[where] += by_job[id]
    for where, runs in at.items():
        limit = most[where]
        if limit is not None:
            yield from _crowds(books, where, limit, runs)


def _crowds(books: Books, where: Limited, limit: int, runs: list[Run]) -> Violations:
    inside: list[tuple[float, Run]] = []
    for run in sorted(runs, key=lambda run: run.began):
        inside = [(end, other) for end, other in inside if end > run.began]
        if books.ends_of(run) < run.began:  # its lease had ended before: it has no permit
            continue
        inside.append((books.ends_of(run), run))
        if len(inside) > limit:
            others = tuple(other.id for _, other in inside[:-1])
            text = f"{len(inside)} of {limit} at {where[0]} {where[1]!r}"
            yield Violation(10, "gate exceeded", run.id, text, others=others)


def no_gate_is_too_fast(books: Books) -> Violations:
    """10: no more jobs pass than a gate's rate allows: a bucket that is never below empty."""
    at: dict[Limited, list[Grant]] = defaultdict(list)
    paces: dict[Limited, Limits] = {}
    for where, limits, id in _by_limit(books, books.grants):
        if limits.rate is not None:
            paces[where] = limits
            at[where] += books.grants[id]
    for where, grants in at.items():
        limits = paces[where]
        grants.sort(key=lambda grant: grant.claimed_at)
        starts, last = limits.capacity, grants[0].claimed_at
        slack = SLACK_SECONDS * (limits.rate or 0.0) / limits.per_seconds
        for grant in grants:
            starts = limits.filled(starts, grant.claimed_at - last) - 1
            last = grant.claimed_at
            if starts < -slack - 1e-6:
                text = f"{-starts:.2f} more than {where[0]} {where[1]!r} allows"
                yield Violation(10, "gate too fast", grant.id, text, (grant.token,))


def lines_are_in_order(books: Books) -> Violations:
    """10: with one permit per key, jobs are handed out in the order in which they were enqueued.

    Of those that were acknowledged one before the other, with one priority and no delay, each for
    the first time: who is tried again stands at the end.
    """
    strict = {gate.name for gate in books.final.gates if gate.max_running == 1 and gate.keyed}
    lines: dict[tuple[str, str, int], list[tuple[float, Told]]] = defaultdict(list)
    for told in books.enqueues():
        row = books.rows.get(told.id)
        if row is None or row.gate not in strict or not told.created:
            continue
        if told.n in told.call.sent.later:
            continue
        first = [grant for grant in books.grants.get(told.id, ()) if grant.token == 1]
        if first and not any(event.kind == "moved" for event in books.events[told.id]):
            line = (row.gate, row.gate_key or "", row.priority)
            lines[line].append((first[0].claimed_at, told))
    for line, jobs in lines.items():
        jobs.sort(key=lambda job: job[0])
        latest: Told | None = None
        within: dict[int, Told] = {}
        for _, told in jobs:
            sibling, before = within.get(id(told.call)), None
            if sibling is not None and sibling.n > told.n:
                before = sibling
            elif latest is not None and told.call.ended < latest.call.began:
                before = latest
            if before is not None:
                text = f"at {line[0]} {line[1]!r} after job {before.id}, which came later"
                yield Violation(10, "gate out of order", told.id, text, others=(before.id,))
            if latest is None or told.call.began > latest.call.began:
                latest = told
            if sibling is None or told.n > sibling.n:
                within[id(told.call)] = told


# --- 11 ------------------------------------------------------------------------------------------


def one_job_per_tick(books: Books) -> Violations:
    """11: a tick has one job, whoever fires it, and however often."""
    fired: dict[tuple[str, str, float], list[int]] = defaultdict(list)
    for row in books.rows.values():
        if row.fired is not None:
            fired[row.tenant, *row.fired].append(row.id)
    for (_, name, at), (first, *more) in fired.items():
        if more:
            text = f"schedule {name}, {at:.0f}: also job {first}"
            yield Violation(11, "tick twice", more[0], text, others=(first,))
    for dealt in books.final.ticks:
        if dealt.job is not None and dealt.job not in books.rows:
            text = f"schedule {dealt.schedule}, {dealt.at:.0f}"
            yield Violation(11, "tick without its job", dealt.job, text)


def no_tick_is_missing(books: Books) -> Violations:
    """11: where the policy is to catch up with all, each tick up to the last was dealt with."""
    dealt_with: dict[tuple[str, str], set[float]] = defaultdict(set)
    for tick in books.final.ticks:
        if not tick.triggered:
            dealt_with[tick.tenant, tick.schedule].add(tick.at)
    for schedule in books.final.schedules:
        own = dealt_with[schedule.tenant, schedule.name]
        if schedule.timing.catch_up != "all" or not own:
            continue
        begin, end = (datetime.fromtimestamp(at, UTC) for at in (schedule.created_at, max(own)))
        for wanted in ticks(schedule.timing, begin, end):
            if wanted.timestamp() not in own:
                text = f"schedule {schedule.name}, {wanted:%H:%M:%S}"
                yield Violation(11, "tick missing", None, text)


# --- 12 ------------------------------------------------------------------------------------------


def children_come_after_parents(books: Books) -> Violations:
    """12: a child starts when its parents have ended as its rule wants, all of them or one.

    Of a parent that an operator began anew the first such end counts: a child that it has set free
    is not called back. An operator who begins a child anew does not wait for its parents: what was
    handed out since then is not looked at, all before it is.
    """
    rules = {id: rule for flow in books.final.workflows for id, rule in flow.nodes.items()}
    parents: dict[int, list[int]] = defaultdict(list)
    for child, parent in books.final.parents:
        if child > 0:  # others stand for the end of a workflow
            parents[child].append(parent)
    for child, olders in parents.items():
        grants = _before_replay(books, child)
        late = {id for id in olders if grants and _came_later(books, id, child, grants)}
        known = [id for id in olders if id not in late]
        if not grants or not known:
            continue
        rule, first = rules.get(child, "all_succeeded"), grants[0].claimed_at
        enough = min if rule in ANY else max
        ends = {id: _first_end(books, id) for id in known}
        parent = enough(ends, key=ends.__getitem__)
        if ends[parent] - first > SLACK_SECONDS:
            text = f"{ends[parent] - first:.3f} s before the end of job {parent}"
            yield Violation(12, "child before parent", child, text, others=(parent,))
            continue
        ends = {id: _first_end(books, id, WANTED.get(rule)) for id in known}
        parent = enough(ends, key=ends.__getitem__)
        if ends[parent] - first > SLACK_SECONDS:
            text = f"{rule}, and job {parent} had not {WANTED[rule]}"
            yield Violation(12, "child without its parents", child, text, others=(parent,))


def _before_replay(books: Books, id: int) -> list[Grant]:
    """What a job was handed out as before an operator first began it anew."""
    anew = min((e.token for e in books.events[id] if e.kind == "replayed"), default=None)
    return [g for g in books.grants.get(id, ()) if anew is None or g.token < anew]


def _came_later(books: Books, parent: int, child: int, grants: list[Grant]) -> bool:
    """Was this parent added when the child, which had been handed out, waited once more?

    An operator has begun the child anew; or it was put back, and handed out again when this parent
    had ended.
    """
    row = books.rows.get(parent)
    if row is None or row.created_at <= grants[0].claimed_at:
        return False
    again = [grant.claimed_at for grant in grants if grant.claimed_at > row.created_at]
    if again:
        return again[0] >= _first_end(books, parent) - SLACK_SECONDS
    return any(event.kind == "replayed" for event in books.events[child])


def _first_end(books: Books, id: int, state: str | None = None) -> float:
    """When a job first ended, or first ended like this; never, when it has not."""
    row = books.rows.get(id)
    if row is None:
        return 0.0  # removed by an operator
    found = [(e.kind, e.at) for e in books.events[id] if e.kind in ENDS.values()]
    if row.finished_at is not None:
        found.append((row.state, row.finished_at))
    return min((at for kind, at in found if state in (None, kind)), default=float("inf"))


def _end_of(books: Books, id: int) -> float:
    """When a job ended for the last time; never, when it is live."""
    row = books.rows.get(id)
    if row is None:
        return 0.0  # removed by an operator
    return float("inf") if row.finished_at is None else row.finished_at


def workflows_end_once(books: Books, *, drained: bool) -> Violations:
    """12: a workflow ends when all of its nodes have, with the worst that became of them; its
    finaliser comes after all others."""
    for flow in books.final.workflows:
        about = f"workflow {flow.id}"
        if flow.ended_at is None:
            if drained:
                yield Violation(12, "workflow open", min(flow.nodes, default=None), about)
            continue
        last = max(flow.nodes, key=partial(_end_of, books))
        early = _end_of(books, last) - flow.ended_at
        if early > SLACK_SECONDS:
            text = f"{about} ended {early:.3f} s before job {last}"
            yield Violation(12, "workflow ended early", last, text)
        worst = _worst(books, flow)
        if flow.outcome != worst:
            text = f"{about} is {flow.outcome}, its nodes {worst}"
            yield Violation(12, "wrong outcome", min(flow.nodes), text)
        yield from _finaliser_is_last(books, flow)


def _worst(books: Books, flow: WorkflowRow) -> str:
    states = {books.rows[id].state for id in flow.nodes if id in books.rows}
    return next((state for state in ("failed", "cancelled") if state in states), "succeeded")


def _finaliser_is_last(books: Books, flow: WorkflowRow) -> Violations:
    """Nobody else is live when it is handed out, unless an operator has begun it anew."""
    final = flow.finaliser or 0
    for grant in _before_replay(books, final):
        for other in flow.nodes:
            late = _live_until(books, other, grant.claimed_at) - grant.claimed_at
            if other != final and late > SLACK_SECONDS:
                text = f"{late:.3f} s before the end of job {other}"
                yield Violation(12, "finaliser early", final, text, others=(other,))


def _live_until(books: Books, id: int, at: float) -> float:
    """When a job that was live at this time ended next; never: it did not. Zero: it was not."""
    row = books.rows.get(id)
    if row is None:
        return 0.0  # removed by an operator
    again = [event.at for event in books.events[id] if event.kind == "replayed"]
    ends = [event.at for event in books.events[id] if event.kind in ENDS.values()]
    ends.append(float("inf") if row.finished_at is None else row.finished_at)
    for began, ended in zip(sorted([row.created_at, *again]), sorted(ends), strict=True):
        if began < at - SLACK_SECONDS and at < ended:
            return ended
    return 0.0


# --- 14 and 15 -----------------------------------------------------------------------------------


def hooks_are_called_once(books: Books) -> Violations:
    """16: a failure has at most one job of each hook, and each such job is for a failure."""
    calls = Counter((job.task, job.called_for) for job in books.final.jobs if job.called_for)
    failed = {(job.id, job.token) for job in books.final.jobs if job.state == "failed"}
    replayed = {event.id for event in books.final.events if event.kind == "replayed"}
    stored = {job.id for job in books.final.jobs}
    for (task, called_for), count in calls.items():
        assert called_for is not None
        id, token = called_for
        if count > 1:
            yield Violation(16, "hook called twice", id, f"{count} jobs of {task}, token {token}")
        if called_for not in failed and id in stored and id not in replayed:
            yield Violation(16, "hook without a failure", id, f"a job of {task}, token {token}")


def tenants_are_kept_apart(books: Books) -> Violations:
    """14: a job is its tenant's: in its row, while it runs, in its workflow, and for its key."""
    for told in books.enqueues():
        row = books.rows.get(told.id)
        if row is not None and told.tenant is not None and row.tenant != told.tenant:
            text = f"enqueued for {told.tenant!r}, and its row says {row.tenant!r}"
            yield Violation(14, "tenant crossed", told.id, text)
    for run in books.records.runs:
        row = books.rows.get(run.id)
        if row is not None and row.tenant != run.tenant:
            text = f"of {row.tenant!r}, and ran as {run.tenant!r}"
            yield Violation(14, "tenant crossed", run.id, text, (run.token,))
    for flow in books.final.workflows:
        for id in flow.nodes:
            row = books.rows.get(id)
            if row is not None and row.tenant != flow.tenant:
                text = f"of {row.tenant!r}, in a workflow of {flow.tenant!r}"
                yield Violation(14, "tenant crossed", id, text)


def counts_are_right(books: Books) -> Violations:
    """15: what everybody is told equals a recount of the rows."""
    if books.final.counted is None:
        return
    finals = {row.state for row in books.final.jobs if not row.is_live}
    counted: Counter[str] = Counter()
    for state, count in books.final.counted.items():
        final = state in finals or state in ("succeeded", "failed", "cancelled", "skipped")
        counted[state if final else "live"] += count
    recount = Counter(row.state for row in books.final.jobs)
    for state in sorted(counted | recount):
        if counted[state] != recount[state]:
            text = f"{counted[state]} {state} are counted, and there are {recount[state]}"
            yield Violation(15, "counts differ", None, text)
