"""A play on one file: threads with stores of their own do everything that a store can do.

Each notes what it is about to ask, and then what it was told. A seed draws the operations; which
thread goes first is up to the machine. Checkpoints come often, so that there are many.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import apsw
import msgspec

from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.gates import Limits
from tenure.rules.graph import NewNode, NewWorkflow
from tenure.rules.job import NewJob, NewStep, State, Unique
from tenure.rules.lifecycle import Settlement
from tenure.rules.ticks import ScheduleTiming
from tenure.store import NewSchedule, Store, open_store
from tests.power.disk import Record, recording
from tests.support.callers import process_of
from tests.support.stores import START
from tests.support.work import ERROR

GATE = "narrow"
QUEUES = {"default": 4, "gated": 3}
SCHEDULE = "often"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play."""

    seed: int
    operations: int = 40
    """By each thread."""
    threads: int = 3
    checkpoint_pages: int = 60
    payload_bytes: int = 2000
    synchronous: str = "FULL"


def play(plan: Plan, folder: Path) -> Record:
    """Play it in an empty folder. Answers all that happened."""
    with recording(folder) as record:
        cast = _Cast(plan, record, f"sqlite:///{folder}/jobs.db?synchronous={plan.synchronous}")
        cast.act()
        cast.act()  # the first ones have closed the file, and the WAL is gone
    return record


