"""What the members of a crew do. Each role opens its own store and says what it was told."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from tenure.rules import lifecycle
from tenure.rules.claim import Claimed, Lease
from tenure.rules.job import NewJob, Unique
from tenure.store import AsyncStore, Store, open_async_store, open_store
from tests.processes.crew import Voice

BATCH = 25


def worker_name() -> str:
    """Random per process start, as the design wants it."""
    return f"w-{os.getpid()}-{random.randrange(1 << 30)}"


def drain(voice: Voice, url: str, block: int) -> None:
    """Claim and settle until nothing is live; says the ids that landed."""
    store, worker = open_store(url), worker_name()
    voice.wait()
    while True:
        for lease in store.claim(worker, {"default": block}):
            settle_all(voice, store, worker, lease)
            break
        else:
            if not store.count_live():
                break
            time.sleep(0.002)
    store.close()


def settle_all(voice: Voice, store: Store, worker: str, lease: Lease) -> None:
    """End every attempt of a lease with success."""
    ends = [lifecycle.succeed(held) for held in lease.jobs]
    answers = store.settle(worker, ends, done_leases=[lease.id])
    told = zip(lease.jobs, answers, strict=True)
    voice.say("landed", [held.id for held, answer in told if answer.landed])
    stale = [held.id for held, answer in zip(lease.jobs, answers, strict=True) if answer.stale]
    if stale:
        voice.say("stale", stale)


def enqueue_keys(voice: Voice, url: str, keys: int, seed: int, batch: int) -> None:
    """Enqueue the same keys as everybody else, in an order of one's own; says every answer."""
    store = open_store(url)
    order = [f"key-{number}" for number in range(keys)]
    random.Random(seed).shuffle(order)
    voice.wait()
    for part in parts(order, batch):
        jobs = [NewJob(task="app.once", unique=Unique(key=key)) for key in part]
        answers = store.enqueue(jobs)
        voice.say(
            "told",
            [(key, answer.id, answer.created) for key, answer in zip(part, answers, strict=True)],
        )
    store.close()


