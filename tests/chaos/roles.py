"""Who is disturbed: producers that enqueue, cancel and move jobs until they are told to stop."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from tenure.errors import JobNotFound, StoreError
from tenure.job import NewJob, Unique
from tenure.store import Store, open_store
from tenure.tasks import Call
from tenure.worker.recorder import RecordingWorld
from tests.crash import handlers
from tests.crash.handlers import book, end_as, nap, nap_async, nap_in_child, quick, quick_async
from tests.processes.crew import Voice

ENOUGH = "enough"
MOST_LIVE = 400
LOOK_SECONDS = 0.05
WAYS_TO_END = ("raise", "retry", "snooze", "skip", "succeed")


def produce(voice: Voice, url: str, folder: Path, seed: int, *, books: bool) -> None:
    """The role of a producer. `books`: handlers may write in transactions of their own."""
    os.environ[handlers.STAGE] = str(folder)
    store = RecordingWorld(folder).watch(open_store(url))
    chance = random.Random(seed)
    voice.say("begun")
    ids: list[int] = []
    while not handlers.is_open(ENOUGH):
        try:
            _step(store, chance, ids, books=books)
        except (StoreError, JobNotFound):  # recorded as such; nothing that was promised is lost
            time.sleep(LOOK_SECONDS)
    store.close()


def _step(store: Store, chance: random.Random, ids: list[int], *, books: bool) -> None:
    if sum(row.jobs for row in store.count_live()) > MOST_LIVE:
        time.sleep(LOOK_SECONDS)
        return
    jobs = [_job(chance, books=books) for _ in range(chance.choice([1, 1, 3, 30]))]
    ids += [answer.id for answer in store.enqueue(jobs)]
    del ids[:-50]
    some = chance.choice(ids)
    match chance.randrange(20):
        case 0:
            store.cancel(some)
        case 1:
            store.move(some, priority=chance.randrange(-2, 3))
        case 2 | 3:
            time.sleep(chance.random() / 20)


def _job(chance: random.Random, *, books: bool) -> NewJob:
    options: dict[str, Any] = {}
    if chance.random() < 0.1:
        options["unique"] = Unique(key=f"key {chance.randrange(10)}")
    if chance.random() < 0.1:
        options["delay_seconds"] = chance.random()
    if chance.random() < 0.2:
        options["priority"] = chance.randrange(-2, 3)
    return _call(chance, options, books=books).job


def _call(chance: random.Random, options: dict[str, Any], *, books: bool) -> Call[Any]:
    seconds = chance.choice([0.0, 0.0, 0.01, 0.1])
    kinds = ["quick", "quick_async", "nap", "nap_async", "end_as"] + ["book"] * 2 * books
    match chance.choice(kinds) if chance.random() < 0.97 else "nap_in_child":
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
