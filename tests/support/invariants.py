"""The checker: does what happened break an invariant of the worker?

Each check yields violations by name. Nothing here knows how the worker or the store does its work;
it knows what was sent, what was answered, and what the database holds in the end. Where an answer
is missing, both ends of the story are allowed.

1   lost job, job twice                   5   effect missing, effect twice, effect without success
2   ghost, run without a claim            6   run twice, unexplained run, unexplained crash
3   token granted twice, token fell,      7   end lost, rose from the dead,
    two valid leases, swept early             cancelled and handed out, cancelled and put in line
4   stale write landed, settled twice,    8   too many attempts, attempts do not add up,
    landed and denied                         crashes do not add up, failed without a run,
                                              crash not charged
9   key held twice                        13  backlog left, late recovery, swept late
11  tick with two jobs, tick missing      15  see audit.py
12  child before its parents, child without its parents    14  tenant crossed: see relations.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from tenure.worker.recorder import Answered, Key
from tests.support.audit import audit
from tests.support.history import Call, EventRow, Final, JobRow, Records, read_final, read_records

SLACK_SECONDS = 0.02
"""How far the clocks of a process and of the database may be apart: one host, one clock."""
IN_FLIGHT_SECONDS = 1.0
"""How long after its sender's death the database may still have worked on a heartbeat."""

Pair = tuple[int, int]
ENDS = {"succeed": "succeeded", "fail": "failed", "skip": "skipped", "abort": "cancelled"}
PUT_BACK = {"retried", "snoozed", "released", "crashed"}
OPERATED = {"freed", "unheld", "moved", *ENDS.values()}


@dataclass(frozen=True)
class Violation:
    """A broken invariant: its number in the design, what happened, to which job."""

    invariant: int
    name: str
    job: int | None
    text: str = ""

    def __str__(self) -> str:
        return f"{self.name} (invariant {self.invariant}): job {self.job}: {self.text}"


Violations = Iterator[Violation]


@dataclass(frozen=True)
class Grant:
    """One job of a claim that was answered."""

    id: int
    token: int
    worker: str
    lease: int
    claimed_at: float
    began: float
    ended: float


@dataclass(frozen=True)
class Write:
    """One job of a settlement, a progress report or a checkpoint."""

    id: int
    token: int
    worker: str
    op: str
    outcome: str
    answer: str
    began: float


@dataclass(frozen=True)
class Expected:
    """What the test itself knows.

    `effects`: how often each job's transactional effect is there. `disturbed`: the processes that
    were killed or stopped; no other may lose a lease. `recovery_seconds`: how long after the end of
    its lease a job may wait for its next claim. `swept_seconds`: how long after the end of a lease
    its jobs may wait for a sweep, from `quiet_at` on. `drained`: nothing may be left. `complete`:
    the schedules of which no tick may be missing, with the seconds between two ticks.
    `alone`: the attempts that the store put on a lease of their own. Such a job is charged when its
    worker dies, or never learns of its claim, before the handler starts, because nobody can tell.
    So it may fail without a run. No other may.
    """

    effects: Mapping[int, int] | None = None
    disturbed: Collection[int] | None = None
    recovery_seconds: float | None = None
    swept_seconds: float | None = None
    quiet_at: float = 0.0
    alone: Collection[Pair] = ()
    drained: bool = True
    complete: Mapping[str, float] = field(default_factory=dict)


class Books:
    """The records and the rows, sorted by what the checks ask for."""

    def __init__(self, records: Records, final: Final) -> None:
        self.records = records
        self.final = final
        self.rows = {row.id: row for row in final.jobs}
        self.events: dict[int, list[EventRow]] = defaultdict(list)
        for event in final.events:
            self.events[event.id].append(event)

    @cached_property
    def grants(self) -> dict[int, list[Grant]]:
        """What each job was handed out as, in the order of the database's time."""
        found: dict[int, list[Grant]] = defaultdict(list)
        for call in self.records.of("claim"):
            for lease in call.answer.granted if isinstance(call.answer, Answered) else ():
                for id, token in lease.jobs:
                    worker = call.sent.worker or ""
                    at = (lease.claimed_at, call.began, call.ended)
                    found[id].append(Grant(id, token, worker, lease.id, *at))
        for grants in found.values():
            grants.sort(key=lambda grant: (grant.claimed_at, grant.token))
        return found

    @cached_property
    def writes(self) -> list[Write]:
        """Every fenced write that was sent."""
        found = []
        for call in self.records.calls:
            if call.sent.op in ("settle", "report_progress", "save_checkpoint", "record_step"):
                sent = call.sent
                outcomes = sent.outcomes or [""] * len(sent.jobs)
                for (id, token), word, answer in zip(
                    sent.jobs, outcomes, call.answers, strict=True
                ):
                    found.append(
                        Write(id, token, sent.worker or "", sent.op, word, answer, call.began)
                    )
        return found

    @cached_property
    def settlements(self) -> dict[Pair, list[Write]]:
        """The settlements of each attempt, whatever was answered."""
        found: dict[Pair, list[Write]] = defaultdict(list)
        for write in self.writes:
            if write.op == "settle":
                found[write.id, write.token].append(write)
        return found

    @cached_property
    def deadlines(self) -> dict[int, tuple[float, float]]:
        """Of each lease: until when it was valid at least, and at most."""
        found: dict[int, tuple[float, float]] = {}
        for call in self.records.of("claim"):
            for lease in call.answer.granted if isinstance(call.answer, Answered) else ():
                found[lease.id] = (lease.expires_at, lease.expires_at)
        for call in self.records.of("extend"):
            seconds = call.sent.lease_seconds or 0.0
            for lease_id in set(call.sent.leases) & set(found):
                least, most = found[lease_id]
                if not isinstance(call.answer, Answered):
                    most = max(most, call.sent.wall + IN_FLIGHT_SECONDS + seconds)
                elif lease_id not in (*call.answer.lost, *call.answer.busy):
                    least = max(least, call.sent.wall + seconds)
                    most = max(most, call.answer.wall + seconds)
                found[lease_id] = (least, most)
        return found

    def enqueues(self) -> Iterator[tuple[Call, int, bool, Key | None]]:
        """Every answer to an enqueue or a firing: the id, whether it was created, and its key."""
        for call in (*self.records.of("enqueue"), *self.records.of("fire")):
            if isinstance(call.answer, Answered):
                keys = call.sent.keys or [None] * len(call.answer.enqueued)
                for (id, created), key in zip(call.answer.enqueued, keys, strict=True):
                    yield call, id, created, key

    def since_replay(self, id: int) -> list[EventRow]:
        """The story of a job since an operator last began it anew."""
        events = self.events[id]
        begun = max((e.token for e in events if e.kind == "replayed"), default=0)
        return [event for event in events if event.token >= begun]


