"""Operations that meet a failing disk, beside those of the wire: large ones, the clock, gates."""

from __future__ import annotations

from typing import Any

from msgspec.json import decode

from tenure.rules import lifecycle
from tenure.rules.claim import Lease
from tenure.rules.codec import encode
from tenure.rules.gates import Limits
from tenure.rules.graph import NewNode, NewWorkflow
from tenure.rules.job import Enqueued, State
from tenure.rules.ticks import ScheduleTiming
from tenure.store import LANDED, NewSchedule, Store
from tests.support.work import add, add_many, job, settle, take, take_one
from tests.wire.deeds import DEEDS, WORKER, Deed, Settle

LARGE = "x" * 20_000


class EnqueueLarge(Deed):
    """A job that needs pages of its own."""

    name = "enqueue large"

    def do(self, store: Store) -> list[Enqueued]:
        return store.enqueue([job(args=encode(LARGE))], now=self.clock.now)

    def check(self, answer: list[Enqueued], far: Store) -> None:
        [added] = answer
        assert self.states() == {added.id: (State.QUEUED, 1)}
        assert decode(take_one(far, self.clock.now).args) == LARGE


class SettleLarge(Settle):
    """A job that succeeds with a result that needs pages of its own."""

    name = "settle large"

    def lay(self) -> None:
        add(self.near, self.clock.now)
        self.held = take(self.near, self.clock.now)
        self.ends = [lifecycle.succeed(self.held[0], result=encode(LARGE))]

    def check(self, answer: Any, far: Store) -> None:
        assert answer == [LANDED]
        found = self.near.get(self.held[0].id)
        assert found.state is State.SUCCEEDED
        assert found.result == LARGE
        self.check_repeat(far)


class Promote(Deed):
    """Three jobs whose time has come."""

    name = "promote"

    def lay(self) -> None:
        self.ids = add_many(self.near, self.clock.now, 3, delay_seconds=5)
        self.clock.advance(6)

    def do(self, store: Store) -> int:
        return store.promote(now=self.clock.now)

    def check(self, answer: int, far: Store) -> None:
        assert answer == 3
        assert self.states() == dict.fromkeys(self.ids, (State.QUEUED, 1))
        assert far.promote(now=self.clock.now) == 0


class Fire(Deed):
    """A schedule is due."""

    name = "fire"

    def lay(self) -> None:
        for table in ("schedule", "tick"):  # not wiped with the others
            self.plain.rows(f"delete from tenure.{table}")
        schedule = NewSchedule(name="s", timing=ScheduleTiming(every_seconds=60), job=job())
        self.near.add_schedule(schedule, now=self.clock.now)
        self.clock.advance(61)

    def do(self, store: Store) -> Any:
        return store.fire(now=self.clock.now)

    def check(self, answer: Any, far: Store) -> None:
        assert self.states() == dict.fromkeys(answer.jobs, (State.QUEUED, 1))
        assert len(answer.jobs) == 1
        assert far.fire(now=self.clock.now).jobs == ()


class Admit(Deed):
    """Four jobs at a gate that lets two pass."""

    name = "admit"

    def lay(self) -> None:
        self.near.declare_gates({"narrow": Limits(max_running=2)}, now=self.clock.now)
        self.ids = add_many(self.near, self.clock.now, 4, gate="narrow")

    def do(self, store: Store) -> list[Lease]:
        return store.claim(WORKER, {"default": 10}, now=self.clock.now)

    def check(self, answer: list[Lease], far: Store) -> None:
        held = [claimed for lease in answer for claimed in lease.jobs]
        assert [claimed.id for claimed in held] == self.ids[:2]
        assert far.claim("w2", {"default": 10}, now=self.clock.now) == []
        assert settle(far, self.clock.now, *map(lifecycle.succeed, held)) == [LANDED] * 2
        assert len(far.claim("w2", {"default": 10}, now=self.clock.now)) == 1


class Release(Deed):
    """The last parent in a workflow succeeds: its child may go on."""

    name = "release"

    def lay(self) -> None:
        nodes = (
            NewNode(name="a", job=job()),
            NewNode(name="b", job=job(), after=(0,)),
        )
        self.flow = self.near.enqueue_workflow(
            NewWorkflow(name="flow", nodes=nodes), now=self.clock.now
        ).id
        self.held = take_one(self.near, self.clock.now)

    def do(self, store: Store) -> Any:
        return settle(store, self.clock.now, lifecycle.succeed(self.held))

    def check(self, answer: Any, far: Store) -> None:
        assert answer == [LANDED]
        found = {node.name: node.state for node in self.near.list_nodes(self.flow).nodes}
        assert found == {"a": State.SUCCEEDED, "b": State.QUEUED}
        child = take_one(far, self.clock.now)
        assert settle(far, self.clock.now, lifecycle.succeed(child)) == [LANDED]
        assert far.get_workflow(self.flow).ended_at is not None


class Cancel(Deed):
    """A job in line, with a child that is skipped."""

    name = "cancel"

    def lay(self) -> None:
        self.id = add(self.near, self.clock.now)
        self.child = add(self.near, self.clock.now, parents=(self.id,))

    def do(self, store: Store) -> State:
        return store.cancel(self.id, now=self.clock.now)

    def check(self, answer: State, far: Store) -> None:
        assert answer is State.CANCELLED
        states = {id: state for id, (state, _) in self.states().items()}
        assert states[self.id] is State.CANCELLED
        assert states[self.child].final
        assert take_nothing(far, self)


def take_nothing(far: Store, deed: Deed) -> bool:
    """Is nothing left to claim?"""
    return far.claim(WORKER, {"default": 10}, now=deed.clock.now) == []


ALL: dict[str, type[Deed]] = DEEDS | {
    deed.name: deed for deed in (EnqueueLarge, SettleLarge, Promote, Fire, Admit, Release, Cancel)
}