class _Cast:
    def __init__(self, plan: Plan, record: Record, url: str) -> None:
        self._plan = plan
        self._record = record
        self._url = url
        self._numbers = count()
        self._now = START
        self._acts = count()
        self._lock = threading.Lock()

    def act(self) -> None:
        """All threads at once, until each has done its part and closed its store."""
        act = next(self._acts)
        with ThreadPoolExecutor(self._plan.threads) as pool:
            seeds = [f"{self._plan.seed}-{act}-{n}" for n in range(self._plan.threads)]
            list(pool.map(self._perform, seeds))

    def _perform(self, seed: str) -> None:
        with open_store(self._url, give_up_seconds=60) as store:
            pages = self._plan.checkpoint_pages
            list(process_of(store).writer.execute(f"pragma wal_autocheckpoint = {pages}"))
            _Actor(self, store, self._record, self._plan, seed).perform()

    def number(self) -> int:
        """A number for a job."""
        return next(self._numbers)

    def later(self, seconds: float) -> datetime:
        """Time goes on for all."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            return self._now


class _Actor:
    def __init__(self, cast: _Cast, store: Store, record: Record, plan: Plan, seed: str) -> None:
        self._cast, self._store, self._record, self._plan = cast, store, record, plan
        self._chance = random.Random(seed)
        self._name = f"w-{seed}"
        self._held: list[Claimed] = []
        self._known: list[int] = []
        self._reader: apsw.Connection | None = None
        self._now = START

    def perform(self) -> None:
        """Do one thing after the other."""
        self._store.declare_gates({GATE: Limits(max_running=2)}, now=self._cast.later(0))
        deeds = {
            self._enqueue: 6, self._enqueue_many: 3, self._enqueue_special: 4, self._flow: 1,
            self._claim: 6, self._settle: 6, self._beat: 2, self._note: 2, self._cancel: 2,
            self._look_after: 2, self._fire: 1, self._read: 2, self._let_go: 2,
        }  # fmt: skip
        for _ in range(self._plan.operations):
            self._now = self._cast.later(self._chance.random() * 2)
            [deed] = self._chance.choices([*deeds], [*deeds.values()])
            deed()
        self._let_go()

    def _job(self, number: int, queue: str = "default", **options: object) -> NewJob:
        text = "x" * self._chance.randrange(self._plan.payload_bytes)
        args = encode({"n": number, "text": text})
        return NewJob(task="app.work", args=args, queue=queue, **options)  # type: ignore[arg-type]

    def _add(self, *options: dict[str, object]) -> None:
        jobs = [self._job(self._cast.number(), **each) for each in options]  # type: ignore[arg-type]
        numbers = [_number_of(job) for job in jobs]
        self._record.told("asked", numbers)
        answers = self._store.enqueue(jobs, now=self._now)
        told = [(n, each.id) for n, each in zip(numbers, answers, strict=True) if each.created]
        self._record.told("enqueued", told)
        self._known += [id for _, id in told]

    def _enqueue(self) -> None:
        self._add({})

    def _enqueue_many(self) -> None:
        self._add(*[{}] * self._chance.randrange(2, 12))

    def _enqueue_special(self) -> None:
        key = Unique(key=f"k{self._chance.randrange(5)}")
        gated: dict[str, object] = {"gate": GATE, "queue": "gated"}
        self._add({"unique": key}, {"delay_seconds": 5.0}, {"max_attempts": 1}, gated, gated)

    def _flow(self) -> None:
        numbers = [self._cast.number() for _ in range(3)]
        self._record.told("asked", numbers)
        nodes = tuple(
            NewNode(name=f"n{i}", job=self._job(number), after=tuple(range(i)))
            for i, number in enumerate(numbers)
        )
        flow = NewWorkflow(name="flow", nodes=nodes)
        added = self._store.enqueue_workflow(flow, now=self._now)
        ids = [node.id for node in self._store.list_nodes(added.id).nodes]
        self._record.told("flowed", ids)

    def _claim(self) -> None:
        for lease in self._store.claim(self._name, QUEUES, now=self._now):
            self._record.told("claimed", [(held.id, held.token) for held in lease.jobs])
            self._held += lease.jobs

    def _settle(self) -> None:
        count = self._chance.randrange(1, 6)
        held, self._held = self._held[:count], self._held[count:]
        ends = [self._end(job) for job in held]
        answers = self._store.settle(
            self._name, ends, done_leases=sorted({job.lease_id for job in held}), now=self._now
        )
        for end, answer in zip(ends, answers, strict=True):
            state = _FINAL.get(end.outcome)
            if answer.landed and state is not None:
                self._record.told("settled", end.id, state.value, end.token)

    def _end(self, job: Claimed) -> Settlement:
        match self._chance.randrange(8):
            case 0:
                return lifecycle.retry(job, ERROR, 1.0)
            case 1:
                return lifecycle.release(job)
            case 2:
                return lifecycle.fail(job, ERROR)
            case 3:
                return lifecycle.snooze(job, 3.0)
            case _:
                return lifecycle.succeed(job, result=encode({"of": job.id}))

    def _beat(self) -> None:
        leases = {job.lease_id: [job.id] for job in self._held}
        if leases:
            self._store.extend(self._name, leases, now=self._now)

    def _note(self) -> None:
        for job in self._held[:1]:
            self._store.report_progress(self._name, [(job, 0.5, "half")], now=self._now)
            name = f"step {self._cast.number()}"
            step = NewStep(name, "app.step", encode("x" * 100))
            answer = self._store.record_step(self._name, job, step, now=self._now)
            if answer.landed:
                self._record.told("stepped", job.id, name)

    def _cancel(self) -> None:
        if self._known:
            id = self._chance.choice(self._known)
            if self._store.cancel(id, now=self._now) is State.CANCELLED:
                self._record.told("settled", id, State.CANCELLED.value, 1)

    def _look_after(self) -> None:
        self._now = self._cast.later(self._chance.choice((1, 1, 40)))
        self._store.sweep(now=self._now)
        self._store.promote(now=self._now)

    def _fire(self) -> None:
        timing = ScheduleTiming(every_seconds=10)
        job = NewJob(task="app.tick")
        schedule = NewSchedule(name=f"{SCHEDULE}-{self._name}", timing=timing, job=job)
        if not any(seen.name == schedule.name for seen in self._store.list_schedules()):
            self._store.add_schedule(schedule, now=self._now)
        fired = self._store.fire(now=self._cast.later(11))
        self._record.told("fired", list(fired.jobs))

    def _read(self) -> None:
        """With a snapshot that stays: a checkpoint must stop before it, and be done in parts."""
        self._store.list_jobs(limit=20)
        self._let_go()
        self._reader = apsw.Connection(process_of(self._store).writer.filename)
        self._reader.execute("begin")
        list(self._reader.execute("select count(*) from tenure_job"))

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


_FINAL = {
    lifecycle.Outcome.SUCCEED: State.SUCCEEDED,
    lifecycle.Outcome.FAIL: State.FAILED,
}


def _number_of(job: NewJob) -> int:
    return int(msgspec.json.decode(job.args)["n"])