def check(folder: Path, url: str, expected: Expected | None = None) -> Books:
    """Assert every invariant, over all records in the folder and the database behind the URL."""
    audit(url)
    books = Books(read_records(folder), read_final(url))
    broken = list(violations(books, expected or Expected()))
    assert not broken, told(books, broken)
    return books


def told(books: Books, broken: list[Violation]) -> str:
    """What is wrong, each with the story of its job; the shortest story first."""
    from tests.support.story import story_of

    stories = [(violation, story_of(books, violation.job)) for violation in broken]
    stories.sort(key=lambda each: len(each[1]))
    return "\n".join("\n    ".join([str(violation), *story]) for violation, story in stories[:20])


def violations(books: Books, expected: Expected) -> Violations:
    """Everything that is wrong."""
    from tests.support import relations  # it builds on what stands here

    yield from no_lost_job(books)
    yield from no_ghost(books)
    yield from one_lease_at_a_time(books)
    yield from only_the_newest_writes(books)
    yield from no_landing_is_denied(books)
    if expected.effects is not None:
        yield from one_effect_per_success(books, expected.effects)
    yield from every_run_is_explained(books)
    if expected.disturbed is not None:
        yield from every_crash_is_explained(books, expected.disturbed)
    yield from final_is_final(books)
    yield from no_cancelled_job_goes_on(books)
    yield from who_has_started_is_charged(books)
    yield from attempts_add_up(books, expected.alone)
    yield from keys_are_unique(books)
    if expected.drained:
        yield from nothing_is_left(books)
    if expected.recovery_seconds is not None:
        yield from recovery_is_prompt(books, expected.recovery_seconds)
    if expected.swept_seconds is not None:
        yield from sweeps_are_prompt(books, expected.swept_seconds, expected.quiet_at)
    yield from relations.violations(books, expected)


def no_lost_job(books: Books) -> Violations:
    """1: every acknowledged enqueue is live or in history, exactly once."""
    times = Counter(row.id for row in books.final.jobs)
    for id, count in times.items():
        if count > 1:
            yield Violation(1, "job twice", id, f"{count} rows")
    deleted = {id for call in books.records.of("delete") for id, _ in call.sent.jobs}
    for call, id, _, _ in books.enqueues():
        if call.is_known and id not in times and id not in deleted:
            yield Violation(1, "lost job", id, f"acknowledged to process {call.pid}, and gone")


