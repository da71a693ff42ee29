"""The checker, continued: everything that happens has a cause.

6   run twice, unexplained run, end without a settlement, unexplained crash
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from tenure.testing.recorder import Answered
from tests.support import recovery
from tests.support.books import (
    OPERATED,
    PUT_BACK,
    Blow,
    Books,
    Stall,
    Violation,
    Violations,
)
from tests.support.history import WorkflowRow

EXCUSE_SECONDS = 0.5
"""A worker that renews its lease loses it only when something keeps it from that for so long."""
UNHEARD_SECONDS = 10.0
"""So long before a sweep a claim may have been cut off."""


def every_run_is_explained(books: Books) -> Violations:
    """6: one execution per token, and each token but the last has a reason why it ended."""
    for (id, token), count in Counter((run.id, run.token) for run in books.records.runs).items():
        if count > 1:
            text = f"{count} handlers under token {token}"
            yield Violation(6, "run twice", id, text, (token,))
    children = {child for child, _ in books.final.parents}
    flows = {id: flow for flow in books.final.workflows for id in flow.nodes}
    for id, row in books.rows.items():
        explained = {e.token for e in books.events[id] if e.kind in PUT_BACK | OPERATED}
        open_ends = [token for token in range(1, row.token) if token not in explained]
        held = {grant.token for grant in books.grants.get(id, ())}
        waited = {1} if id in children else set()  # for its parents
        if id in flows:
            waited |= {e.token for e in books.events[id] if e.kind == "replayed"}
        strange = [token for token in open_ends if token in held or token not in waited]
        unsaid = _untold_waits(books, flows[id], id) if strange and id in flows else 0
        for token in strange:
            if token not in held and unsaid > 0:
                unsaid -= 1
                continue
            text = f"why did token {token} end?"
            yield Violation(6, "unexplained run", id, text, (token, token + 1))


def _untold_waits(books: Books, flow: WorkflowRow, id: int) -> int:
    """How often a node may have stood in line, unclaimed, without a line in its story about it.

    Once for each time that a workflow may have been resumed; a finaliser also once for each time
    that another node was begun anew and called it back.
    """
    resumed = sum(
        call.answer.said != "False" if isinstance(call.answer, Answered) else not call.is_known
        for call in books.records.of("resume_workflow")
    )
    if id != flow.finaliser:
        return resumed
    others = [event for node in flow.nodes if node != id for event in books.events[node]]
    return resumed + len({event.at for event in others if event.kind == "replayed"})


def every_end_is_explained(books: Books) -> Violations:
    """6: a job succeeds because somebody said so, who held it."""
    for id, row in books.rows.items():
        if row.state == "succeeded" and not any(
            write.answer in ("landed", "unknown") and write.outcome == "succeed"
            for write in books.settlements.get((id, row.token), ())
        ):
            text = f"nobody has settled token {row.token}"
            yield Violation(6, "end without a settlement", id, text, (row.token,))


def every_crash_is_explained(
    books: Books,
    disturbed: Collection[int],
    blows: Sequence[Blow] = (),
    stalls: Sequence[Stall] = (),
) -> Violations:
    """6: only who was killed or stopped loses a lease, who could not reach the database, or who was
    never told what it had claimed. Where all blows are known, one of them must have hit it then."""
    unheard = {
        call.sent.worker
        for call in books.records.of("claim")
        if not isinstance(call.answer, Answered) and not call.is_known
    }
    grants = {(g.id, g.token): g for grants in books.grants.values() for g in grants}
    long_stalls = [s for s in recovery.merged(stalls) if s.ended - s.began >= EXCUSE_SECONDS]
    for event in books.final.events:
        if event.kind != "crashed" or event.worker is None:
            continue
        pid, grant = books.pids.get(event.worker, 0), grants.get((event.id, event.token))
        swept_at = books.mono(event.at)
        if grant is None:  # a part of its claim was cut off, and the rest was answered
            excused = event.worker in unheard or pid in disturbed
            excused |= any(s.within(swept_at - UNHEARD_SECONDS, swept_at) > 0 for s in long_stalls)
        else:
            excused = any(stall.within(grant.began, swept_at) > 0 for stall in long_stalls)
            hit = [blow for blow in blows if blow.pid == pid]
            excused |= any(grant.began < blow.at < swept_at for blow in hit)
            excused |= pid in disturbed and not blows
        if not excused:
            text = f"{event.worker} of process {pid} lost token {event.token} undisturbed"
            yield Violation(6, "unexplained crash", event.id, text, (event.token,))
