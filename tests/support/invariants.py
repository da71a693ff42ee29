"""The checker: does what happened break an invariant of the worker?

    python -m tests.support.invariants FOLDER URL      # all records in the folder, and the database

What the test knew is read as well, if it is kept there (known.py); else it is said what was not
asked.

Each check yields violations by name, and each is told with its story. Nothing here knows how the
worker or the store does its work; it knows what was sent, what was answered, and what the database
holds in the end. Where an answer is missing, both ends of the story are allowed.

1   lost job, job twice                   5   effect missing, effect twice, effect without success
2   ghost, run without a claim            6   run twice, unexplained run, unexplained crash,
3   token granted twice, token fell,          end without a settlement
    two valid leases, swept early         7   end lost, rose from the dead, replayed by nobody,
4   stale write landed, settled twice,        cancelled and handed out, cancelled and put in line
    landed and denied                     8   too many attempts, attempts do not add up,
9   key held twice                            crashes do not add up, failed without a run,
13  backlog left, late recovery,              crash missing, crash not charged
    swept late
6: see causes.py. 10, 11, 12, 14, 15, 16: see features.py. What rows alone can show: see audit.py.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tenure.testing.recorder import Answered
from tests.support import causes, features, recovery
from tests.support.audit import audit
from tests.support.books import (
    ENDS,
    ENQUEUES,
    OPERATED,
    PUT_BACK,
    SLACK_SECONDS,
    Blow,
    Books,
    Expected,
    Grant,
    Pair,
    Violation,
    Violations,
    Write,
)
from tests.support.history import NEVER, EventRow, JobRow, read_final, read_records
from tests.support.known import expected_of, remembered, unasked
from tests.support.story import told

MOST_TOLD = 20
"""So many violations are told, each with its story; the rest is counted."""


def check(folder: Path, url: str, expected: Expected | None = None) -> Books:
    """Assert every invariant, over all records in the folder and the database behind the URL."""
    expected = expected or Expected()
    books = Books(remembered(read_records(folder), expected.stalls), read_final(url))
    broken = [*_rows_alone(url), *violations(books, expected)]
    assert not broken, "\n".join(report(books, broken, expected.blows))
    return books


def report(books: Books, broken: Sequence[Violation], blows: Sequence[Blow] = ()) -> Iterator[str]:
    """Each violation with the shortest story that explains it."""
    for violation in broken[:MOST_TOLD]:
        yield str(violation)
        yield from told(books, violation, blows)
    if len(broken) > MOST_TOLD:
        yield f"and {len(broken) - MOST_TOLD} more"


def _rows_alone(url: str) -> Violations:
    """1: what the audit finds, as a violation like others."""
    try:
        audit(url)
    except AssertionError as error:
        named = re.search(r"\bjob (\d+)", str(error))
        yield Violation(1, "rows disagree", int(named[1]) if named else None, str(error))


def violations(books: Books, expected: Expected) -> Violations:
    """Everything that is wrong."""
    yield from no_lost_job(books)
    yield from no_ghost(books)
    yield from one_lease_at_a_time(books)
    yield from only_the_newest_writes(books)
    yield from no_landing_is_denied(books)
    if expected.effects is not None:
        yield from one_effect_per_success(books, expected.effects)
    yield from causes.every_run_is_explained(books)
    yield from causes.every_end_is_explained(books)
    if expected.disturbed is not None:
        yield from causes.every_crash_is_explained(
            books, expected.disturbed, expected.blows, expected.stalls
        )
    yield from every_kill_is_counted(books, expected.blows)
    yield from final_is_final(books)
    yield from replays_were_asked_for(books, expected.atomic)
    yield from no_cancelled_job_goes_on(books)
    yield from who_has_started_is_charged(books)
    yield from attempts_add_up(books, expected.alone)
    yield from keys_are_unique(books, expected.atomic)
    if expected.drained:
        yield from nothing_is_left(books)
    if expected.recovery_seconds is not None:
        yield from recovery_is_prompt(books, expected.recovery_seconds)
    if expected.swept_seconds is not None:
        yield from sweeps_are_prompt(books, expected.swept_seconds, expected.quiet_at)
    if expected.start_seconds is not None:
        most = expected.start_seconds
        yield from recovery.starts_are_prompt(books, expected.blows, most, expected.stalls)
    yield from features.violations(books, expected)


def no_lost_job(books: Books) -> Violations:
    """1: every acknowledged enqueue is live or in history, exactly once."""
    times = Counter(row.id for row in books.final.jobs)
    for id, count in times.items():
        if count > 1:
            yield Violation(1, "job twice", id, f"{count} rows")
    removing = (*books.records.of("delete"), *books.records.of("delete_many"))
    deleted = {id for call in removing for id, _ in call.sent.jobs}
    for told_of in books.enqueues():
        id = told_of.id
        if told_of.call.is_known and id not in times and id not in deleted:
            text = f"acknowledged to process {told_of.call.pid}, and gone"
            yield Violation(1, "lost job", id, text)


def no_ghost(books: Books) -> Violations:
    """2: nothing runs that was not enqueued, nor without a claim of its worker."""
    known = {told_of.id for told_of in books.enqueues()}
    known |= {tick.job for tick in books.final.ticks if tick.job is not None}
    known |= {job.id for job in books.final.jobs if job.called_for is not None}
    unanswered = sum(
        call.sent.count
        for op in ENQUEUES
        for call in books.records.of(op)
        if not isinstance(call.answer, Answered) and not call.is_known
    )
    strangers = sorted(({*books.rows, *books.grants} | {r.id for r in books.records.runs}) - known)
    for id in strangers[unanswered:]:
        yield Violation(2, "ghost", id, "nobody has enqueued it")
    held = {(g.id, g.token, g.worker) for grants in books.grants.values() for g in grants}
    for run in books.records.runs:
        if (run.id, run.token, run.worker) not in held:
            yield Violation(2, "run without a claim", run.id, f"token {run.token}, {run.worker}")


def one_lease_at_a_time(books: Books) -> Violations:
    """3: at most one valid lease per job at any time of the database; tokens strictly grow."""
    for id, grants in books.grants.items():
        for token, count in Counter(grant.token for grant in grants).items():
            if count > 1:
                text = f"token {token}, {count} times"
                yield Violation(3, "token granted twice", id, text, (token,))
        for first, second in pairwise(grants):
            if second.token < first.token:
                text = f"from {first.token} to {second.token}"
                yield Violation(3, "token fell", id, text, (first.token, second.token))
            elif first.token < second.token and not _ended_before(books, first, second):
                text = f"token {second.token} while {first.worker} held {first.token}"
                both = (first.token, second.token)
                yield Violation(3, "two valid leases", id, text, both)
        if id in books.rows and books.rows[id].token < max(grant.token for grant in grants):
            yield Violation(3, "token fell", id, f"its row says {books.rows[id].token}")
        for grant in grants:
            least, _ = books.deadlines[grant.lease]
            for event in books.events[id]:
                if event.token == grant.token and event.kind == "crashed":
                    early = least - event.at
                    if early > SLACK_SECONDS:
                        text = f"{early:.3f} s before the deadline"
                        yield Violation(3, "swept early", id, text, (grant.token,))


def _ended_before(books: Books, first: Grant, second: Grant) -> bool:
    """Was the first lease over, by the clock or by a settlement, when the second was granted?"""
    least, _ = books.deadlines[first.lease]
    if second.claimed_at >= least - SLACK_SECONDS:
        return True
    return any(
        write.answer in ("landed", "unknown") and write.began < second.ended
        for write in books.settlements[first.id, first.token]
    )


def only_the_newest_writes(books: Books) -> Violations:
    """4: no write lands with a lower token than the highest issued; one settlement per token."""
    for write in books.writes:
        if write.answer == "landed" and not _repeats(books, write):
            newer = [g for g in books.grants.get(write.id, ()) if g.token > write.token]
            if any(grant.ended < write.began for grant in newer):
                text = f"{write.op} of {write.worker} with token {write.token}"
                both = (write.token, min(grant.token for grant in newer))
                yield Violation(4, "stale write landed", write.id, text, both)
    for (id, token), writes in books.settlements.items():
        landed = [write.worker for write in writes if write.answer == "landed"]
        if len(landed) > 1:
            text = f"token {token} by {', '.join(landed)}"
            yield Violation(4, "settled twice", id, text, (token,))
    for id, events in books.events.items():
        ends = Counter(e.token for e in events if e.kind in PUT_BACK or e.kind in ENDS.values())
        for token, count in ends.items():
            if count > 1 and not _ended_by_crash(events, token):
                text = f"{count} ends of token {token} on record"
                yield Violation(4, "settled twice", id, text, (token,))


def no_landing_is_denied(books: Books) -> Violations:
    """4: who repeats a settlement that had landed is told so."""
    for write in books.writes:
        if write.op == "settle" and write.answer == "stale":
            for event in books.events[write.id]:
                ours = event.token == write.token and event.worker == write.worker
                if ours and event.kind in PUT_BACK - {"crashed"}:
                    text = f"{write.outcome} of token {write.token} by {write.worker}"
                    yield Violation(4, "landed and denied", write.id, text, (write.token,))


def _ended_by_crash(events: list[EventRow], token: int) -> bool:
    """A crash ended the job, and before an operator began it anew that end was written down.

    The two lines tell of one moment: the sweep that found the lease expired.
    """
    ends = [
        e for e in events if e.token == token and (e.kind in PUT_BACK or e.kind in ENDS.values())
    ]
    if not any(e.kind == "replayed" and e.token == token + 1 for e in events):
        return False
    match sorted(ends, key=lambda e: e.kind != "crashed"):
        case [EventRow(kind="crashed") as crash, EventRow(kind="cancelled" | "failed") as end]:
            charged = end.kind == "cancelled" or bool(crash.detail.get("charged"))
            together = abs(end.at - crash.at) <= SLACK_SECONDS
            return charged and together and end.worker == crash.worker
    return False


def _repeats(books: Books, write: Write) -> bool:
    """Did the same worker send this settlement before, without learning what came of it?"""
    return write.op == "settle" and any(
        before.answer == "unknown" and before.worker == write.worker and before.began < write.began
        for before in books.settlements[write.id, write.token]
    )


def one_effect_per_success(books: Books, effects: Mapping[int, int]) -> Violations:
    """5: one transactional effect per succeeded job, none otherwise."""
    for id, row in books.rows.items():
        count = effects.get(id, 0)
        if row.state == "succeeded" and count == 0:
            yield Violation(5, "effect missing", id)
        if row.state == "succeeded" and count > 1:
            yield Violation(5, "effect twice", id, f"{count} times")
        if row.state != "succeeded" and count > 0:
            yield Violation(5, "effect without success", id, f"it is {row.state}")
    for id in set(effects) - set(books.rows):
        yield Violation(5, "effect without success", id, "there is no such job")


def every_kill_is_counted(books: Books, blows: Sequence[Blow]) -> Violations:
    """8: the crash count equals the kills seen: what a killed process held is on record as lost."""
    killed = {blow.pid: blow.at for blow in blows if blow.kind == "kill"}
    for id, grants in books.grants.items():
        for grant in grants:
            at = killed.get(books.pids.get(grant.worker, 0), 0.0)
            kinds = {event.kind for event in books.events[id] if event.token == grant.token}
            said = books.settlements.get((id, grant.token))
            if grant.ended < at and not said and "crashed" not in kinds:
                text = f"{grant.worker} was killed with token {grant.token} in its hands"
                yield Violation(8, "crash missing", id, text, (grant.token,))


def final_is_final(books: Books) -> Violations:
    """7: an acknowledged end stays, and nothing that has ended is handed out."""
    for (id, token), writes in books.settlements.items():
        for write in writes:
            row = books.rows.get(id)
            if write.answer == "landed" and row is not None and _is_lost(books, write, row):
                text = f"{write.outcome} of token {token} landed; its row: {row.state} {row.token}"
                yield Violation(7, "end lost", id, text, (token, token + 1))
    for id, grants in books.grants.items():
        row = books.rows.get(id)
        if row is not None and row.finished_at is not None:
            for grant in grants:
                if grant.claimed_at > row.finished_at + SLACK_SECONDS:
                    late = grant.claimed_at - row.finished_at
                    yield Violation(7, "rose from the dead", id, f"claimed {late:.3f} s after")


def replays_were_asked_for(books: Books, atomic: bool) -> Violations:
    """7: only an operator begins anew what has ended: the job, or a node above or beside it."""
    flows = {id: flow for flow in books.final.workflows for id in flow.nodes}
    asked: dict[int, float] = {}
    for call in (*books.records.of("replay"), *books.records.of("replay_many")):
        if isinstance(call.answer, Answered) or not call.is_known:
            for id, _ in call.sent.jobs:
                asked[id] = min(call.began, asked.get(id, NEVER))
    for id, events in books.events.items():
        able = {id, *flows[id].nodes} if id in flows else {id}
        first = min((asked[each] for each in able if each in asked), default=NEVER)
        for event in events:
            too_early = atomic and books.mono(event.at) < first - SLACK_SECONDS
            if event.kind == "replayed" and (too_early or first == NEVER):
                text = f"token {event.token}"
                yield Violation(7, "replayed by nobody", id, text, (event.token - 1, event.token))


def no_cancelled_job_goes_on(books: Books) -> Violations:
    """7: a running job that was asked to cancel is not handed out again, unless it is replayed.

    Nor is it put in line: the next claim would end it, but its key, its permit at a gate and those
    who wait for it would wait for that claim.
    """
    for id, events in books.events.items():
        asked = [event.token for event in events if event.kind == "cancel requested"]
        replayed = {event.token for event in events if event.kind == "replayed"}
        for grant in books.grants.get(id, ()) if asked else ():
            last = max((token for token in asked if token < grant.token), default=None)
            if last is not None and not any(last < token <= grant.token for token in replayed):
                text, both = f"token {grant.token}", (last, grant.token)
                yield Violation(7, "cancelled and handed out", id, text, both)
        for token in sorted(set(asked)) if id in books.rows else ():
            if books.rows[id].token > token and token + 1 not in replayed:
                text, both = f"asked under token {token}", (token, token + 1)
                yield Violation(7, "cancelled and put in line", id, text, both)


def _is_lost(books: Books, write: Write, row: JobRow) -> bool:
    if row.token > write.token:  # put in line again: by this settlement, or by an operator
        events = {e.kind for e in books.events[write.id] if e.token == write.token}
        return not events & (PUT_BACK - {"crashed"} | OPERATED)
    if row.token < write.token or row.is_live:
        return True
    return write.outcome in ENDS and row.state != ENDS[write.outcome]


def attempts_add_up(books: Books, alone: Collection[Pair] = ()) -> Violations:
    """8: attempts <= max_attempts; both counters equal a recount; nothing fails without a run."""
    ran = {run.id for run in books.records.runs} | {id for id, _ in books.settlements}
    # A start that was recorded counts, also if its worker died before the answer came.
    ran |= {id for call in books.records.of("start_once") for id, _ in call.sent.jobs}
    for id, row in books.rows.items():
        if row.attempts > row.max_attempts:
            text = f"{row.attempts} of {row.max_attempts}"
            yield Violation(8, "too many attempts", id, text)
        if row.state == "failed" and id not in ran:
            charged_for = {(id, e.token) for e in books.since_replay(id) if e.detail.get("charged")}
            if not charged_for or not charged_for <= set(alone):
                yield Violation(8, "failed without a run", id, f"reason: {row.reason}")
        story = books.since_replay(id)
        crashed = [event for event in story if event.kind == "crashed"]
        if row.crashes != len(crashed):
            text = f"{row.crashes} in its row, {len(crashed)} on record"
            yield Violation(8, "crashes do not add up", id, text)
        charged = sum(e.kind == "retried" for e in story)
        charged += sum(bool(e.detail.get("charged")) for e in crashed)
        ended_by_crash = any(event.token == row.token for event in crashed)
        last = {0} if row.is_live or ended_by_crash else {0, 1} if row.state == "cancelled" else {1}
        if row.state == "skipped" and row.attempts == charged:
            continue  # skipped with its parents, without an attempt
        if row.attempts - charged not in last:
            text = f"{row.attempts} in its row, {charged} before the last on record, {row.state}"
            yield Violation(8, "attempts do not add up", id, text)


def who_has_started_is_charged(books: Books) -> Violations:
    """8: a job that a heartbeat reported as started is charged when its worker dies."""
    runs = {(run.id, run.token): run for run in books.records.runs}
    beats: dict[int, list[float]] = defaultdict(list)
    for call in books.records.of("extend"):
        if isinstance(call.answer, Answered):
            for lease in set(call.sent.leases) - {*call.answer.lost, *call.answer.busy}:
                beats[lease].append(call.began)
    for id, grants in books.grants.items():
        for grant in grants:
            run = runs.get((id, grant.token))
            reported = run is not None and any(at > run.began for at in beats[grant.lease])
            for event in books.events[id] if reported else ():
                crashed = event.kind == "crashed" and event.token == grant.token
                if crashed and not event.detail.get("charged"):
                    text = f"token {grant.token} had started"
                    yield Violation(8, "crash not charged", id, text, (grant.token,))


def keys_are_unique(books: Books, atomic: bool = False) -> Violations:
    """9: never two live jobs with one key, except when it is held only until the start.

    A transaction that takes its time may have read the clock before the key was given back. Then
    only what others saw proves that a job was there: an answer, a claim, its end.
    """
    answered: dict[int, float] = {}
    for told_of in books.enqueues():
        if told_of.created and told_of.call.is_known and told_of.call.answer is not None:
            answered[told_of.id] = told_of.call.answer.wall
    held: dict[tuple[str, str, str], list[tuple[float, float, float, int]]] = defaultdict(list)
    for row in books.final.jobs:
        if row.key is not None and row.key.until != "started":
            for began, ended in _lives(books, row):
                seen = [answered.get(row.id, NEVER), ended]
                seen += [g.claimed_at for g in books.grants.get(row.id, ()) if g.claimed_at > began]
                there_at = began if atomic or began > row.created_at else min(seen)
                held[row.key.tenant, row.key.scope, row.key.key].append(
                    (began, ended, there_at, row.id)
                )
    for (_, _, key), lives in held.items():
        for (_, ended, _, first), (_, _, there_at, second) in pairwise(sorted(lives)):
            if there_at < ended - SLACK_SECONDS or ended == NEVER:
                text = f"{key!r}, also by {first}"
                yield Violation(9, "key held twice", second, text, others=(first,))


def _lives(books: Books, row: JobRow) -> Iterator[tuple[float, float]]:
    """From when to when a job was live: once, and again after each replay."""
    events = books.events[row.id]
    began = row.created_at
    for replayed in sorted((e for e in events if e.kind == "replayed"), key=lambda e: e.token):
        ends = [e.at for e in events if e.kind in ENDS.values() and e.token < replayed.token]
        yield began, max(ends, default=replayed.at)
        began = replayed.at
    yield began, NEVER if row.finished_at is None else row.finished_at


def nothing_is_left(books: Books) -> Violations:
    """13: after the faults stop, the backlog empties."""
    for id, row in books.rows.items():
        if row.is_live:
            yield Violation(13, "backlog left", id, f"token {row.token}, {row.reason}")


def recovery_is_prompt(books: Books, seconds: float) -> Violations:
    """13: the job of a dead worker is claimed again soon after its lease has ended."""
    for id, grants in books.grants.items():
        crashed = {event.token for event in books.events[id] if event.kind == "crashed"}
        for first, second in pairwise(grants):
            if first.token in crashed:
                _, most = books.deadlines[first.lease]
                late = second.claimed_at - most
                if late > seconds:
                    text = f"{late:.3f} s after the lease of token {first.token}"
                    both = (first.token, second.token)
                    yield Violation(13, "late recovery", id, text, both)


def sweeps_are_prompt(books: Books, seconds: float, quiet_at: float) -> Violations:
    """13: after the faults stop, what is on a lease is taken back soon after it has ended."""
    for id, grants in books.grants.items():
        for grant in grants:
            _, most = books.deadlines[grant.lease]
            for event in books.events[id]:
                if event.token == grant.token and event.kind == "crashed":
                    late = event.at - max(most, quiet_at)
                    if late > seconds:
                        text = f"token {grant.token}, {late:.3f} s after its lease"
                        yield Violation(13, "swept late", id, text, (grant.token,))


def main(folder: str, url: str) -> None:
    """Check, and tell what is wrong, and what could not be asked."""
    expected = expected_of(Path(folder), url)
    missing = [*unasked(expected)]
    try:
        books = check(Path(folder), url, expected)
    except AssertionError as error:
        sys.exit(str(error))
    which = "no invariant that was asked for" if missing else "no invariant"
    print(f"{len(books.rows):,} jobs, {len(books.records.calls):,} calls: {which} is broken")
    for line in missing:
        print(f"not asked: {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