def no_ghost(books: Books) -> Violations:
    """2: nothing runs that was not enqueued, nor without a claim of its worker."""
    known = {id for _, id, _, _ in books.enqueues()}
    known |= {tick.job for tick in books.final.ticks if tick.job is not None}  # fired, unanswered
    unanswered = sum(
        call.sent.count
        for call in books.records.of("enqueue")
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
                yield Violation(3, "token granted twice", id, f"token {token}, {count} times")
        for first, second in pairwise(grants):
            if second.token < first.token:
                yield Violation(3, "token fell", id, f"from {first.token} to {second.token}")
            elif first.token < second.token and not _ended_before(books, first, second):
                text = f"token {second.token} while {first.worker} held {first.token}"
                yield Violation(3, "two valid leases", id, text)
        if id in books.rows and books.rows[id].token < max(grant.token for grant in grants):
            yield Violation(3, "token fell", id, f"its row says {books.rows[id].token}")
        for grant in grants:
            least, _ = books.deadlines[grant.lease]
            for event in books.events[id]:
                if event.token == grant.token and event.kind == "crashed":
                    early = least - event.at
                    if early > SLACK_SECONDS:
                        yield Violation(3, "swept early", id, f"{early:.3f} s before the deadline")


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
                yield Violation(4, "stale write landed", write.id, text)
    for (id, token), writes in books.settlements.items():
        landed = [write.worker for write in writes if write.answer == "landed"]
        if len(landed) > 1:
            yield Violation(4, "settled twice", id, f"token {token} by {', '.join(landed)}")
    for id, events in books.events.items():
        ends = Counter(e.token for e in events if e.kind in PUT_BACK or e.kind in ENDS.values())
        for token, count in ends.items():
            if count > 1 and not _ended_by_crash(events, token):
                yield Violation(4, "settled twice", id, f"{count} ends of token {token} on record")


def no_landing_is_denied(books: Books) -> Violations:
    """4: who repeats a settlement that had landed is told so."""
    for write in books.writes:
        if write.op == "settle" and write.answer == "stale":
            for event in books.events[write.id]:
                ours = event.token == write.token and event.worker == write.worker
                if ours and event.kind in PUT_BACK - {"crashed"}:
                    text = f"{write.outcome} of token {write.token} by {write.worker}"
                    yield Violation(4, "landed and denied", write.id, text)


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


def every_run_is_explained(books: Books) -> Violations:
    """6: one execution per token, and each token but the last has a reason why it ended."""
    for (id, token), count in Counter((run.id, run.token) for run in books.records.runs).items():
        if count > 1:
            yield Violation(6, "run twice", id, f"{count} handlers under token {token}")
    for id, row in books.rows.items():
        explained = {e.token for e in books.events[id] if e.kind in PUT_BACK | OPERATED}
        for token in range(1, row.token):
            if token not in explained:
                yield Violation(6, "unexplained run", id, f"why did token {token} end?")


def every_crash_is_explained(books: Books, disturbed: Collection[int]) -> Violations:
    """6: only who was killed or stopped loses a lease."""
    for event in books.final.events:
        if event.kind == "crashed" and event.worker is not None:
            pid = books.records.pid_of(event.worker)
            if pid not in disturbed:
                text = f"{event.worker} of process {pid} lost token {event.token} undisturbed"
                yield Violation(6, "unexplained crash", event.id, text)


def final_is_final(books: Books) -> Violations:
    """7: an acknowledged end stays, and nothing that has ended is handed out."""
    for (id, token), writes in books.settlements.items():
        for write in writes:
            row = books.rows.get(id)
            if write.answer == "landed" and row is not None and _is_lost(books, write, row):
                text = f"{write.outcome} of token {token} landed; its row: {row.state} {row.token}"
                yield Violation(7, "end lost", id, text)
    for id, grants in books.grants.items():
        row = books.rows.get(id)
        if row is not None and row.finished_at is not None:
            for grant in grants:
                if grant.claimed_at > row.finished_at + SLACK_SECONDS:
                    late = grant.claimed_at - row.finished_at
                    yield Violation(7, "rose from the dead", id, f"claimed {late:.3f} s after")


def no_cancelled_job_goes_on(books: Books) -> Violations:
    """7: a running job that was asked to cancel is not handed out again, unless it is replayed.

    Nor is it put in line: the next claim would end it, but its key, its place at a gate and those
    who wait for it would wait for that claim.
    """
    for id, events in books.events.items():
        asked = [event for event in events if event.kind == "cancel requested"]
        for grant in books.grants.get(id, ()) if asked else ():
            before = [event for event in asked if event.token < grant.token]
            again = {event.token for event in events if event.kind == "replayed"}
            if before and not any(before[-1].token < token <= grant.token for token in again):
                yield Violation(7, "cancelled and handed out", id, f"token {grant.token}")
        replayed = {event.token for event in events if event.kind == "replayed"}
        for token in {event.token for event in asked} if id in books.rows else ():
            if books.rows[id].token > token and token + 1 not in replayed:
                yield Violation(7, "cancelled and put in line", id, f"asked under token {token}")


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
                    yield Violation(8, "crash not charged", id, f"token {grant.token} had started")


def keys_are_unique(books: Books) -> Violations:
    """9: never two live jobs with one key, except when it is held only until the start."""
    alike: dict[Key, list[tuple[JobRow, float]]] = defaultdict(list)
    for call, id, created, key in books.enqueues():
        row = books.rows.get(id)
        if key is None or key.until == "started" or row is None or not created:
            continue
        if call.is_known and call.answer is not None:
            alike[key].append((row, call.answer.wall))
    for key, holders in alike.items():
        holders.sort(key=lambda held: held[0].created_at)  # ids come in blocks
        for (first, _), (second, there_at) in pairwise(holders):
            if first.finished_at is None or there_at < first.finished_at - SLACK_SECONDS:
                yield Violation(9, "key held twice", second.id, f"{key.key!r}, also by {first.id}")


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
                    yield Violation(13, "late recovery", id, text)


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
                        yield Violation(13, "swept late", id, text)
