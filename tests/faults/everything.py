"""Every operation of a store at least once: for a role that may do no more than it needs."""

from __future__ import annotations

from typing import Any

from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.ends import NewHook
from tenure.rules.gates import Limits
from tenure.rules.graph import OnFailure
from tenure.rules.job import NewJob, NewStep, State, Unique, WorkerInfo
from tenure.rules.statistics import Counted
from tenure.rules.ticks import ScheduleTiming
from tenure.store import LANDED, NewSchedule, Store
from tenure.store.api import Operations, operation
from tests.support.flows import CHAIN, flow, more
from tests.support.stores import Clock
from tests.support.work import ERROR, TASK, add, add_many, ids_of, job, settle, take, take_one


def run_everything(store: Store, clock: Clock) -> None:
    """With the rights of its role. An operation that is not run here is an error."""
    noted = Noted(store)
    in_line(noted, clock)
    at_gates(noted, clock)
    in_a_workflow(noted, clock)
    by_the_clock(noted, clock)
    by_ends(noted, clock)
    looks(noted, clock)
    noted.prune(succeeded_seconds=0, other_seconds=0)
    operations = {
        name for name, each in vars(Operations).items() if isinstance(each, operation)
    }  # fmt: skip
    assert operations - {"migrate"} == noted.done


class Noted(Store):
    """The same store; it notes which operations were run."""

    def __init__(self, store: Store) -> None:
        super().__init__(store._scope.session)
        self.done: set[str] = set()

    def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.done.add(call.__name__)
        return super().run(call, *args, **kwargs)


def in_line(store: Store, clock: Clock) -> None:
    """Jobs without more."""
    add_many(store, clock.now, 1200)
    parent = add(store, clock.now, queue="b", unique=Unique(key="a"))
    assert store.get_by_key(TASK, "a").id == parent
    store.enqueue([job(queue="b", parents=(parent,), delay_seconds=5)], now=clock.now)
    store.peek(["default"], now=clock.now)
    store.is_idle(["default"], now=clock.now)
    store.expire(now=clock.now)
    held = take_one(store, clock.now, queue="b")
    store.extend("w1", {held.lease_id: [held.id]}, now=clock.now)
    assert len(store.held("w1", now=clock.now)) == 1
    assert store.report_progress("w1", [(held, 0.5, "half")], now=clock.now) == [LANDED]
    store.save_checkpoint("w1", held, encode({}), now=clock.now)
    assert store.record_step("w1", held, NewStep("a", "f", encode(1)), now=clock.now) == LANDED
    assert len(store.steps(held.id)) == 1
    assert store.annotate("w1", [(held, {"loss": 0.5})], now=clock.now) == [LANDED]
    assert store.start_once("w1", held, now=clock.now) == LANDED
    assert len(store.attempts(held.id)) == 1
    assert store.settle("w1", [lifecycle.succeed(held)], now=clock.now) == [LANDED]
    assert not store.free_key(TASK, "a", now=clock.now)
    store.promote(now=clock.advance(10))
    take(store, clock.now, 600)
    store.sweep(now=clock.advance(60))
    first, second, third = ids_of(take(store, clock.now, 3))
    store.cancel(first, now=clock.now)
    waiting = store.list_jobs(states=[State.QUEUED], limit=5).jobs
    store.cancel(waiting[0].id, now=clock.now)
    store.replay(waiting[0].id, now=clock.now)
    store.hold(waiting[1].id, now=clock.now)
    store.unhold(waiting[1].id, now=clock.now)
    store.move(waiting[2].id, priority=5, now=clock.now)
    store.cancel(waiting[3].id, now=clock.now)
    store.delete(waiting[3].id, now=clock.now)
    several = [job.id for job in store.list_jobs(states=[State.QUEUED], limit=5).jobs]
    store.hold_many(several, now=clock.now)
    store.unhold_many(several, now=clock.now)
    store.move_many(several, priority=5, now=clock.now)
    store.cancel_many(several, now=clock.now)
    store.replay_many(several[:2], now=clock.now)
    store.delete_many(several[2:], now=clock.now)
    store.pause("default", now=clock.now)
    store.resume("default", now=clock.now)
    assert store.timeline(second)
    assert store.progress(third) is not None


