"""The operations that are cut, each with its scene and with what must be true afterwards.

A deed is one call of a store. Its scene is laid by a store that no fault reaches. Its check knows
what an undisturbed call answers and leaves behind, and accepts nothing else, except where it says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from msgspec.json import decode

from tenure.rules import lifecycle
from tenure.rules.claim import NEEDS, Ask, Claimed, Lease
from tenure.rules.codec import encode
from tenure.rules.ends import NewHook
from tenure.rules.job import Enqueued, Replace, State, Unique, Until
from tenure.rules.statistics import Counted
from tenure.store import LANDED, Changes, Store
from tenure.store.jobs.sweep import Swept
from tests.support.counting import counted
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, TASK, add, add_many, ids_of, job, settle, take, take_one

WORKER = "w1"
BULK = 120  # goes by COPY


class Deed(ABC):
    """One call; a new object for each time it is made."""

    name: ClassVar[str]
    is_cold: ClassVar[bool] = False
    """Its first message is that of a connect; otherwise the connection is there already."""

    def __init__(self, near: Store, plain: Plain, clock: Clock) -> None:
        self.near = near
        self.plain = plain
        self.clock = clock
        self.lay()

    def lay(self) -> None:  # noqa: B027 - some need no scene
        """Lay the scene."""

    @abstractmethod
    def do(self, store: Store) -> Any:
        """Make the call."""

    @abstractmethod
    def check(self, answer: Any, far: Store) -> None:
        """The answer and the rows agree, and are what they should be."""

    def states(self) -> dict[int, tuple[State, int]]:
        """Every job there is, with its state and token."""
        found = self.near.list_jobs(limit=1000).jobs
        return {each.id: (each.state, self.near.get(each.id).token) for each in found}


class Connect(Deed):
    """A first look: the handshake, the look at the schema, a statement that reads."""

    name = "connect"
    is_cold = True

    def lay(self) -> None:
        self.near.pause("b", now=self.clock.now)

    def do(self, store: Store) -> Any:
        return store.paused_queues()

    def check(self, answer: Any, far: Store) -> None:
        assert answer == far.paused_queues() == self.near.paused_queues()
        assert len(answer) == 1


class Enqueue(Deed):
    """Four jobs in one call, two of them with the same key."""

    name = "enqueue"

    def do(self, store: Store) -> list[Enqueued]:
        jobs = [
            job(args=encode({"n": 1})), job(delay_seconds=60),
            job(unique=Unique(key="a")), job(unique=Unique(key="a")),
        ]  # fmt: skip
        return store.enqueue(jobs, now=self.clock.now)

    def check(self, answer: list[Enqueued], far: Store) -> None:
        first, second, third = (added.id for added in answer[:3])
        assert [added.created for added in answer] == [True, True, True, False]
        assert answer[3].id == third
        assert self.states() == {
            first: (State.QUEUED, 1), second: (State.SCHEDULED, 1), third: (State.QUEUED, 1),
        }  # fmt: skip
        assert decode(self.near.get(first).args_json) == {"n": 1}
        assert {held.id for held in take(far, self.clock.now)} == {first, third}


class EnqueueOne(Deed):
    """A job without a key and without parents is one statement that commits itself."""

    name = "enqueue one"

    def do(self, store: Store) -> list[Enqueued]:
        return store.enqueue([job()], now=self.clock.now)

    def check(self, answer: list[Enqueued], far: Store) -> None:
        [added] = answer
        assert added.created
        assert self.states() == {added.id: (State.QUEUED, 1)}
        assert [held.id for held in take(far, self.clock.now)] == [added.id]


class EnqueueMany(Deed):
    """A bulk that goes by COPY."""

    name = "enqueue many"

    def do(self, store: Store) -> list[Enqueued]:
        return store.enqueue([job()] * BULK, now=self.clock.now)

    def check(self, answer: list[Enqueued], far: Store) -> None:
        ids = [added.id for added in answer]
        assert len(set(ids)) == BULK
        assert [held.id for held in take(far, self.clock.now, 2 * BULK)] == ids
        assert self.plain.one("select count(*) from tenure.job") == BULK


class Claim(Deed):
    """Seven jobs, of which five are wanted: a suspect, and one to be cancelled, are among them."""

    name = "claim"

    def lay(self) -> None:
        self.suspect = add(self.near, self.clock.now)
        take_one(self.near, self.clock.now, worker="dead")
        assert self.near.sweep(now=self.clock.advance(31)).requeued == 1
        self.ids = [self.suspect, *add_many(self.near, self.clock.now, 6)]
        self.flagged = self.ids[2]
        self.plain.rows("update tenure.job set cancel_requested = true where id = ?", self.flagged)

    def do(self, store: Store) -> list[Lease]:
        return store.claim(WORKER, {"default": 5}, now=self.clock.now)

    def check(self, answer: list[Lease], far: Store) -> None:
        held = [claimed for lease in answer for claimed in lease.jobs]
        got = sorted(claimed.id for claimed in held)
        assert got == sorted({*self.ids[:5]} - {self.flagged})
        alone = [lease for lease in answer if lease.jobs[0].id == self.suspect]
        assert [len(lease.jobs) for lease in alone] == [1]
        rows = set(self.plain.rows("select id, worker from tenure.lease"))
        known = {(lease.id, WORKER) for lease in answer}
        assert known <= rows
        running = {id for id, (state, _) in self.states().items() if state is State.RUNNING}
        assert settle(far, self.clock.now, *map(lifecycle.succeed, held)) == [LANDED] * len(held)
        if rows > known:  # what could not be cancelled at once stands apart, for the sweep
            assert len(rows - known) == 1
            running.remove(self.flagged)
            far.sweep(now=self.clock.advance(31))
        assert running == set(got)
        assert self.states()[self.flagged][0] is State.CANCELLED
        rest = take(far, self.clock.now)
        assert sorted([*got, self.flagged, *(left.id for left in rest)]) == sorted(self.ids)


class Settle(Deed):
    """Three jobs of one block that succeed."""

    name = "settle"

    def lay(self) -> None:
        add_many(self.near, self.clock.now, 3)
        self.held = take(self.near, self.clock.now)
        self.ends = [lifecycle.succeed(one, result=encode(one.id)) for one in self.held]

    def do(self, store: Store) -> Any:
        return settle(store, self.clock.now, *self.ends)

    def check(self, answer: Any, far: Store) -> None:
        assert answer == [LANDED] * len(self.held)
        for one in self.held:
            found = self.near.get(one.id)
            assert (found.state, found.token, found.attempts) == (State.SUCCEEDED, 1, 1)
            assert found.result == one.id
        self.check_repeat(far)

    def check_repeat(self, far: Store) -> None:
        """Who repeats it is told that it has landed; the lease is gone, and nothing changes."""
        assert self.plain.rows("select id from tenure.lease") == []
        before = self.plain.everything()
        assert settle(far, self.clock.now, *self.ends) == [LANDED] * len(self.ends)
        assert self.plain.everything() == before


class SettleOthers(Settle):
    """Every other way to end an attempt, in one batch; one job has a key, one has a child."""

    name = "settle in all ways"

    def lay(self) -> None:
        now = self.clock.now
        parent = add(self.near, now, unique=Unique(key="a"))
        self.child = add(self.near, now, parents=(parent,))
        add_many(self.near, now, 6)
        self.held = take(self.near, now)
        success, failure, again, later, back, stopped, skipped = self.held
        self.ends = [
            lifecycle.succeed(success), lifecycle.fail(failure, ERROR),
            lifecycle.retry(again, ERROR, 0), lifecycle.snooze(later, 60), lifecycle.release(back),
            lifecycle.abort(stopped), lifecycle.skip(skipped),
        ]  # fmt: skip

    def check(self, answer: Any, far: Store) -> None:
        assert answer == [LANDED] * 7
        ids = [one.id for one in self.held]
        found = [(each.state, each.token, each.attempts) for each in map(self.near.get, ids)]
        assert found == [
            (State.SUCCEEDED, 1, 1), (State.FAILED, 1, 1), (State.QUEUED, 2, 1),
            (State.SCHEDULED, 2, 0), (State.QUEUED, 2, 0), (State.CANCELLED, 1, 0),
            (State.SKIPPED, 1, 1),
        ]  # fmt: skip
        child = self.near.get(self.child)
        assert (child.state, child.token) == (State.QUEUED, 2)
        self.check_repeat(far)
        assert len(take(far, self.clock.now)) == 3  # retried, released, and the child


class Extend(Deed):
    """A heartbeat for two leases: a job has started, another is asked to stop."""

    name = "extend"

    def lay(self) -> None:
        add_many(self.near, self.clock.now, 3)
        self.blocks = [take(self.near, self.clock.now, 2), take(self.near, self.clock.now, 1)]
        self.asked = self.blocks[1][0]
        assert self.near.cancel(self.asked.id, now=self.clock.now) is State.RUNNING
        self.leases = {block[0].lease_id: [one.id for one in block[:1]] for block in self.blocks}
        self.clock.advance(20)

    def do(self, store: Store) -> Any:
        return store.extend(WORKER, self.leases, now=self.clock.now)

    def check(self, answer: Any, far: Store) -> None:
        assert (answer.lost, answer.busy) == ((), ())
        assert answer.cancelled == ((self.asked.id, self.asked.token),)
        for block in self.blocks:
            for one in block:
                expires_at = self.near.get(one.id).expires_at
                assert expires_at is not None
                assert (expires_at - self.clock.now).total_seconds() == 30
        assert far.sweep(now=self.clock.advance(29)) == Swept()
        assert far.sweep(now=self.clock.advance(2)) == Swept(requeued=2, finished=1)


class Annotate(Deed):
    """Two jobs add notes; one has some."""

    name = "annotate"

    def lay(self) -> None:
        add_many(self.near, self.clock.now, 2)
        self.held = take(self.near, self.clock.now, 2)
        self.near.annotate(WORKER, [(self.held[0], {"epoch": 1})], now=self.clock.now)

    def do(self, store: Store) -> Any:
        new = [(one, {"loss": 0.5}) for one in self.held]
        return store.annotate(WORKER, new, now=self.clock.now)

    def check(self, answer: Any, far: Store) -> None:
        assert answer == [LANDED, LANDED]
        assert [far.get(one.id).notes for one in self.held] == [
            {"epoch": 1, "loss": 0.5}, {"loss": 0.5}
        ]  # fmt: skip


class StartOnce(Deed):
    """The mark of the only start of a job lands, though its COMMIT may get no answer."""

    name = "start once"

    def lay(self) -> None:
        add_many(self.near, self.clock.now, 4, at_most_once=True)
        self.held = take(self.near, self.clock.now, 4)

    def do(self, store: Store) -> Any:
        return [store.start_once(WORKER, one, now=self.clock.now) for one in self.held[:3]]

    def check(self, answer: Any, far: Store) -> None:
        assert answer == [LANDED] * 3
        assert far.sweep(now=self.clock.advance(31)) == Swept(requeued=1, finished=3)
        states = [far.get(one.id).state for one in self.held]
        assert states == [State.FAILED] * 3 + [State.QUEUED]


class Sweep(Deed):
    """Two expired leases: one job has no attempt left, the others go back in line."""

    name = "sweep"

    def lay(self) -> None:
        self.last = add(self.near, self.clock.now, max_attempts=1)
        self.alone: list[Claimed] = take(self.near, self.clock.now, 1)
        add_many(self.near, self.clock.now, 2)
        self.block = take(self.near, self.clock.now, 2)
        self.clock.advance(31)

    def do(self, store: Store) -> Swept:
        return store.sweep(now=self.clock.now)

    def check(self, answer: Swept, far: Store) -> None:
        # Each lease is a transaction of its own. One whose COMMIT got no answer is found empty by
        # the repeat, so the count may miss it; it never counts what was not done.
        assert answer.requeued in (0, 2)
        assert answer.finished in (0, 1)
        states = self.states()
        assert states[self.last] == (State.FAILED, 1)
        for one in self.block:
            assert states[one.id] == (State.QUEUED, 2)
            assert self.near.get(one.id).crashes == 1
        assert self.plain.rows("select id from tenure.lease") == []
        assert far.sweep(now=self.clock.now) == Swept()


class EnqueueReplacing(Deed):
    """A waiting job gets new arguments and a new due time."""

    name = "enqueue replacing"

    def lay(self) -> None:
        self.waiting = add(self.near, self.clock.now, args=encode(1), unique=Unique(key="a"))

    def do(self, store: Store) -> list[Enqueued]:
        unique = Unique(key="a", on_conflict=Replace(postpone=True))
        return store.enqueue(
            [job(args=encode(2), unique=unique, delay_seconds=5)], now=self.clock.now
        )

    def check(self, answer: list[Enqueued], far: Store) -> None:  # noqa: ARG002
        assert answer == [Enqueued(self.waiting, created=False, same_args=True, replaced=True)]
        assert self.states() == {self.waiting: (State.SCHEDULED, 2)}
        kinds = [event.kind for event in self.near.timeline(self.waiting)]
        assert kinds == ["enqueued", "replaced"]


class Expire(Deed):
    """Two jobs were not started in time; one of them has a child."""

    name = "expire"

    def lay(self) -> None:
        self.late = add_many(self.near, self.clock.now, 2, start_within_seconds=5)
        self.child = add(self.near, self.clock.now, parents=(self.late[0],))
        self.other = add(self.near, self.clock.now)
        self.clock.advance(10)

    def do(self, store: Store) -> int:
        return store.expire(now=self.clock.now)

    def check(self, answer: int, far: Store) -> None:
        assert answer in (0, 2)  # a repeat finds nothing
        states = self.states()
        for id in (*self.late, self.child):
            assert states[id][0] is State.SKIPPED
        assert states[self.other] == (State.QUEUED, 1)
        assert far.expire(now=self.clock.now) == 0


class ExpireFollowed(Expire):
    """A reader follows: each end is in the feed once."""

    name = "expire with a reader"

    def lay(self) -> None:
        self.near.add_reader("r", now=self.clock.now)
        super().lay()

    def check(self, answer: int, far: Store) -> None:
        super().check(answer, far)
        ends = far.read_feed("r", now=self.clock.now).ends
        assert sorted(end.id for end in ends) == [*self.late, self.child]


class ClaimByNeeds(Deed):
    """Of two kinds some are wanted, and no more than a few kilobytes."""

    name = "claim by needs"

    def lay(self) -> None:
        large = encode("x" * 3000)
        self.threads = add_many(self.near, self.clock.now, 3, needs=NEEDS["thread"])
        self.loop = add_many(self.near, self.clock.now, 4, needs=NEEDS["async"], args=large)
        self.others = add_many(self.near, self.clock.now, 2, needs=NEEDS["process"])

    def do(self, store: Store) -> list[Lease]:
        ask = Ask(9, {NEEDS["thread"]: 2, NEEDS["async"]: 4})
        return store.claim(WORKER, {"default": ask}, max_kb=5, now=self.clock.now)

    def check(self, answer: list[Lease], far: Store) -> None:
        [lease] = answer
        assert sorted(ids_of([*lease.jobs])) == sorted([*self.threads[:2], *self.loop[:2]])
        running = {id for id, (state, _) in self.states().items() if state is State.RUNNING}
        assert running == set(ids_of([*lease.jobs]))
        assert self.plain.rows("select id from tenure.lease") == [(lease.id,)]
        rest = ids_of(take(far, self.clock.now))
        assert sorted(rest) == sorted([self.threads[2], *self.loop[2:], *self.others])


class ClaimByTask(Deed):
    """Jobs of one task, behind and between those of another."""

    name = "claim by task"

    def lay(self) -> None:
        self.mails = add_many(self.near, self.clock.now, 3, task="mail")
        self.audio = add_many(self.near, self.clock.now, 3, task="audio")
        self.mails += add_many(self.near, self.clock.now, 1, task="mail")

    def do(self, store: Store) -> list[Lease]:
        return store.claim(WORKER, {"default": 2}, tasks=["audio"], now=self.clock.now)

    def check(self, answer: list[Lease], far: Store) -> None:
        [lease] = answer
        assert ids_of([*lease.jobs]) == self.audio[:2]
        running = {id for id, (state, _) in self.states().items() if state is State.RUNNING}
        assert running == set(self.audio[:2])
        assert self.plain.rows("select id from tenure.lease") == [(lease.id,)]
        rest = ids_of(take(far, self.clock.now))
        assert rest == [*self.mails[:3], self.audio[2], self.mails[3]]


class OfMany(Deed):
    """Changes of many jobs: what became of each, and an event for each that was changed."""

    options: ClassVar[dict[str, Any]] = {}
    kind: ClassVar[str]
    """The event that each changed job has once."""
    unlike: ClassVar[int] = 0
    """How many jobs stay as they are."""

    def lay(self) -> None:
        self.running = add(self.near, self.clock.now)
        take_one(self.near, self.clock.now)
        self.ids = [add(self.near, self.clock.now), add(self.near, self.clock.now, delay_seconds=9)]
        self.tokens = {id: token for id, (_, token) in self.states().items()}

    @property
    def all_ids(self) -> list[int]:
        """The jobs of the call."""
        return [self.running, *self.ids]

    def do(self, store: Store) -> Changes:
        changes: Changes = getattr(store, self.name.replace(" ", "_"))(
            self.all_ids, **self.options, now=self.clock.now
        )
        return changes

    def check(self, answer: Changes, far: Store) -> None:
        assert len(answer.changed) == len(self.all_ids) - self.unlike
        assert len(answer.unchanged) == self.unlike
        for id in answer.changed:
            kinds = [event.kind for event in far.timeline(id)]
            assert kinds.count(self.kind) == 1, kinds
            self.check_job(id)

    def check_job(self, id: int) -> None:
        """What has become of a changed job."""


class CancelMany(OfMany):
    """Two end, and the one that runs is asked to stop: a worker is told."""

    name, kind = "cancel many", "cancelled"

    def check(self, answer: Changes, far: Store) -> None:
        assert answer == Changes(tuple(self.all_ids), {}, {}, (self.running,))
        assert [far.get(id).state for id in self.ids] == [State.CANCELLED] * 2
        assert far.get(self.running).cancel_requested
        asked = [event.kind for event in far.timeline(self.running)]
        assert asked.count("cancel requested") == 1
        assert self.plain.rows("select job_id from tenure.ready") == []


class HoldMany(OfMany):
    """The one that runs is held for later."""

    name, kind = "hold many", "held"

    def check_job(self, id: int) -> None:
        assert self.near.get(id).held
        assert self.near.get(id).token == self.tokens[id]


class MoveMany(OfMany):
    """Two go to the end of another line under their next token; the one that runs stays."""

    name, kind, options, unlike = "move many", "moved", {"priority": 7}, 1

    def check_job(self, id: int) -> None:
        assert (self.near.get(id).priority, self.near.get(id).token) == (7, self.tokens[id] + 1)


class ReplayMany(OfMany):
    """Two that were cancelled begin anew, one with its key; the one that runs stays."""

    name, kind, unlike = "replay many", "replayed", 1

    def lay(self) -> None:
        super().lay()
        self.ids.append(add(self.near, self.clock.now, unique=Unique(key="a")))
        self.tokens[self.ids[-1]] = 1
        assert len(self.near.cancel_many(self.ids, now=self.clock.now).changed) == 3

    def check_job(self, id: int) -> None:
        found = self.near.get(id)
        assert (found.state, found.token) == (State.QUEUED, self.tokens[id] + 1)


class DeleteMany(ReplayMany):
    """What has ended is gone; the one that runs is refused."""

    name = "delete many"

    def check(self, answer: Changes, far: Store) -> None:  # noqa: ARG002
        assert (answer.changed, list(answer.refused)) == (tuple(self.ids), [self.running])
        assert list(self.states()) == [self.running]


class SettleUnkept(Deed):
    """Jobs of which nothing is kept: a repeat finds no trace of them, and says that it landed."""

    name = "settle what is not kept"

    def lay(self) -> None:
        forever = Unique(key="a", until=Until.FOREVER)
        add(self.near, self.clock.now, unique=forever, keep_succeeded_seconds=0)
        add(self.near, self.clock.now, keep_other_seconds=0)
        success, failure = take(self.near, self.clock.now)
        self.ends = [lifecycle.succeed(success), lifecycle.fail(failure, ERROR)]

    def do(self, store: Store) -> Any:
        return settle(store, self.clock.now, *self.ends)

    def check(self, answer: Any, far: Store) -> None:  # noqa: ARG002
        assert answer == [LANDED] * 2
        assert self.states() == {}
        assert self.plain.rows("select outcome from tenure.unique_key") == [("succeeded",)]
        assert self.plain.rows("select id from tenure.lease") == []


class CancelUnkept(Deed):
    """A job that is not kept after it was cancelled."""

    name = "cancel what is not kept"

    def lay(self) -> None:
        self.id = add(self.near, self.clock.now, keep_other_seconds=0)

    def do(self, store: Store) -> State:
        return store.cancel(self.id, now=self.clock.now)

    def check(self, answer: State, far: Store) -> None:  # noqa: ARG002
        assert answer is State.CANCELLED
        assert self.states() == {}


class UnknownTask(Deed):
    """The second try of a worker that does not have the task: it is counted once."""

    name = "settle a task that the worker does not have"

    def lay(self) -> None:
        self.id = add(self.near, self.clock.now)
        for _ in range(2):
            held = take_one(self.near, self.clock.now)
            self.end = lifecycle.unknown_task(held, 0, 3600)
            if held.token == 1:
                settle(self.near, self.clock.now, self.end)

    def do(self, store: Store) -> Any:
        return settle(store, self.clock.now, self.end)

    def check(self, answer: Any, far: Store) -> None:  # noqa: ARG002
        assert answer == [LANDED]
        assert self.states() == {self.id: (State.QUEUED, 3)}
        [event] = [each for each in self.near.timeline(self.id) if each.kind == "unknown_task"]
        assert (event.token, decode(event.detail or "")["tries"]) == (2, 2)


class RetakeKey(Deed):
    """Work that failed is enqueued again, once."""

    name = "enqueue again what has failed"
    again = Unique(key="a", until=Until.FOREVER, retake_failed=True)

    def lay(self) -> None:
        self.failed = add(self.near, self.clock.now, unique=self.again)
        settle(
            self.near, self.clock.now, lifecycle.fail(take_one(self.near, self.clock.now), ERROR)
        )

    def do(self, store: Store) -> list[Enqueued]:
        return store.enqueue([job(unique=self.again)], now=self.clock.now)

    def check(self, answer: list[Enqueued], far: Store) -> None:
        [added] = answer
        assert added.created
        assert self.states() == {self.failed: (State.FAILED, 1), added.id: (State.QUEUED, 1)}
        assert far.get_by_key(TASK, "a").id == added.id


class FreeKey(Deed):
    """The key of a job that has ended."""

    name = "free a key"

    def lay(self) -> None:
        add(self.near, self.clock.now, unique=Unique(key="a", until=Until.FOREVER))
        settle(self.near, self.clock.now, lifecycle.succeed(take_one(self.near, self.clock.now)))

    def do(self, store: Store) -> bool:
        return store.free_key(TASK, "a", now=self.clock.now)

    def check(self, answer: bool, far: Store) -> None:
        assert answer
        assert not far.free_key(TASK, "a", now=self.clock.now)


class PruneKept(Deed):
    """What was kept for its time is gone, and what is kept for longer stays."""

    name = "prune what was kept for a time"

    def lay(self) -> None:
        add_many(self.near, self.clock.now, 2, keep_succeeded_seconds=10)
        self.stays = add(self.near, self.clock.now, keep_succeeded_seconds=1000)
        held = take(self.near, self.clock.now)
        settle(self.near, self.clock.now, *map(lifecycle.succeed, held))
        self.clock.advance(20)

    def do(self, store: Store) -> int:
        return store.prune(now=self.clock.now)

    def check(self, answer: int, far: Store) -> None:  # noqa: ARG002
        assert answer in (0, 2), "a first try without an answer may have removed them"
        assert self.states() == {self.stays: (State.SUCCEEDED, 1)}


class AddStatistics(Deed):
    """What a process has counted is there once, however often it is sent."""

    name = "add statistics"

    def do(self, store: Store) -> None:
        rows = counted(*[(queue, TASK, "succeeded", 0.3, 2.0) for queue in ("a", "b", "a")])
        store.add_statistics("p", rows, at=self.clock.now)

    def check(self, answer: None, far: Store) -> None:  # noqa: ARG002
        found = self.plain.rows("select queue, ends from tenure.statistic order by queue")
        assert found == [("a", 2), ("b", 1)]


class AddUpStatistics(Deed):
    """Old counts are added up to an hour: none is lost, and none counts twice."""

    name = "prune: add up statistics"

    def lay(self) -> None:
        for n in range(3):
            rows = [Counted("a", TASK, "skipped", 5)]
            self.near.add_statistics(f"p{n}", rows, at=self.clock.now)
        self.clock.advance(4 * 3600)

    def do(self, store: Store) -> int:
        return store.prune(now=self.clock.now)

    def check(self, answer: int, far: Store) -> None:  # noqa: ARG002
        assert answer == 0
        assert self.plain.rows("select span, ends from tenure.statistic") == [(3600, 15)]


class SampleDepth(Deed):
    """The live jobs are counted, by this process or by the next one."""

    name = "count live jobs"

    def lay(self) -> None:
        add_many(self.near, self.clock.now, 3)

    def do(self, store: Store) -> bool:
        return store.sample_depth(force=True, now=self.clock.now)

    def check(self, answer: bool, far: Store) -> None:  # noqa: ARG002
        assert answer
        found = self.near.depth(now=self.clock.now)
        assert found is not None
        assert [(each.queue, each.state, each.jobs) for each in found.queues] == [
            ("default", "queued", 3)
        ]


class SettleFollowed(Deed):
    """A reader follows, and the failure of a job has a hook: one end each, and one call."""

    name = "settle with a reader and a hook"

    def lay(self) -> None:
        self.near.add_reader("r", now=self.clock.now)
        hook = NewHook(task=TASK, parameter="failed", job=job(task="app.alert", queue="hooks"))
        self.near.declare_hooks([hook], now=self.clock.now)
        add_many(self.near, self.clock.now, 2)
        success, failure = take(self.near, self.clock.now)
        self.ends = [lifecycle.succeed(success), lifecycle.fail(failure, ERROR)]
        self.failed = failure.id

    def do(self, store: Store) -> Any:
        return settle(store, self.clock.now, *self.ends)

    def check(self, answer: Any, far: Store) -> None:
        assert answer == [LANDED] * 2
        ends = far.read_feed("r", now=self.clock.now).ends
        assert [end.id for end in ends] == [end.id for end in self.ends]
        [call] = take(far, self.clock.now, queue="hooks")
        assert decode(call.args)["failed"]["id"] == self.failed


class AddReader(Deed):
    """It gets what ends after it has returned."""

    name = "add a reader"

    def do(self, store: Store) -> bool:
        return store.add_reader("r", now=self.clock.now)

    def check(self, answer: bool, far: Store) -> None:
        assert answer is True
        id = add(self.near, self.clock.now)
        self.near.cancel(id, now=self.clock.now)
        assert [end.id for end in far.read_feed("r", now=self.clock.now).ends] == [id]


class ReadFeed(Deed):
    """Ends get their places once, however often they are read."""

    name = "read the feed"

    def lay(self) -> None:
        self.near.add_reader("r", now=self.clock.now)
        self.ids = add_many(self.near, self.clock.now, 3)
        for id in self.ids:
            self.near.cancel(id, now=self.clock.now)

    def do(self, store: Store) -> Any:
        return store.read_feed("r", now=self.clock.now)

    def check(self, answer: Any, far: Store) -> None:
        assert [end.id for end in answer.ends] == self.ids
        assert far.read_feed("r", now=self.clock.now) == answer


class MoveReader(ReadFeed):
    """It is where it was told to be."""

    name = "move a reader"

    def lay(self) -> None:
        super().lay()
        self.page = self.near.read_feed("r", now=self.clock.now)

    def do(self, store: Store) -> Any:
        return store.move_reader("r", self.page.ends[0].place, now=self.clock.now)

    def check(self, answer: Any, far: Store) -> None:  # noqa: ARG002
        left = far.read_feed("r", now=self.clock.now)
        assert [end.id for end in left.ends] == self.ids[1:]
        assert self.plain.one("select count(*) from tenure.feed") == 2


class RemoveReader(MoveReader):
    """It is gone, and so are its ends."""

    name = "remove a reader"

    def do(self, store: Store) -> Any:
        return store.remove_reader("r", now=self.clock.now)

    def check(self, answer: Any, far: Store) -> None:
        assert answer is True
        assert far.readers(now=self.clock.now) == []
        assert self.plain.one("select count(*) from tenure.feed") == 0


class DeclareHooks(Deed):
    """They are declared, once."""

    name = "declare hooks"

    def do(self, store: Store) -> bool:
        hook = NewHook(task=None, parameter="failed", job=job(task="app.alert"))
        return store.declare_hooks([hook], now=self.clock.now)

    def check(self, answer: bool, far: Store) -> None:  # noqa: ARG002 - it may have landed before
        assert far.failure_hooks(now=self.clock.now) == [(None, "app.alert")]


DEEDS: dict[str, type[Deed]] = {
    deed.name: deed
    for deed in (
        Connect,
        Enqueue,
        EnqueueOne,
        EnqueueMany,
        Claim,
        Settle,
        SettleOthers,
        SettleUnkept,
        CancelUnkept,
        UnknownTask,
        RetakeKey,
        FreeKey,
        PruneKept,
        AddStatistics,
        AddUpStatistics,
        SampleDepth,
        Extend,
        Annotate,
        StartOnce,
        Sweep,
        EnqueueReplacing,
        Expire,
        ExpireFollowed,
        ClaimByNeeds,
        ClaimByTask,
        CancelMany,
        HoldMany,
        MoveMany,
        ReplayMany,
        DeleteMany,
        SettleFollowed,
        AddReader,
        ReadFeed,
        MoveReader,
        RemoveReader,
        DeclareHooks,
    )
}
