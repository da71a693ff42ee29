"""Who is disturbed beside the workers: producers, and sweepers that do nothing but what time asks.

A producer enqueues jobs of all kinds, for several tenants, at gates, and workflows; it cancels and
moves some, until it is told to stop.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import msgspec

from tenure.errors import JobNotFound, StoreError, WorkflowNotFound
from tenure.rules.graph import NewNode, NewWorkflow, OnFailure
from tenure.rules.job import NewJob, Unique, When
from tenure.store import Store, open_store
from tenure.tasks import Call
from tenure.testing.recorder import RecordingEnvironment
from tests.chaos.tasks import by_threes, by_twos, grow, last, one_by_one, paced
from tests.crash import handlers
from tests.crash.handlers import book, end_as, nap, nap_async, nap_in_child, quick, quick_async
from tests.processes.crew import Voice

ENOUGH = "enough"
MOST_LIVE = 50
LOOK_SECONDS = 0.05
WAYS_TO_END = ("raise", "retry", "snooze", "skip", "succeed")
TENANTS = ("", "", "", "acme", "umbrella")
KEYS = ("a", "b", "c")
SECONDS = (0.0, 0.05, 0.3, 0.6, 1.0)
GATED_SECONDS = (0.0, 0.0, 0.01, 0.05)
SIZES = (1, 1, 1, 3, 3, 10)
PAUSE_SECONDS = 0.4
"""At most, between two steps of a producer: the machine shall not be at its limit all the time."""
RULES = (*[When.ALL_SUCCEEDED] * 4, When.ALL_FINISHED, When.ANY_SUCCEEDED, When.ANY_FAILED)


def _recorded(url: str, folder: Path) -> Store:
    os.environ[handlers.STAGE] = str(folder)
    return RecordingEnvironment(folder).wrap(open_store(url))


def produce(voice: Voice, url: str, folder: Path, seed: int, *, books: bool) -> None:
    """The role of a producer. `books`: handlers may write in transactions of their own."""
    store = _recorded(url, folder)
    voice.say("begun")
    producer = _Producer(store, random.Random(seed), books=books)
    while not handlers.is_open(ENOUGH):
        try:
            producer.step()
        except (StoreError, JobNotFound, WorkflowNotFound):
            time.sleep(LOOK_SECONDS)  # recorded as such; nothing that was promised is lost
    store.close()


def sweep(voice: Voice, url: str, folder: Path) -> None:
    """The role of a sweeper: it has no handlers, and rescues, promotes and fires all the same."""
    store = _recorded(url, folder)
    voice.say("begun")
    while not handlers.is_open(ENOUGH):
        try:
            store.sweep()
            store.promote()
            store.fire()
        except StoreError:
            pass
        time.sleep(LOOK_SECONDS)
    store.close()


class _Producer:
    def __init__(self, store: Store, chance: random.Random, *, books: bool) -> None:
        self._store = store
        self._chance = chance
        self._books = books
        self._ids: list[int] = []
        self._flows: list[int] = []

    def step(self) -> None:
        """One thing of many; nothing, while there is enough to do."""
        chance, store = self._chance, self._store
        time.sleep(chance.random() * PAUSE_SECONDS)
        if sum(row.jobs for row in store.count_live()) > MOST_LIVE:
            return
        match chance.randrange(40):
            case 0 | 1 if self._ids:
                store.cancel(chance.choice(self._ids))
            case 2 if self._ids:
                store.move(chance.choice(self._ids), priority=chance.randrange(-2, 3))
            case 3 if self._flows:
                store.cancel_workflow(chance.choice(self._flows))
            case 4 | 5 | 6 | 7:
                self._flows.append(store.enqueue_workflow(self._workflow()).id)
                del self._flows[:-5]
            case _:
                jobs = [self._job() for _ in range(chance.choice(SIZES))]
                self._ids += [answer.id for answer in store.enqueue(jobs)]
                del self._ids[:-50]

    def _job(self) -> NewJob:
        chance = self._chance
        if chance.random() < 0.3:
            return self._gated().job
        options: dict[str, Any] = {}
        if chance.random() < 0.1:
            options["unique"] = Unique(key=f"key {chance.randrange(10)}")
        if chance.random() < 0.1:
            options["delay_seconds"] = chance.random()
        if chance.random() < 0.2:
            options["priority"] = chance.randrange(-2, 3)
        return msgspec.structs.replace(self._call(options).job, tenant=chance.choice(TENANTS))

    def _gated(self) -> Call[Any]:
        chance = self._chance
        key, seconds = chance.choice(KEYS), chance.choice(GATED_SECONDS)
        match chance.randrange(5):
            case 0 | 1:
                return one_by_one.call(key, seconds)
            case 2:
                return by_twos.call(key, seconds)
            case 3:
                return by_threes.call(seconds)
            case _:
                return paced.call()

    def _call(self, options: dict[str, Any]) -> Call[Any]:
        chance = self._chance
        seconds = chance.choice(SECONDS)
        kinds = ["quick", "quick_async", "nap", "nap_async", "end_as"] + ["book"] * 2 * self._books
        match chance.choice(kinds) if chance.random() < 0.98 else "nap_in_child":
            case "quick":
                return quick.options(**options).call()
            case "quick_async":
                return quick_async.options(**options).call()
            case "nap":
                return nap.options(**options).call(seconds)
            case "nap_async":
                return nap_async.options(**options).call(seconds)
            case "nap_in_child":
                return nap_in_child.options(**options).call(seconds)
            case "book":
                return book.options(**options).call(seconds)
            case _:
                options["max_attempts"] = 2  # the pause before a third one would be long
                return end_as.options(**options).call(chance.choice(WAYS_TO_END))

    def _workflow(self) -> NewWorkflow:
        """Some nodes, each after some of those before it; most meet in the end."""
        chance, tenant = self._chance, self._chance.choice(TENANTS)

        def node(name: str, call: Call[Any], after: tuple[int, ...] = ()) -> NewNode:
            job = msgspec.structs.replace(call.job, tenant=tenant)
            when = chance.choice(RULES) if after else When.ALL_SUCCEEDED
            return NewNode(name=name, job=job, after=after, when=when)

        nodes = [node("first", nap_async.call(chance.choice(SECONDS)))]
        for n in range(1, chance.randrange(2, 6)):
            parents = chance.sample(range(n), chance.randrange(min(n, 2) + 1))
            nodes.append(node(f"node-{n}", self._call({}), tuple(sorted(parents))))
        nodes.append(node("grow", grow.call(chance.randrange(1, 4)), (0,)))
        nodes.append(node("join", nap.call(0.0), tuple(range(len(nodes)))))
        return NewWorkflow(
            name="play", nodes=tuple(nodes), tenant=tenant,
            on_failure=chance.choice([OnFailure.FINISH, OnFailure.STOP]),
            finaliser=node("last", last.call()) if chance.random() < 0.8 else None,
        )  # fmt: skip
