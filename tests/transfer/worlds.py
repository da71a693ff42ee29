"""Databases that have seen everything: every state, every feature, and some chance.

`everything` plays one scene per feature. `wander` does at random whatever clients, workers and
operators do. Afterwards nothing runs, except what `leave_a_lease` has left to a dead worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from msgspec import structs

from tenure.errors import JobNotFound, KeyTaken
from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.ends import NewHook
from tenure.rules.gates import Limits
from tenure.rules.graph import NewWorkflow, OnFailure
from tenure.rules.job import Json, NewJob, NewStep, Unique, Until
from tenure.rules.retry import Fixed, dump_policy
from tenure.rules.statistics import Counted
from tenure.rules.ticks import ScheduleTiming
from tenure.store import NewSchedule, Store
from tests.support.counting import counted
from tests.support.flows import failing, flow, more
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, job, run, settle, take, take_one

QUEUES = ("default", "mail", "gpu", "closed")
ODD_TEXT = "tab\t line\n back\\slash \\N \\. 'quote' \"two\" \r \x7f é 漢字 \U0001f600 %s ?"
ODD_REASON = "over heated: 漢字 \\N"
ODD_JSON = Json(b'{ "a" :\t[1, 1.0, 1e3,\n 12345678901234567890],"b":"\\u00e9\\u0001\\\\N" }')


def everything(store: Store, clock: Clock) -> None:
    """One scene per feature, at times with microseconds."""
    clock.advance(0.123456)
    for scene in (_feed, _lines, _values, _due, _tries, _crashes, _family, _holding, _keys, _notes,
                  _stops, _operators, _pauses, _schedules, _gates, _workflows,
                  _statistics):  # fmt: skip
        clock.advance(1.000001)
        scene(store, clock)
    clock.advance(1.5)


def leave_a_lease(store: Store, clock: Clock) -> list[int]:
    """A worker dies with jobs in its hands, one of them started, one of them asked to stop."""
    ids = add_many(store, clock.now, 4, queue="left")
    leases = store.claim("dead", {"left": 4}, lease_seconds=5, now=clock.now)
    store.extend("dead", {leases[0].id: ids[:1]}, lease_seconds=5, now=clock.now)
    store.cancel(ids[1], now=clock.now)
    store.hold(ids[2], now=clock.now)
    return ids


def _feed(store: Store, clock: Clock) -> None:
    """Readers, of which one is lost and one has moved on; and a hook of a task."""
    store.add_reader("lost", now=clock.now)
    clock.advance(8 * 86_400)
    store.prune(now=clock.now)
    store.add_reader("behind", now=clock.now)
    store.add_reader("ahead", now=clock.now)
    store.for_tenant("acme").add_reader("theirs", now=clock.now)
    job = NewJob(task="app.alert", queue="closed", metadata=encode({"of": ODD_TEXT}))
    store.declare_hooks([NewHook(task="app.fragile", parameter="failed", job=job)], now=clock.now)
    add(store, clock.now, task="app.fragile", args=encode({"text": ODD_TEXT}), queue="fragile")
    run(store, clock.now, lambda held: lifecycle.fail(held, ODD_JSON), queue="fragile")
    store.move_reader("ahead", store.read_feed("ahead", now=clock.now).position, now=clock.now)


def _lines(store: Store, clock: Clock) -> None:
    for priority in (5, -3, 0, 5, -100, 100):
        add_many(store, clock.advance(0.01), 3, queue="mail", priority=priority)
    add_many(store, clock.now, 20)
    add(store, clock.now, tenant="acmé", queue="mail")


def _values(store: Store, clock: Clock) -> None:
    add(store, clock.now, args=encode({"odd": ODD_TEXT}), metadata=encode({"trace": ODD_TEXT}))
    add(store, clock.now, args=ODD_JSON, metadata=ODD_JSON, queue="raw")
    add(store, clock.now, args=encode(None), timeout_seconds=0.1 + 0.2, max_attempts=10_000)
    add(store, clock.now, keep_succeeded_seconds=0.1 + 0.2, keep_other_seconds=math.inf)
    add(store, clock.now, retry=dump_policy(Fixed(1 / 3)))
    add(store, clock.now, start_within_seconds=1e6, finish_within_seconds=2e6)
    results: list[object] = [None, "text \\u00e9 é", ODD_TEXT, 1.5e300, [], 2**63]
    for n, result in enumerate(results):
        add(
            store, clock.now, queue="results", keep_succeeded_seconds=(None, 1 / 3, math.inf)[n % 3]
        )
        held = take_one(store, clock.advance(0.2), queue="results")
        settle(store, clock.now, lifecycle.succeed(held, encode(result), duration_seconds=1 / 3))
    run(store, clock.now, lambda held: lifecycle.succeed(held, ODD_JSON), queue="raw")


def _workflows(store: Store, clock: Clock) -> None:
    """One that has ended, one that has failed, one that is paused, and one that has grown."""
    chain: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("b",)}
    line: dict[str, Any] = {"queue": "flows"}

    def new(name: str, **options: Any) -> NewWorkflow:
        made = flow(chain, name=name, **options)
        nodes = tuple(
            structs.replace(node, job=structs.replace(node.job, **line)) for node in made.nodes
        )
        return structs.replace(made, nodes=nodes)

    store.enqueue_workflow(new("ended", key="k"), now=clock.advance(0.1))
    for _ in chain:
        run(store, clock.advance(0.1), lifecycle.succeed, **line)
    store.enqueue_workflow(new("failed", on_failure=OnFailure.STOP), now=clock.advance(0.1))
    run(store, clock.advance(0.1), failing, **line)
    paused = store.enqueue_workflow(new("paused"), now=clock.advance(0.1))
    store.pause_workflow(paused.id, now=clock.now)
    store.enqueue_workflow(new("grown", key="k", finaliser="fin"), now=clock.advance(0.1))
    held = take_one(store, clock.advance(0.1), **line)
    late = more("x", before_names=("b",))
    store.grow_workflow("w1", held, [late, more("y", after=(0,))], now=clock.now)
    settle(store, clock.advance(0.1), lifecycle.succeed(held))


def _gates(store: Store, clock: Clock) -> None:
    allowed = {"wide": Limits(), "one": Limits(max_running=1, keyed=True),
               "paced": Limits(rate=1 / 3, per_seconds=0.1, burst=100)}  # fmt: skip
    store.declare_gates(allowed, now=clock.now)
    store.set_gate("wide", max_running=1000, now=clock.now)
    for gate in allowed:
        add_many(store, clock.advance(0.1), 3, queue=gate, gate=gate, priority=2)
        add(store, clock.advance(0.1), queue=gate, gate=gate, delay_seconds=5.0)
        run(store, clock.advance(0.1), lifecycle.succeed, queue=gate)
    store.hold(add(store, clock.now, queue="wide", gate="wide"), now=clock.now)


def _due(store: Store, clock: Clock) -> None:
    add(store, clock.now, delay_seconds=3600.000001)
    add(store, clock.now, due_at=clock.now + timedelta(days=365 * 900, microseconds=7))
    add(store, clock.now, delay_seconds=0.5, queue="mail")
    store.promote(now=clock.advance(1))


def _tries(store: Store, clock: Clock) -> None:
    ends: list[Callable[[Claimed], lifecycle.Settlement]] = [
        lambda held: lifecycle.retry(held, encode({"why": ODD_TEXT}), 77.5, reason="again"),
        lambda held: lifecycle.retry(held, ERROR, 0.0),
        lambda held: lifecycle.snooze(held, 9000.25),
        lambda held: lifecycle.release(held, "shutdown"),
        lambda held: lifecycle.fail(held, encode({"why": ODD_TEXT}), "no good", 2.5),
        lambda held: lifecycle.skip(held, "nothing to do"),
        lambda held: lifecycle.abort(held, "asked to"),
    ]
    for end in ends:
        add(store, clock.now, queue="tries")
        claimed = take(store, clock.advance(0.25), 100, queue="tries")
        settle(store, clock.now, *(lifecycle.release(held) for held in claimed[:-1]))
        settle(store, clock.now, end(claimed[-1]))
    add(store, clock.now, queue="tries", max_attempts=1)
    for held in take(store, clock.now, 100, queue="tries"):
        settle(store, clock.now, lifecycle.retry(held, ERROR, 5.0))


def _crashes(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 3, queue="crashes")
    add(store, clock.now, queue="crashes", max_attempts=1)
    take(store, clock.now, 3, queue="crashes", lease_seconds=1)
    take(store, clock.now, 1, queue="crashes", lease_seconds=1, worker="w2")
    store.sweep(now=clock.advance(2))


def _family(store: Store, clock: Clock) -> None:
    good, bad, late = add_many(store, clock.now, 3, queue="family")
    add(store, clock.now, parents=(good, late), queue="family", delay_seconds=500)
    add(store, clock.now, parents=(good,), queue="mail")
    add(store, clock.now, parents=(bad,))
    store.hold(add(store, clock.now, parents=(late, good)), now=clock.now)
    first, second, third = take(store, clock.advance(0.5), queue="family")
    settle(store, clock.now, lifecycle.succeed(first), lifecycle.fail(second, ERROR))
    settle(store, clock.now, lifecycle.release(third))
    store.replay(good, now=clock.advance(0.5))


def _holding(store: Store, clock: Clock) -> None:
    store.hold(add(store, clock.now), reason="wait for " + "漢字", now=clock.now)
    store.hold(add(store, clock.now, delay_seconds=60), now=clock.now)
    held = add(store, clock.now, queue="holding")
    claimed = take_one(store, clock.now, queue="holding")
    store.hold(held, now=clock.now)
    settle(store, clock.now, lifecycle.release(claimed))
    again = add(store, clock.now)
    store.hold(again, now=clock.now)
    store.unhold(again, now=clock.advance(0.1))


def _keys(store: Store, clock: Clock) -> None:
    for until in Until:
        period = 3600.5 if until is Until.PERIOD else None
        for n, queue in enumerate(("keys", "spent")):
            unique = Unique(key=f"{until} {n} é'\\", until=until, period_seconds=period)
            add(store, clock.now, unique=unique, queue=queue)
    add(store, clock.now, unique=Unique(key="scoped", scope="everybody"), tenant="acmé")
    add(
        store, clock.now, unique=Unique(key="of a job that is gone", until=Until.FOREVER),
        queue="spent", keep_succeeded_seconds=0,
    )  # fmt: skip
    for held in take(store, clock.advance(0.5), queue="spent"):
        settle(store, clock.now, lifecycle.succeed(held))


def _notes(store: Store, clock: Clock) -> None:
    for end in (lifecycle.release, lambda held: lifecycle.fail(held, ERROR), lifecycle.succeed):
        add(store, clock.now, queue="notes")
        held = take(store, clock.advance(0.5), queue="notes")[-1]
        store.report_progress("w1", [(held, 1 / 3, ODD_TEXT)], now=clock.now)
        store.annotate("w1", [(held, {"text": ODD_TEXT, "third": 1 / 3, "n": -7})], now=clock.now)
        store.save_checkpoint("w1", held, ODD_JSON, now=clock.advance(0.000001))
        for name in ("back\\slash \\N é 漢字 %s ?", "zebra", "ant"):
            step = NewStep(f"{name} {held.token}", "Parser.<locals>.é", ODD_JSON)
            store.record_step("w1", held, step, now=clock.advance(0.000001))
        settle(store, clock.now, end(held))
        store.sweep(now=clock.advance(31))


def _stops(store: Store, clock: Clock) -> None:
    store.cancel(add(store, clock.now), reason="not needed", now=clock.now)
    store.cancel(add(store, clock.now, delay_seconds=60), now=clock.now)
    asked = add(store, clock.now, queue="stops")
    claimed = take_one(store, clock.now, queue="stops")
    store.cancel(asked, reason="stop it", now=clock.now)
    settle(store, clock.now, lifecycle.release(claimed))


def _operators(store: Store, clock: Clock) -> None:
    store.move(add(store, clock.now), queue="mail", priority=-7, now=clock.now)
    store.move(add(store, clock.now), due_at=clock.now + timedelta(hours=1), now=clock.now)
    again = add(store, clock.now, queue="replayed")
    run(store, clock.advance(0.5), lambda held: lifecycle.fail(held, ERROR), queue="replayed")
    store.replay(again, now=clock.advance(0.5))
    settle(store, clock.now, *(lifecycle.succeed(held) for held in take(store, clock.now, 2)))
    last = add(store, clock.now)
    store.cancel(last, now=clock.now)
    store.delete(last, now=clock.now)  # the highest id is gone, and must not be given out again


def _schedules(store: Store, clock: Clock) -> None:
    """One that ticks, one that skips, one that is paused, one of the code, one of a tenant."""
    busy = ScheduleTiming(every_seconds=1.5, overlap="skip", jitter_seconds=0.1 + 0.2)
    zoned = ScheduleTiming(cron="0 3 * * 1-5", tz="Europe/Berlin", catch_up="all", catch_up_limit=7)
    for name, timing in (
        ("busy", busy),
        ("paused", zoned),
        ("quick", ScheduleTiming(every_seconds=1)),
    ):
        scheduled = job(args=encode({"odd": ODD_TEXT}), queue="mail")
        store.add_schedule(NewSchedule(name=name, timing=timing, job=scheduled), now=clock.now)
    declared = NewSchedule(name="code", timing=zoned, job=job(metadata=ODD_JSON))
    store.declare_schedules([declared], now=clock.now)
    tenants = NewSchedule(name="quick", timing=busy, job=job(tenant="acmé"))
    store.add_schedule(tenants, now=clock.now)
    for _ in range(4):
        store.fire(now=clock.advance(1.000001))
    store.trigger_schedule("quick", now=clock.now)
    store.pause_schedule("paused", reason=ODD_REASON, now=clock.now)


def _statistics(store: Store, clock: Clock) -> None:
    """Counts of two processes, old ones in hours and days, and some of each without times."""
    waits = (0.001, 0.1 + 0.2, 1e5)
    rows = counted(
        *[("mail", "app.send", "succeeded", wait_seconds, 2.0) for wait_seconds in waits],
        *[("odd:name", "app.send", "failed", wait_seconds, 2.0) for wait_seconds in waits],
    )
    for days in (0, 3, 30):
        at = clock.now - timedelta(days=days)
        store.add_statistics("p", rows, at=at)
        store.add_statistics("q", [Counted("mail", "app.send", "skipped", 3)], at=at)
    store.prune(now=clock.now)


def _pauses(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 2, queue="closed")
    store.pause("closed", reason=None, now=clock.now)
    store.pause("gpu", reason=ODD_REASON, now=clock.advance(0.1))


def wander(store: Store, clock: Clock, random: Random, steps: int) -> None:
    """Whatever may happen, in whatever order; at the end every attempt is over."""
    walk = _Walk(store, clock, random)
    deeds = (walk.enqueue, walk.enqueue, walk.enqueue, walk.claim, walk.claim, walk.settle,
             walk.settle, walk.operate, walk.let_time_pass)  # fmt: skip
    for _ in range(steps):
        clock.advance(random.choice([0.000001, 0.3, 1.7, 11.0]))
        random.choice(deeds)()
    walk.end()


@dataclass
class _Walk:
    store: Store
    clock: Clock
    random: Random
    ids: list[int] = field(default_factory=list)
    held: list[Claimed] = field(default_factory=list)

    def enqueue(self) -> None:
        choice = self.random.choice
        parents = [id for id in self.ids if self.random.random() < 0.05][:3]
        with suppress(JobNotFound):  # a parent that was deleted
            [added] = self.store.enqueue(
                [job(
                    queue=choice(QUEUES), priority=choice([0, 0, -2, 9]), parents=tuple(parents),
                    delay_seconds=choice([None, None, 0.7, 500.25]),
                    unique=choice([None, None, self._key()]), max_attempts=choice([1, 2, 5]),
                    keep_other_seconds=choice([None, None, 7.5]),
                )],
                now=self.clock.now,
            )  # fmt: skip
            self.ids.append(added.id)

    def _key(self) -> Unique:
        until = self.random.choice([Until.STARTED, Until.FINISHED, Until.FINISHED, Until.FOREVER])
        return Unique(key=str(self.random.randrange(20)), until=until)

    def claim(self) -> None:
        self.held += take(
            self.store, self.clock.now, self.random.randrange(1, 6),
            queue=self.random.choice(QUEUES), lease_seconds=self.random.choice([2.0, 60.0]),
        )  # fmt: skip

    def settle(self) -> None:
        if not self.held:
            return
        claimed = self.held.pop(self.random.randrange(len(self.held)))
        if self.random.random() < 0.3:
            report = (claimed, self.random.random(), None)
            self.store.report_progress("w1", [report], now=self.clock.now)
        ends = [
            lifecycle.succeed(claimed, encode(self.random.random())),
            lifecycle.succeed(claimed),
            lifecycle.retry(claimed, ERROR, self.random.choice([0.0, 40.5])),
            lifecycle.fail(claimed, ERROR),
            lifecycle.snooze(claimed, 3.25),
            lifecycle.release(claimed),
            lifecycle.skip(claimed),
        ]
        settle(self.store, self.clock.now, self.random.choice(ends))

    def operate(self) -> None:
        if not self.ids:
            return
        id, now, store = self.random.choice(self.ids), self.clock.now, self.store
        deeds: list[Callable[[], object]] = [
            lambda: store.cancel(id, now=now),
            lambda: store.hold(id, now=now),
            lambda: store.unhold(id, now=now),
            lambda: store.move(id, priority=self.random.choice([-1, 4]), now=now),
            lambda: store.replay(id, now=now),
            lambda: store.get(id, now=now).state.final and store.delete(id, now=now),
        ]
        with suppress(JobNotFound, KeyTaken):  # finished, live or gone: chance does not look first
            self.random.choice(deeds)()

    def let_time_pass(self) -> None:
        now, store = self.clock.now, self.store
        deeds: list[Callable[[], object]] = [
            lambda: store.promote(now=now),
            lambda: store.sweep(now=now),
        ]
        self.random.choice(deeds)()

    def end(self) -> None:
        for claimed in self.held:
            settle(self.store, self.clock.now, lifecycle.release(claimed))
        while self.store.sweep(now=self.clock.advance(61)).more:
            pass