def at_gates(store: Store, clock: Clock) -> None:
    """Jobs that wait for each other, by number and by rate, in lines with a key and without."""
    limits = {
        "one": Limits(max_running=1),
        "each": Limits(max_running=1, keyed=True),
        "rate": Limits(rate=1, per_seconds=1.0),
    }
    store.declare_gates(limits, now=clock.now)
    for gate, keys in {"one": (None, None), "each": ("x", "y"), "rate": (None, None)}.items():
        ids = [add(store, clock.now, queue="g", gate=gate, gate_key=key) for key in keys]
        assert store.get(ids[0]).gate == gate
    store.set_gate("one", max_running=2, now=clock.now)
    store.reset_gate("one", now=clock.now)
    held = take(store, clock.now, queue="g")
    assert len(held) == 4, "one, x, y, and one by its rate"
    assert {seen.running for seen in store.gates()} == {1, 2}
    store.gate_lines("each")
    [waiting, *_] = store.list_jobs(states=[State.QUEUED], queue="g").jobs
    assert store.gate_wait(waiting.id) is not None
    assert "no worker is alive" in store.why(waiting.id)
    settle(store, clock.now, *(lifecycle.succeed(each) for each in held))
    take(store, clock.advance(1), queue="g")
    store.sweep(now=clock.advance(60))
    store.heal_gates(now=clock.now)


def in_a_workflow(store: Store, clock: Clock) -> None:
    """A graph of jobs: it grows, is cancelled, ends, and is replayed."""
    chain = flow(CHAIN, key="a", finaliser="z", on_failure=OnFailure.STOP)
    run = store.enqueue_workflow(chain, now=clock.now)
    store.pause_workflow(run.id, now=clock.now)
    store.resume_workflow(run.id, now=clock.now)
    first = store.node_named(run.id, "a")
    assert store.workflow_of(first) == (run.id, "a")
    held = take_up_to(store, clock, first)
    assert store.grow_workflow("w1", held, [more("d", before_names=("c",))], now=clock.now)
    settle(store, clock.now, lifecycle.succeed(held))
    assert len(store.parent_ends(store.node_named(run.id, "b"))) == 1
    assert len(store.list_nodes(run.id).nodes) == 5
    store.cancel_workflow(run.id, now=clock.now)
    last = take_up_to(store, clock, store.node_named(run.id, "z"))
    settle(store, clock.now, lifecycle.succeed(last))
    assert store.get_workflow(run.id).outcome == "cancelled"
    store.replay(store.node_named(run.id, "b"), now=clock.now)
    store.heal_workflows(now=clock.now)
    assert len(store.list_workflows()) == 1


def take_up_to(store: Store, clock: Clock, id: int) -> Claimed:
    """Claim until this job comes."""
    while jobs := take(store, clock.now, 1000):
        for held in jobs:
            if held.id == id:
                return held
    raise AssertionError(f"job {id} is not in line")


def by_the_clock(store: Store, clock: Clock) -> None:
    """Schedules."""
    every = NewSchedule(name="s", timing=ScheduleTiming(every_seconds=60), job=job())
    declared = NewSchedule(name="t", timing=ScheduleTiming(cron="@yearly"), job=job())
    store.declare_schedules([declared], now=clock.now)
    store.add_schedule(every, now=clock.now)
    store.trigger_schedule("s", now=clock.now)
    assert len(store.fire(now=clock.advance(60)).jobs) == 1
    assert len(store.schedule_runs("s")) == 2
    store.edit_schedule("s", timing={"every_seconds": 30}, now=clock.now)
    store.pause_schedule("s", now=clock.now)
    store.resume_schedule("s", now=clock.now)
    assert store.get_schedule("s") in store.list_schedules()
    store.remove_schedule("s")


def by_ends(store: Store, clock: Clock) -> None:
    """Readers of the feed, and failure hooks."""
    hook = NewHook(task=TASK, parameter="failed", job=NewJob(task="app.tell"))
    store.declare_hooks([hook], now=clock.now)
    assert store.failure_hooks() == [(TASK, "app.tell")]
    store.add_reader("r", now=clock.now)
    add(store, clock.now, queue="feed")
    settle(store, clock.now, lifecycle.fail(take_one(store, clock.now, queue="feed"), ERROR))
    page = store.read_feed("r", now=clock.now)
    assert len(page.ends) == 1
    store.move_reader("r", page.position, now=clock.now)
    assert len(store.readers()) == 1
    assert store.remove_reader("r", now=clock.now)
    assert store.remove_hook("app.tell", now=clock.now)


def looks(store: Store, clock: Clock) -> None:
    """What people ask for."""
    store.announce(WorkerInfo(name="w1", host="h", pid=1, queues={"default": 1}), now=clock.now)
    assert len(store.workers(now=clock.now)) == 1
    store.retire("w1", now=clock.now)
    store.about()
    store.count_live()
    store.count_finished(clock.now, clock.now)
    store.oldest_ready()
    store.paused_queues()
    assert store.missing_tables() == []
    store.health_facts()
    store.storage_trouble()
    store.progress_many([1, 2])
    store.add_statistics("p", [Counted("default", TASK, "succeeded", 5)], at=clock.now)
    assert store.statistics(clock.now, clock.advance(60))
    store.sample_depth(now=clock.now)
    assert store.depth(now=clock.now) is not None