def parts(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """The items in pieces."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def arrive(voice: Voice, url: str) -> None:
    """The first thing a process does: open the store, bring the schema up to date, use it."""
    voice.wait()
    store = open_store(url)
    voice.say("version", store.migrate())
    voice.say("enqueued", store.enqueue([NewJob(task="app.first")])[0].id)
    store.close()


def write_until_told(voice: Voice, url: str, seconds: float) -> None:
    """Enqueue, claim and settle one by one for a while; says how long each call took."""
    store, worker = open_store(url), worker_name()
    voice.wait()
    took: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        store.enqueue([NewJob(task="app.tiny")])
        enqueued = time.monotonic()
        leases = store.claim(worker, {"default": 1})
        claimed = time.monotonic()
        for lease in leases:
            ends = [lifecycle.succeed(held) for held in lease.jobs]
            store.settle(worker, ends, done_leases=[lease.id])
        took += [enqueued - start, claimed - enqueued, time.monotonic() - claimed]
    voice.say("took", took)
    store.close()


class Timed:
    """A store whose calls are timed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.took: list[float] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def call(*args: object, **kwargs: object) -> Any:
            start = time.monotonic()
            answer = method(*args, **kwargs)
            self.took.append(time.monotonic() - start)
            return answer

        return call


def take_part(voice: Voice, url: str, seconds: float) -> None:
    """Be one of many for a while: enqueue, claim and settle, and now and then all the rest.

    Says what it was told, and how long each call took.
    """
    store, worker = Timed(open_store(url)), worker_name()
    voice.wait()
    end = time.monotonic() + seconds
    for turn in count():
        [added] = store.enqueue([NewJob(task="app.tiny")])
        voice.say("enqueued", added.id)
        for lease in store.claim(worker, {"default": 1}):
            if turn % 10 == 0:
                store.extend(worker, {lease.id: []})
            ends = [lifecycle.succeed(held) for held in lease.jobs]
            answers = store.settle(worker, ends, done_leases=[lease.id])
            if all(answer.landed for answer in answers):
                voice.say("landed", [held.id for held in lease.jobs])
        if turn % 10 == 5:
            store.sweep()
            store.promote()
            store.list_jobs()
            store.get(added.id)
        if time.monotonic() > end:
            break
    voice.say("took", store.took)
    store.close()


def churn(voice: Voice, url: str, lease_seconds: float, seconds: float) -> None:
    """Everything at once: enqueue, claim, settle in every way, beat, sweep, promote."""
    store, worker = open_store(url, give_up_seconds=60), worker_name()
    voice.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        jobs = [NewJob(task="app.churn", max_attempts=1000) for _ in range(random.randrange(BATCH))]
        for answer in store.enqueue(jobs):
            voice.say("enqueued", answer.id)
        held: list[Claimed] = []
        for lease in store.claim(worker, {"default": BATCH}, lease_seconds=lease_seconds):
            held += lease.jobs
            store.extend(worker, {lease.id: [lease.jobs[0].id]}, lease_seconds=lease_seconds)
        settle_somehow(voice, store, worker, held)
        store.promote()
        store.sweep()
    store.close()


def settle_somehow(voice: Voice, store: Store, worker: str, held: list[Claimed]) -> None:
    """End attempts in all ways; some are simply forgotten, as by a careless worker."""
    ends = []
    for job in held:
        match random.randrange(10):
            case 0:
                ends.append(lifecycle.release(job))
            case 1:
                ends.append(lifecycle.snooze(job, 0.01))
            case 2:
                continue
            case _:
                ends.append(lifecycle.succeed(job))
    leases = sorted({job.lease_id for job in held})
    answers = store.settle(worker, ends, done_leases=leases)
    for end, answer in zip(ends, answers, strict=True):
        if answer.landed and end.outcome is lifecycle.Outcome.SUCCEED:
            voice.say("succeeded", end.id)


def hold_and_settle_late(voice: Voice, url: str) -> None:
    """Claim one job, say so, and settle it when woken; says the answers to all late writes."""
    store, worker = open_store(url), worker_name()
    [lease] = store.claim(worker, {"default": 1}, lease_seconds=0.2)
    [held] = lease.jobs
    voice.say("claimed", held.id)
    voice.wait()  # stopped meanwhile, by SIGSTOP, for longer than the lease
    beat = store.extend(worker, {lease.id: [held.id]})
    voice.say("lost", list(beat.lost))
    [progress] = store.report_progress(worker, [(held, 0.5, "half")])
    voice.say("late", progress.stale)
    for late in (lifecycle.release(held), lifecycle.succeed(held)):
        [answer] = store.settle(worker, [late], done_leases=[lease.id])
        voice.say("late", answer.stale)
    store.close()


def fork_family(voice: Voice, url: str) -> None:
    """A store that was used before a fork, used by parent and child afterwards, and closed by one.

    The child goes on while its parent closes the store, and while a stranger opens and closes the
    same database: nothing that the child was told may be lost.
    """
    sys.unraisablehook = lambda problem: voice.say("error", str(problem.exc_value))
    warnings.simplefilter("error")
    store = open_store(url)
    enqueue_some(voice, store)
    store.list_jobs()
    to_child, from_parent = os.pipe()[::-1]
    to_parent, from_child = os.pipe()[::-1]
    if os.fork() == 0:
        os.close(to_child)
        os.close(from_child)
        with ending_the_process(voice):
            enqueue_some(voice, store)
            store.list_jobs()
            os.write(to_parent, b"1")
            os.read(from_parent, 1)  # the parent has closed its store
            enqueue_some(voice, store)
            os.write(to_parent, b"2")
            os.read(from_parent, 1)  # a stranger has come and gone
            enqueue_some(voice, store)
            run_some(voice, store)
            store.close()
    os.close(to_parent)
    os.close(from_parent)
    enqueue_some(voice, store)
    os.read(from_child, 1)
    run_some(voice, store)
    store.close()
    os.write(to_child, b"1")
    os.read(from_child, 1)
    with open_store(url) as stranger:
        enqueue_some(voice, stranger)
    os.write(to_child, b"2")
    _, status = os.wait()
    assert status == 0
    voice.say("end")


def enqueue_some(voice: Voice, store: Store) -> None:
    """Twenty jobs, one by one."""
    for _ in range(20):
        [answer] = store.enqueue([NewJob(task="app.family")])
        voice.say("enqueued", answer.id)


def run_some(voice: Voice, store: Store) -> None:
    """Ten jobs, in one block."""
    for lease in store.claim(worker_name(), {"default": 10}):
        settle_all(voice, store, lease.worker, lease)


@contextmanager
def ending_the_process(voice: Voice) -> Iterator[None]:
    """A forked child leaves here, whatever happens."""
    try:
        yield
    except BaseException:  # noqa: BLE001 - it is said, and the process ends
        voice.say("error", traceback.format_exc())
        os._exit(1)
    os._exit(0)


def fork_with_an_event_loop(voice: Voice, url: str) -> None:
    """The same for a store on an event loop: the child has a loop, and threads, of its own."""
    loop = asyncio.new_event_loop()

    async def opened() -> AsyncStore:
        return open_async_store(url)

    async def some(store: AsyncStore) -> None:
        for _ in range(5):
            async with asyncio.timeout(20):
                [answer] = await store.enqueue([NewJob(task="app.family")])
            voice.say("enqueued", answer.id)

    store = loop.run_until_complete(opened())
    loop.run_until_complete(some(store))
    if os.fork() == 0:
        with ending_the_process(voice):
            asyncio.set_event_loop(None)
            child_loop = asyncio.new_event_loop()
            child_loop.run_until_complete(some(store))
            child_loop.run_until_complete(store.close())
    loop.run_until_complete(some(store))
    _, status = os.wait()
    assert status == 0
    loop.run_until_complete(store.close())
    voice.say("end")
