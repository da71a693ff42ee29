"""The store as the design tells it, in dicts and lists: no SQL, no positions, no transactions.

`Model` has the operations of `tenure.store.Store` and answers with the same records, under ids of
its own. A line is a list; standing at its end is `append`. What a job's end does to attempts, and
who is charged for a crash, is written out here once more, so that the code is checked and not
copied. Where one operation puts several jobs in line, they stand in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from tenure.errors import (
    FeedMissed,
    InvalidInput,
    JobGone,
    JobNotFound,
    KeyTaken,
    ReaderNotFound,
    StepConflict,
    TenantMismatch,
)
from tenure.rules.claim import Lease
from tenure.rules.ends import Ended
from tenure.rules.job import (
    Beat,
    Enqueued,
    Event,
    Job,
    Json,
    NewJob,
    NewStep,
    Progress,
    State,
    Step,
    Until,
)
from tenure.rules.lifecycle import AT_MOST_ONCE, Outcome, Settlement
from tenure.rules.limits import FAR_FUTURE, MAX_SECONDS
from tenure.rules.notes import NoteValue
from tenure.store import LANDED, STALE, Answer, PausedQueue, Swept
from tests.model.books import (
    GOES_ON,
    Block,
    Books,
    Follower,
    Held,
    Hold,
    JobId,
    Key,
    Lane,
    LeaseId,
    Settled,
    Where,
    Wish,
    Work,
    claimed,
    not_run_again,
)

WEEK = timedelta(days=7)
_LEASE_LOST = '{"type":"LeaseLost","message":"the worker died or stopped renewing its lease"}'
_UNKNOWN_TASK = '{"type":"UnknownTask","message":"no worker has had the task for too long"}'
_NO_TIME = timedelta(0)
Became = dict[tuple[int, int], State]
"""Ends that a settlement does not tell, by id and token."""
_REQUEUED = {Outcome.RETRY: "retried", Outcome.SNOOZE: "snoozed", Outcome.RELEASE: "released"}


class Model(Books):
    """Jobs in memory. Every operation takes the time as `now`."""

    # Enqueue ----------------------------------------------------------------------------------

    def enqueue(
        self, wishes: Sequence[Wish], *, now: datetime, tenant: str | None = None
    ) -> list[Enqueued]:
        """All of these jobs, or none."""
        wishes = [self._stamped(wish, tenant) for wish in wishes]
        keys = dict(self.keys)
        answers: list[Enqueued] = []
        created: list[Work] = []
        number = self.last_job
        for wish in wishes:
            work = Work(
                JobId(number + 1), wish.job, wish.job.queue, wish.job.priority, created_at=now
            )
            holder = self._take_key(keys, work, now, may_retake=True)
            if holder.id != work.id:
                same = holder.meant == (work.job.task, work.job.args)
                gone = holder.id not in self.jobs and holder.id <= self.last_job
                answers.append(Enqueued(holder.id, created=False, same_args=same, gone=gone))
                continue
            number += 1
            created.append(work)
            answers.append(Enqueued(work.id))
            for parent in wish.parents:
                known = self.jobs.get(parent)
                if known is None or known.job.tenant != work.job.tenant:
                    raise JobNotFound
                work.parents[parent] = known.final
        self.keys, self.last_job = keys, number
        for work in created:
            self.jobs[work.id] = work
            self._place_new(work, now)
        self._free([work.id for work in created if work.parents], now)
        return self._replace_holders(wishes, answers, now)

    def _replace_holders(
        self, wishes: list[Wish], answers: list[Enqueued], now: datetime
    ) -> list[Enqueued]:
        """Waiting jobs are changed in the order of their numbers."""
        replaced = list(answers)
        order = sorted(range(len(wishes)), key=lambda n: (answers[n].id, n))
        for n in order:
            unique = wishes[n].job.unique
            if answers[n].created or unique is None or unique.on_conflict is None:
                continue
            if self._replace(self.jobs.get(JobId(answers[n].id)), wishes[n].job, now):
                replaced[n] = msgspec.structs.replace(answers[n], replaced=True)
        changed = {each.id for each in replaced if each.replaced}
        for n, each in enumerate(replaced):  # the holder as it is now
            if not each.created and each.id in changed:
                wish, holder = wishes[n].job, self.jobs[JobId(each.id)].job
                same = (wish.task, wish.args) == (holder.task, holder.args)
                replaced[n] = msgspec.structs.replace(each, same_args=same)
        return replaced

    def _replace(self, work: Work | None, new: NewJob, now: datetime) -> bool:
        assert new.unique is not None
        rule = new.unique.on_conflict
        assert rule is not None
        if work is None or not work.live or work.where is Where.LEASE or work.job.task != new.task:
            return False
        changes = rule.args and work.job.args != new.args
        if not (changes or rule.postpone):
            return False
        had_ticket = self._leave_line(work)
        if changes:
            work.job = msgspec.structs.replace(work.job, args=new.args, metadata=new.metadata)
            assert work.key is not None
            self.keys[work.key].meant = (new.task, new.args)
        due = work.due_at
        if rule.postpone:
            due = new.due_at or now + timedelta(seconds=new.delay_seconds or 0)
            if rule.postpone_at_most_seconds is not None:
                most = work.created_at + timedelta(seconds=rule.postpone_at_most_seconds)
                due = min(due, most)
            within, since = new.start_within_seconds, max(due, now)
            work.start_by = None if within is None else since + timedelta(seconds=within)
            work.job = msgspec.structs.replace(work.job, finish_by=new.finish_by)
        work.story.append(Event(now, "replaced", work.token))
        if had_ticket:
            self._put_in_line(work, now, due, "replaced")
        else:
            work.due_at = due if due is not None and due > now else None
        return True

    @staticmethod
    def _stamped(wish: Wish, tenant: str | None) -> Wish:
        if tenant is None or wish.job.tenant == tenant:
            return wish
        if wish.job.tenant:
            raise TenantMismatch
        return Wish(msgspec.structs.replace(wish.job, tenant=tenant), wish.parents)

    def _place_new(self, work: Work, now: datetime) -> None:
        due = work.job.due_at
        if work.job.delay_seconds is not None:
            due = now + timedelta(seconds=work.job.delay_seconds)
        work.due_at = due if due is not None and due > now else None
        if work.job.start_within_seconds is not None:
            work.start_by = (work.due_at or now) + timedelta(seconds=work.job.start_within_seconds)
        if work.parents:
            work.where = Where.WAITING
            for parent in work.parents:
                self.jobs[parent].has_children |= self.jobs[parent].live
        elif work.due_at is not None:
            work.where = Where.DUE
        else:
            self._append(work)

    def _take_key(
        self, keys: dict[Key, Hold], work: Work, now: datetime, *, may_retake: bool = False
    ) -> Hold:
        """The holder of the job's key: the job itself when it was free, or when it has none."""
        unique = work.job.unique
        mine = Hold(work.id, Until.FINISHED, (work.job.task, work.job.args), None)
        if unique is None or work.key is None:
            return mine
        mine.until = unique.until
        if unique.period_seconds is not None:
            mine.expires_at = now + timedelta(seconds=unique.period_seconds)
        found = keys.get(work.key)
        failed = found is not None and found.outcome not in (None, State.SUCCEEDED)
        retaken = may_retake and unique.retake_failed and failed
        if (
            found is not None
            and found.id != work.id
            and not retaken
            and not self._key_is_over(found, now)
        ):
            return found
        keys[work.key] = mine
        return mine

    def _key_is_over(self, key: Hold, now: datetime) -> bool:
        return key.expires_at is not None and key.expires_at <= now and not self._is_live(key.id)

    def _is_live(self, id: JobId) -> bool:
        return id in self.jobs and self.jobs[id].live

    # Lines ------------------------------------------------------------------------------------

    def _append(self, work: Work) -> None:
        work.where = Where.LINE
        self.lines[work.queue, work.priority].append((work.id, work.token))

    def _leave_line(self, work: Work) -> bool:
        """Take the job's ticket away; False when it has none."""
        if work.where is Where.LINE:
            self.lines[work.queue, work.priority].remove((work.id, work.token))
        return work.where in (Where.LINE, Where.DUE)

    def _put_in_line(
        self, work: Work, now: datetime, due_at: datetime | None, reason: str | None
    ) -> None:
        """A new ticket at the end of the line, under the next token; a held job is parked."""
        work.token += 1
        work.queued_at = now
        if not (work.held and work.reason is not None):  # the reason of a hold stays
            work.reason = reason
        work.due_at = due_at if due_at is not None and due_at > now else None
        if work.held:
            work.where = Where.HELD
        elif work.due_at is not None:
            work.where = Where.DUE
        else:
            self._append(work)

    def promote(self, *, most: int, now: datetime) -> int:
        due = sorted(
            (work.due_at, work.id) for work in self.jobs.values()
            if work.where is Where.DUE and work.due_at is not None and work.due_at <= now
        )  # fmt: skip
        for _, id in due[:most]:
            work = self.jobs[id]
            work.queued_at, work.due_at = work.due_at, None
            self._append(work)
        return len(due[:most])

    def add_void_ticket(self, lane: Lane, id: JobId, token: int) -> None:
        """A ticket whose job is gone or has moved on, as a fault would leave it."""
        self.lines[lane].append((id, token))

    def void_tickets(self) -> int:
        """How many tickets belong to no live attempt."""
        return sum(not self._has_token(*ticket) for line in self.lines.values() for ticket in line)

    def queues_with_suspects(self) -> set[str]:
        """Queues in which a job with a crash on record stands in line."""
        return {w.queue for w in self.jobs.values() if w.where is Where.LINE and w.crashes}

    def _has_token(self, id: JobId, token: int) -> bool:
        return self._is_live(id) and self.jobs[id].token == token

    # Claim and heartbeat ----------------------------------------------------------------------

    def claim(
        self,
        worker: str,
        queues: Mapping[str, int],
        *,
        lease_seconds: float,
        now: datetime,
        tasks: Collection[str] | None = None,
    ) -> list[Lease]:
        granted: list[Work] = []
        while not granted:
            taken = self._take_from(queues) if tasks is None else self._take_of(queues, tasks)
            if not taken:
                return []
            met = [self.jobs[id] for id, token in taken if self._has_token(id, token)]
            self._skip_late([work for work in met if self._is_late(work, now)], now)
            granted = [work for work in met if work.live]
        for work in granted:
            work.where = Where.LEASE
            if work.job.unique is not None and work.job.unique.until is Until.STARTED:
                self._drop_key(work)
        trusted = [work for work in granted if not work.crashes]
        blocks = [trusted] if trusted else []
        blocks += [[work] for work in granted if work.crashes]
        until = now + timedelta(seconds=lease_seconds)
        return [self._grant(worker, block, now, until) for block in blocks]

    @staticmethod
    def _is_late(work: Work, now: datetime) -> bool:
        """It was not started in time."""
        return work.start_by is not None and work.start_by < now and work.attempts == 0

    def _skip_late(self, late: list[Work], now: datetime) -> None:
        for work in late:
            self._end(work, State.SKIPPED, "expired", now)
            self.count(work, State.SKIPPED)
        self._let_go(late, now)

    def expire(self, *, most: int, now: datetime) -> int:
        """Page by page: a child of a job of an earlier page is skipped with its parent."""
        count, after = 0, (now - timedelta(days=999), 0)
        while True:
            late = sorted(
                (work.start_by, work.id) for work in self.jobs.values()
                if work.live and work.start_by is not None and self._is_late(work, now)
            )  # fmt: skip
            page = [each for each in late if each > after][:most]
            if not page:
                return count
            after = page[-1]
            waiting = [self.jobs[id] for _, id in page if self.jobs[id].where is not Where.LEASE]
            for work in waiting:
                self._leave_line(work)
            self._skip_late(waiting, now)
            count += len(waiting)

    def _take_from(self, queues: Mapping[str, int]) -> list[tuple[JobId, int]]:
        """Tickets in order; of jobs with a crash on record only the first, in all queues."""
        taken: list[tuple[JobId, int]] = []
        suspect_taken = False
        for name, most in queues.items():
            lanes = sorted(lane for lane in self.lines if lane[0] == name)
            room = 0 if name in self.paused else most
            for lane in lanes:
                for ticket in list(self.lines[lane]):
                    suspect = self._has_token(*ticket) and self.jobs[ticket[0]].crashes > 0
                    if room == 0 or (suspect and suspect_taken):
                        continue
                    suspect_taken = suspect_taken or suspect
                    self.lines[lane].remove(ticket)
                    taken.append(ticket)
                    room -= 1
        return taken

    def _take_of(
        self, queues: Mapping[str, int], tasks: Collection[str]
    ) -> list[tuple[JobId, int]]:
        """Tickets of these tasks, from one queue; if there are none, the void ones."""
        [(name, most)] = queues.items()
        if name in self.paused:
            return []
        lanes = sorted(lane for lane in self.lines if lane[0] == name)
        line = [(lane, ticket) for lane in lanes for ticket in self.lines[lane]]
        live = [spot for spot in line if self._has_token(*spot[1])]
        wanted = [spot for spot in live if self.jobs[spot[1][0]].job.task in tasks]
        suspects = [spot for spot in wanted if self.jobs[spot[1][0]].crashes]
        wanted = [spot for spot in wanted if spot not in suspects[1:]][:most]
        chosen = wanted or [spot for spot in line if spot not in live]
        for lane, ticket in chosen:
            self.lines[lane].remove(ticket)
        return [ticket for _, ticket in chosen]

    def held(self, worker: str, *, now: datetime) -> list[Lease]:
        return [
            Lease(id, worker, block.claimed_at, block.expires_at, jobs)
            for id, block in sorted(self.leases.items())
            if block.worker == worker and block.expires_at > now
            and (jobs := tuple(claimed(self.jobs[job], id) for job, token in sorted(block.jobs)
                               if self._has_token(job, token)))
        ]  # fmt: skip

    def _grant(self, worker: str, block: list[Work], now: datetime, until: datetime) -> Lease:
        self.last_lease += 1
        id = LeaseId(self.last_lease)
        self.leases[id] = Block(worker, now, until, [(work.id, work.token) for work in block])
        return Lease(id, worker, now, until, tuple(claimed(work, id) for work in block))

    def extend(
        self,
        worker: str,
        leases: Mapping[LeaseId, Sequence[JobId]],
        *,
        lease_seconds: float,
        now: datetime,
    ) -> Beat:
        lost: list[int] = []
        cancelled: list[tuple[int, int]] = []
        for id, started in sorted(leases.items()):
            lease = self.leases.get(id)
            if lease is None or lease.worker != worker or lease.expires_at <= now:
                lost.append(id)
                continue
            lease.expires_at = max(lease.expires_at, now + timedelta(seconds=lease_seconds))
            lease.started = set(started) or lease.started  # a heartbeat reports all that started
            cancelled += [
                (job, token) for job, token in lease.jobs
                if self._has_token(job, token) and self.jobs[job].cancel_requested
            ]  # fmt: skip
        return Beat(tuple(lost), tuple(sorted(cancelled)))

    def is_held(self, worker: str, id: JobId, token: int, lease: LeaseId) -> bool:
        """Is this attempt running, and does this worker present a lease of its own?"""
        return (
            self._has_token(id, token)
            and self.jobs[id].where is Where.LEASE
            and lease in self.leases
            and self.leases[lease].worker == worker
        )

    # Settle -----------------------------------------------------------------------------------

    def settle(
        self,
        worker: str,
        settlements: Sequence[Settlement],
        *,
        done_leases: Sequence[LeaseId] | None = None,
        now: datetime,
    ) -> list[Answer]:
        first: dict[tuple[int, int], Settlement] = {}
        for settlement in settlements:
            first.setdefault((settlement.id, settlement.token), settlement)
        held = [
            s for s in first.values()
            if self.is_held(worker, JobId(s.id), s.token, LeaseId(s.lease))
        ]  # fmt: skip
        became: Became = {}
        self._settle_held(worker, [s for s in held if s.outcome is Outcome.SUCCEED], now, became)
        others = [s for s in held if s.outcome is not Outcome.SUCCEED]
        self._settle_held(worker, sorted(others, key=lambda s: s.id), now, became)
        answers = [
            Answer(True, became=became.get((s.id, s.token)) if s in held else None)
            if self._has_landed(worker, s, held) else STALE
            for s in settlements
        ]  # fmt: skip
        if done_leases is None:
            done_leases = [LeaseId(s.lease) for s in settlements]
        for id in done_leases:
            lease = self.leases.get(id)
            in_use = lease is not None and any(self._has_token(*pair) for pair in lease.jobs)
            if lease is not None and lease.worker == worker and not in_use:
                del self.leases[id]
        return answers

    def _has_landed(self, worker: str, s: Settlement, now: Collection[Settlement]) -> bool:
        """Is this what became of the attempt, now or before?"""
        end = self.settled.get((JobId(s.id), s.token))
        told = end is not None and end.worker == worker and end.is_told_by(s)
        return told or s in now  # of a job that is not kept, nothing else is known

    def _settle_held(
        self, worker: str, settlements: Iterable[Settlement], now: datetime, became: Became
    ) -> None:
        ended: list[Work] = []
        back: list[tuple[Work, Settlement]] = []
        for s in settlements:
            work = self.jobs[JobId(s.id)]
            lease = self.leases[LeaseId(s.lease)]
            was_last = work.attempts + 1 >= work.job.max_attempts
            work.error = work.error if s.error is None else s.error.decode()
            spent = work.id in lease.once
            before = work.attempts
            final, reason = self._end_of_attempt(work, s, spent)
            if spent and s.error is None and final is State.FAILED:
                work.error = not_run_again(reason)
            if final is None and self._was_unknown_for(work, now) >= _given_up(s):
                final, reason, work.error = State.FAILED, "no worker has its task", _UNKNOWN_TASK
            self.settled[work.id, s.token] = Settled(
                worker, s, work.cancel_requested, was_last,
                spent=spent and s.outcome in GOES_ON,
                gave_up=reason == "no worker has its task",
                error=work.error,
            )  # fmt: skip
            asked = final is State.CANCELLED and s.outcome is not Outcome.ABORT
            again = s.give_up_seconds is not None and self._was_unknown_for(work, now) >= _NO_TIME
            if final is not None and (asked or again):
                became[s.id, s.token] = final
            outcome = _REQUEUED[s.outcome] if final is None else final
            if final is not None or s.give_up_seconds is None:
                work.tries.append(
                    work.attempt(
                        lease, outcome, now, charged=work.attempts > before, reason=reason,
                        error=work.error if outcome in ("retried", "failed") else None,
                        duration_seconds=s.duration_seconds,
                    )
                )  # fmt: skip
            if final is None:
                back.append((work, s))
                continue
            work.claimed_at, work.worker = lease.claimed_at, worker
            work.duration_seconds = s.duration_seconds
            if final is State.SUCCEEDED:
                work.error = None
                work.result = None if s.result in (None, b"null") else str(s.result, "utf-8")
            self._end(work, final, reason, now)
            ended.append(work)
        self._let_go(ended, now)
        for work, s in back:
            kind = _REQUEUED[s.outcome] if s.give_up_seconds is None else "unknown_task"
            began = now
            if kind == "unknown_task" and work.story and work.story[-1].kind == kind:
                earlier = work.story.pop()
                began = earlier.at
                self.settled.pop((work.id, earlier.token), None)  # the entry tells of the last try
            work.story.append(Event(began, kind, s.token, worker))
            due = now + timedelta(seconds=s.delay_seconds) if s.delay_seconds else None
            self._put_in_line(work, now, due, s.reason)

    @staticmethod
    def _was_unknown_for(work: Work, now: datetime) -> timedelta:
        """How long no worker has had the task, if its last worker did not."""
        last = work.story[-1] if work.story else None
        if last is None or last.kind != "unknown_task":
            return timedelta.min
        return now - last.at

    @staticmethod
    def _end_of_attempt(work: Work, s: Settlement, spent: bool) -> tuple[State | None, str | None]:
        """Charge the attempt, and say in which final state the job is now, if any, and why."""
        last = work.attempts + 1 >= work.job.max_attempts
        again = s.outcome in GOES_ON
        if spent and again and not work.cancel_requested:
            work.attempts += 1
            return State.FAILED, f"{AT_MOST_ONCE}: {s.reason}"
        match s.outcome:
            case Outcome.SUCCEED:
                work.attempts += 1
                return State.SUCCEEDED, s.reason
            case Outcome.FAIL:
                work.attempts += 1
                return State.FAILED, s.reason
            case Outcome.SKIP:
                work.attempts += 1
                return State.SKIPPED, s.reason
            case Outcome.ABORT:
                return State.CANCELLED, s.reason
            case Outcome.RETRY:
                work.attempts += 1
                if work.cancel_requested:
                    return State.CANCELLED, "cancelled"
                return (State.FAILED, s.reason) if last else (None, s.reason)
            case Outcome.SNOOZE | Outcome.RELEASE:
                return (State.CANCELLED, "cancelled") if work.cancel_requested else (None, s.reason)

    def _end(self, work: Work, state: State, reason: str | None, now: datetime) -> None:
        work.where, work.final, work.reason, work.finished_at = Where.HISTORY, state, reason, now
        succeeded = state is State.SUCCEEDED
        seconds = work.job.keep_succeeded_seconds if succeeded else work.job.keep_other_seconds
        if seconds is not None:
            is_forever = seconds > MAX_SECONDS
            work.keep_until = FAR_FUTURE if is_forever else now + timedelta(seconds=seconds)
        work.held = work.cancel_requested = False
        work.due_at = work.queued_at = None
        for reader in self.readers.values():
            if not reader.lost:
                reader.unread.append(_ended(work, now))

    def _let_go(self, ended: list[Work], now: datetime) -> None:
        """Keys are given back, children may go on."""
        children: set[JobId] = set()
        for work in ended:
            key = self.keys.get(work.key) if work.key is not None else None
            if key is not None and (
                key.until in (Until.STARTED, Until.FINISHED)
                or (key.expires_at is not None and key.expires_at <= now)
            ):
                self._drop_key(work)
            elif key is not None and key.id == work.id:
                key.outcome = work.final
            for child in self.jobs.values():
                if work.id in child.parents:
                    child.parents[work.id] = work.final
                    children.add(child.id)
        self._free(children, now)
        for work in ended:
            if work.is_unkept:
                self._forget(work.id)

    def _drop_key(self, work: Work) -> None:
        if work.key is not None and work.key in self.keys and self.keys[work.key].id == work.id:
            del self.keys[work.key]

    def _free(self, children: Collection[JobId], now: datetime) -> None:
        """Put children in line whose parents are all final; skip those that lost one."""
        skipped = []
        for id in sorted(children):
            work = self.jobs[id]
            if work.where is not Where.WAITING or None in work.parents.values():
                continue
            if set(work.parents.values()) == {State.SUCCEEDED}:
                work.story.append(Event(now, "freed", work.token))
                self._put_in_line(work, now, work.due_at, "parents finished")
            else:
                self._end(work, State.SKIPPED, "a parent did not succeed", now)
                self.count(work, State.SKIPPED)
                skipped.append(work)
        if skipped:
            self._let_go(skipped, now)

    def report_progress(
        self,
        worker: str,
        reports: Sequence[tuple[Held, float | None, str | None]],
        *,
        now: datetime,
    ) -> list[Answer]:
        answers = []
        for held, fraction, message in reports:
            landed = self.is_held(worker, *held)
            answers.append(LANDED if landed else STALE)
            if landed:
                self.jobs[held.id].noted = True
                self.notes[held.id] = msgspec.structs.replace(
                    self.notes.get(held.id, Progress()),
                    fraction=fraction, message=message, reported_at=now,
                )  # fmt: skip
        return answers

    def annotate(
        self, worker: str, notes: Sequence[tuple[Held, Mapping[str, NoteValue]]], *, now: datetime
    ) -> list[Answer]:
        del now
        answers = []
        for held, values in notes:
            landed = self.is_held(worker, *held)
            answers.append(LANDED if landed else STALE)
            if landed:
                work = self.jobs[held.id]
                work.noted = True
                self.notes.setdefault(held.id, Progress())
                for name, value in values.items():
                    work.notes.pop(name, None)
                    if value is not None:
                        work.notes[name] = value
        return answers

    def start_once(self, worker: str, held: Held, *, now: datetime) -> Answer:
        lease = self.leases.get(held.lease_id)
        if lease is None or not self.is_held(worker, *held) or lease.expires_at <= now:
            return STALE
        if (held.id, held.token) not in lease.jobs:
            return STALE
        lease.once.add(held.id)
        return LANDED

    def save_checkpoint(
        self, worker: str, held: Held, checkpoint: Json, *, now: datetime
    ) -> Answer:
        if not self.is_held(worker, *held):
            return STALE
        self.jobs[held.id].noted = True
        self.notes[held.id] = msgspec.structs.replace(
            self.notes.get(held.id, Progress()), checkpoint_json=checkpoint.decode(), saved_at=now
        )
        return LANDED

    def record_step(self, worker: str, held: Held, step: NewStep, *, now: datetime) -> Answer:
        if not self.is_held(worker, *held):
            return STALE
        taken = self.taken.setdefault(held.id, [])
        new = Step(step.name, step.function, held.token, now, step.result.decode())
        for old in taken:
            if old.name == new.name:
                if msgspec.structs.replace(old, recorded_at=now) != new:
                    raise StepConflict
                return LANDED
        self.jobs[held.id].stepped = True
        taken.append(new)
        return LANDED

    # Sweep ------------------------------------------------------------------------------------

    def expired(self, now: datetime) -> list[LeaseId]:
        """Leases whose deadline has passed, oldest first."""
        over = [(x.expires_at, id) for id, x in self.leases.items() if x.expires_at <= now]
        return [id for _, id in sorted(over)]

    def sweep(self, *, most: int, now: datetime) -> Swept:
        """Leases on which nothing is live go as well, and do not count."""
        requeued = finished = leases = 0
        for id in self.expired(now):
            back, over = self._take_back(self.leases.pop(id), now)
            requeued, finished = requeued + back, finished + over
            leases += bool(back or over)
            if leases == most:
                return Swept(requeued, finished, more=True)
        return Swept(requeued, finished)

    def _take_back(self, lease: Block, now: datetime) -> tuple[int, int]:
        """Put the jobs of a lost lease in line again, or end them; answers how many of each."""
        back = 0
        ended = []
        for job, token in sorted(lease.jobs):
            if not self._has_token(job, token):
                continue
            work = self.jobs[job]
            charged = job in lease.started or len(lease.jobs) == 1
            if work.job.at_most_once:  # it says so before it starts
                charged = job in lease.once
            work.attempts += charged
            work.crashes += 1
            work.story.append(Event(now, "crashed", token, lease.worker))
            spent = charged and work.job.at_most_once
            reason = "cancelled" if work.cancel_requested else "lease lost"
            if spent and not work.cancel_requested:
                reason = f"{AT_MOST_ONCE}: lease lost"
            work.tries.append(
                work.attempt(
                    lease, "crashed", now, charged=charged, reason=reason, error=_LEASE_LOST
                )
            )
            if work.cancel_requested:
                self._crash(work, State.CANCELLED, "cancelled", lease, now)
                ended.append(work)
            elif spent:
                self._crash(work, State.FAILED, reason, lease, now)
                ended.append(work)
            elif charged and work.attempts >= work.job.max_attempts:
                self._crash(work, State.FAILED, "lease lost", lease, now)
                ended.append(work)
            else:
                self._put_in_line(work, now, None, "lease lost")
                self.count(work, "crashed")
                back += 1
        self._let_go(ended, now)
        return back, len(ended)

    def _crash(self, work: Work, state: State, reason: str, lease: Block, now: datetime) -> None:
        work.error, work.worker = _LEASE_LOST, lease.worker
        self._end(work, state, reason, now)
        self.count(work, state)

    # Operators --------------------------------------------------------------------------------

    def _live(self, id: JobId, tenant: str | None) -> Work:
        work = self._known(id, tenant)
        if not work.live:
            raise JobNotFound
        return work

    def _known(self, id: JobId, tenant: str | None) -> Work:
        """A job that this tenant may change."""
        work = self.jobs.get(id)
        if work is None or (tenant is not None and work.job.tenant != tenant):
            raise JobNotFound
        return work

    def cancel(
        self, id: JobId, *, reason: str = "cancelled", now: datetime, tenant: str | None = None
    ) -> State:
        work = self._known(id, tenant)
        if not work.live:
            return work.state
        if work.where is Where.LEASE:
            if not work.cancel_requested:
                work.cancel_requested, work.reason = True, reason
                work.story.append(Event(now, "cancel requested", work.token))
            return State.RUNNING
        self._leave_line(work)
        self._end(work, State.CANCELLED, reason, now)
        self.count(work, State.CANCELLED)
        self._let_go([work], now)
        return State.CANCELLED

    def hold(
        self, id: JobId, *, reason: str = "held", now: datetime, tenant: str | None = None
    ) -> bool:
        work = self._live(id, tenant)
        if work.held:
            return False
        if self._leave_line(work):
            work.where = Where.HELD
        work.held, work.reason = True, reason
        work.story.append(Event(now, "held", work.token))
        return True

    def unhold(self, id: JobId, *, now: datetime, tenant: str | None = None) -> bool:
        work = self._live(id, tenant)
        if not work.held:
            return False
        work.story.append(Event(now, "unheld", work.token))
        work.held, work.reason = False, None
        if work.where is Where.HELD:
            self._put_in_line(work, now, work.due_at, "unheld")
        return True

    def move(
        self,
        id: JobId,
        *,
        queue: str | None = None,
        priority: int | None = None,
        due_at: datetime | None = None,
        now: datetime,
        tenant: str | None = None,
    ) -> bool:
        work = self._live(id, tenant)
        if work.where is Where.LEASE:
            return False
        had_ticket = self._leave_line(work)
        work.story.append(Event(now, "moved", work.token))
        work.queue = work.queue if queue is None else queue
        work.priority = work.priority if priority is None else priority
        since = max(work.due_at or now, now)
        if due_at is not None and due_at > since:
            if work.start_by is not None:
                work.start_by += due_at - since
            if work.job.finish_by is not None:
                finish_by = work.job.finish_by + (due_at - since)
                work.job = msgspec.structs.replace(work.job, finish_by=finish_by)
        work.due_at = work.due_at if due_at is None else due_at
        if had_ticket:
            self._put_in_line(work, now, work.due_at, "moved")
        return True

    def replay(
        self, id: JobId, *, afresh: bool = False, now: datetime, tenant: str | None = None
    ) -> bool:
        work = self._known(id, tenant)
        if work.live:
            return False
        assert work.final is not None
        assert work.finished_at is not None
        keys = dict(self.keys)
        if self._take_key(keys, work, now).id != id:
            raise KeyTaken
        self.keys = keys
        if afresh or work.final is State.SUCCEEDED:
            if id in self.notes:
                self.notes[id] = Progress()
            self.taken.pop(id, None)
        work.story += [
            Event(work.finished_at, work.final, work.token, work.worker),
            Event(now, "replayed", work.token + 1),
        ]
        if (attempt := (id, work.token)) in self.settled:
            self.settled[attempt] = self.settled[attempt]._replace(replayed=True)
        work.final = work.finished_at = work.claimed_at = work.worker = work.result = None
        work.keep_until = None
        work.duration_seconds = None
        work.attempts = work.crashes = 0
        work.start_by = None
        self._put_in_line(work, now, None, "replayed")
        for child in self.jobs.values():
            if child.where is Where.WAITING and id in child.parents:
                child.parents[id] = None  # it has an unfinished parent again
                work.has_children = True
        return True

    def delete(self, id: JobId, *, now: datetime, tenant: str | None = None) -> None:  # noqa: ARG002
        work = self._known(id, tenant)
        if work.live:
            raise InvalidInput
        self._drop_key(work)
        self._forget(id)

    def get_by_key(self, scope: str, key: str, *, now: datetime, tenant: str | None = None) -> Job:
        hold = self.keys.get((tenant or "", scope, key))
        if hold is None or self._key_is_over(hold, now):
            raise JobNotFound
        if hold.id not in self.jobs:
            raise JobGone
        return self.shown(self.jobs[hold.id])

    def free_key(self, scope: str, key: str, *, now: datetime, tenant: str | None = None) -> bool:  # noqa: ARG002
        hold = self.keys.get((tenant or "", scope, key))
        if hold is not None and self._is_live(hold.id):
            raise KeyTaken
        return self.keys.pop((tenant or "", scope, key), None) is not None

    def _forget(self, id: JobId) -> None:
        del self.jobs[id]
        self.notes.pop(id, None)
        self.taken.pop(id, None)
        for attempt in [pair for pair in self.settled if pair[0] == id]:
            del self.settled[attempt]

    def pause(self, queue: str, *, reason: str | None = None, now: datetime) -> None:
        since = self.paused[queue].paused_at if queue in self.paused else now
        self.paused[queue] = PausedQueue(queue, since, reason)

    def resume(self, queue: str, *, now: datetime) -> bool:  # noqa: ARG002
        return self.paused.pop(queue, None) is not None

    def prune(self, *, succeeded_seconds: float, other_seconds: float, now: datetime) -> int:
        gone = []
        for work in self.jobs.values():
            succeeded = work.final is State.SUCCEEDED
            age = timedelta(seconds=succeeded_seconds if succeeded else other_seconds)
            if work.keep_until is not None:
                if work.keep_until <= now and not self._has_live_child(work):
                    gone.append(work.id)
            elif work.finished_at is not None and work.finished_at < now - age:
                gone.append(work.id)
        for id in gone:
            self._forget(id)
        self.keys = {k: hold for k, hold in self.keys.items() if not self._key_is_over(hold, now)}
        for reader in self.readers.values():
            first = [end.finished_at for end in reader.unread[:1]]
            reader.lost |= any(at < now - WEEK for at in (reader.seen_at, *first))
        return len(gone)

    # The feed ---------------------------------------------------------------------------------

    def add_reader(self, name: str, *, now: datetime, tenant: str | None = None) -> bool:
        if (tenant or "", name) in self.readers:
            return False
        self.readers[tenant or "", name] = Follower(now)
        return True

    def remove_reader(self, name: str, *, now: datetime, tenant: str | None = None) -> bool:
        del now
        return self.readers.pop((tenant or "", name), None) is not None

    def follow(self, name: str, *, now: datetime, tenant: str | None = None) -> list[Ended]:
        """Read all that there is, and move on."""
        reader = self.readers.get((tenant or "", name))
        if reader is None:
            raise ReaderNotFound
        if reader.lost:
            raise FeedMissed
        if reader.unread or now - reader.seen_at > timedelta(seconds=60):
            reader.seen_at = max(reader.seen_at, now)
        ends = [end for end in reader.unread if tenant is None or end.tenant in ("", tenant)]
        reader.unread.clear()
        return sorted(ends, key=lambda end: (end.id, end.token))

    def _has_live_child(self, work: Work) -> bool:
        return work.has_children and any(
            work.id in child.parents and child.live for child in self.jobs.values()
        )


def _ended(work: Work, now: datetime) -> Ended:
    assert work.final is not None
    error = {} if work.error is None else msgspec.json.decode(work.error)
    return Ended(
        place=0, id=work.id, token=work.token, state=work.final, task=work.job.task,
        queue=work.queue, tenant=work.job.tenant, attempts=work.attempts, finished_at=now,
        duration_seconds=work.duration_seconds, worker=work.worker, reason=work.reason,
        error_type=error.get("type"), error_message=error.get("message"),
    )  # fmt: skip


def _given_up(s: Settlement) -> timedelta:
    """How long a task may be unknown."""
    return timedelta.max if s.give_up_seconds is None else timedelta(seconds=s.give_up_seconds)
