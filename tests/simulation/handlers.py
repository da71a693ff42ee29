"""The application: handlers that end in every way, and take their time at the hub.

How an attempt ends is drawn by the seed when it runs. Every handler has an end that it may reach:
after the faults have stopped nothing fails by chance any more, so that the backlog empties.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenure.control import Cancel, Retry, Skip, Snooze
from tenure.errors import StoreUnavailable
from tenure.rules.ends import FailedJob
from tenure.rules.gates import Gate
from tenure.rules.retry import Exponential, Fixed
from tenure.running import Running
from tenure.tasks import TaskSet
from tests.simulation.store import Transaction

if TYPE_CHECKING:
    from tests.simulation.stage import Stage

tasks = TaskSet()
RETRY = Exponential(base_seconds=0.05, cap_seconds=0.5)


class _Now:
    """The stage on which the handlers play: one at a time in a process of the machine."""

    stage: Stage

    def leave(self, stage: Stage) -> None:
        """Forget it."""
        if getattr(self, "stage", None) is stage:
            del self.stage


now = _Now()


class Broken(Exception):
    """What a handler raises that fails."""


def _draw() -> float:
    return now.stage.hub.random.random()


def _seconds(longest: float) -> float:
    """Mostly short, sometimes long."""
    return longest * _draw() ** 3


def _end(job: Running, trouble: float) -> str:
    """One of the ways in which an attempt can end."""
    if now.stage.is_calm or _draw() > trouble:
        return f"token {job.token}"
    match int(7 * _draw()):
        case 0 | 1 | 2:
            raise Broken(f"token {job.token}")
        case 3:
            raise Snooze(0.2 * _draw())
        case 4:
            raise Retry(after_seconds=0.1 * _draw(), reason="again")
        case 5:
            raise Skip("no need")
        case _:
            raise Cancel("not wanted")


@tasks.task(retry=RETRY)
async def quick(job: Running) -> str:
    """Done at once, or nearly."""
    if _draw() < 0.5:
        await asyncio.sleep(_seconds(0.1))
    return _end(job, 0.2)


@tasks.task(retry=RETRY, max_attempts=8)
async def long(job: Running, seconds: float) -> str:
    """Some heartbeats long, with reports and checkpoints."""
    for part in range(4):
        await asyncio.sleep(seconds / 4)
        job.progress((part + 1) / 4, f"token {job.token}")
        job.annotate(part=part)
        if _draw() < 0.2:
            await job.save_async({"part": part})
    return _end(job, 0.2)


@tasks.task(retry=RETRY, queue="narrow")
async def deaf(job: Running, seconds: float) -> str:
    """Does not stop when it is told to."""
    until = now.stage.hub.now + seconds
    while now.stage.hub.now < until:
        try:
            await asyncio.sleep(until - now.stage.hub.now)
        except asyncio.CancelledError:
            continue
    return _end(job, 0.2)


@tasks.task(retry=RETRY, timeout_seconds=0.3)
async def timed(job: Running, seconds: float) -> str:
    """Takes longer than it may, sometimes."""
    await asyncio.sleep(0.0 if now.stage.is_calm else seconds)
    return _end(job, 0.1)


@tasks.task(retry=Fixed(0.1), queue="narrow", max_attempts=9)
async def blocking(job: Running, seconds: float) -> str:
    """Blocks the event loop of its worker."""
    hub = now.stage.hub
    hub.here().stall(seconds)
    hub.sleep(0.0 if now.stage.is_calm else seconds)
    return _end(job, 0.1)


@tasks.task(retry=RETRY, queue="threads")
def in_thread(job: Running, seconds: float) -> str:
    """In a thread; looks now and then whether it is still wanted."""
    until = now.stage.hub.now + seconds
    while now.stage.hub.now < until:
        now.stage.hub.sleep(0.05)
        job.check()
    if _draw() < 0.1:
        job.save({"token": job.token})
    return _end(job, 0.2)


@tasks.task(retry=RETRY, queue="threads", timeout_seconds=0.5)
def deaf_thread(job: Running, seconds: float) -> str:
    """In a thread; cannot be stopped."""
    now.stage.hub.sleep(0.0 if now.stage.is_calm else seconds)
    return _end(job, 0.2)


@tasks.task(retry=RETRY)
async def heavy(job: Running, text: str) -> str:
    """Large arguments, and a result that is as large."""
    await asyncio.sleep(_seconds(0.1))
    _end(job, 0.2)
    return text


@tasks.task(retry=RETRY)
async def parent(job: Running, children: int) -> str:
    """Enqueues jobs that wait for each other."""
    await asyncio.sleep(_seconds(0.1))
    if job.attempt == 1:
        app = now.stage.app_here()
        mark = {"tenant": job.tenant}  # they inherit it
        keys = [f"child {job.id} {n}" for n in range(children)]
        try:
            handles = await app.enqueue_many_async(
                [quick.options(key=key, metadata=mark).call() for key in keys]
            )
            parents = [handle.id for handle in handles]
            last = quick.options(parents=parents, key=f"last {job.id}", metadata=mark).call()
            await app.enqueue_many_async([last])
        except StoreUnavailable as error:
            raise Broken("the store cannot be reached") from error
    return _end(job, 0.2)


@tasks.task(retry=RETRY)
async def growing(job: Running, more: int, join: str | None) -> str:
    """Adds jobs to its own workflow, and one that waits for them; or a node that is there does."""
    await asyncio.sleep(_seconds(0.5))
    before = [] if join is None else [join]
    added = [job.workflow.add(quick.call(), before=before) for _ in range(more)]
    job.workflow.add(quick.call(), after=added, when="all_finished")
    await job.workflow.enqueue_async()
    return _end(job, 0.2)


@tasks.task(retry=RETRY, max_attempts=8)
async def stepping(job: Running, count: int) -> str:
    """Takes durable steps, and fails between them."""
    steps = now.stage.steps_taken

    async def take(name: str) -> str:
        result = steps.begins(job, name)
        await asyncio.sleep(_seconds(0.5))
        return result

    for n in range(count):
        name = f"step {n}"
        steps.has_returned(job, name, await job.step_async(name, take, name))
        _end(job, 0.1)
    return _end(job, 0.1)


@tasks.task(retry=RETRY, queue="threads", max_attempts=8)
def stepping_thread(job: Running, count: int) -> str:
    """The same in a thread."""
    steps = now.stage.steps_taken

    def take(name: str) -> str:
        result = steps.begins(job, name)
        now.stage.hub.sleep(_seconds(0.5))
        return result

    for n in range(count):
        name = f"step {n}"
        steps.has_returned(job, name, job.step(name, take, name))
        _end(job, 0.1)
    return _end(job, 0.1)


@tasks.task(retry=RETRY, queue="threads")
def transactional(job: Running, seconds: float) -> None:
    """Its effect and its end are one transaction."""
    now.stage.hub.sleep(seconds)
    session = now.stage.session
    chance = 1.0 if now.stage.is_calm else _draw()
    with Transaction(session) as transaction:
        transaction.add_effect(job.id, job.token)
        job.complete({"token": job.token}, on=transaction)
        if chance < 0.1:
            raise Broken("before the commit")
    if chance < 0.2:
        raise Broken("after the commit")


@tasks.task(retry=RETRY, gate=Gate("few", max_running=2))
async def one_of_few(job: Running, seconds: float) -> str:
    """No more than two of these at a time, whoever runs them."""
    await asyncio.sleep(seconds)
    return _end(job, 0.2)


@tasks.task(retry=RETRY, at_most_once=True)
async def once(job: Running, seconds: float) -> str:
    """Starts at most once, unless an operator begins it anew."""
    now.stage.only_starts[job.id] += 1
    await job.annotate_async(token=job.token, now=True)
    await asyncio.sleep(seconds)
    return _end(job, 0.2)


@tasks.task(retry=RETRY, queue="threads", at_most_once=True)
def once_in_thread(job: Running, seconds: float) -> str:
    """The same, in a thread."""
    now.stage.only_starts[job.id] += 1
    now.stage.hub.sleep(seconds)
    return _end(job, 0.2)


def _line(line: int, seconds: float) -> int:  # noqa: ARG001
    return line


@tasks.task(retry=RETRY, gate=Gate("line", max_running=1, key=_line))
async def in_line(job: Running, line: int, seconds: float) -> str:  # noqa: ARG001
    """One at a time of each line."""
    await asyncio.sleep(seconds)
    return _end(job, 0.2)


@tasks.task(retry=RETRY)
async def ticked(job: Running) -> str:
    """Enqueued by a schedule."""
    await asyncio.sleep(_seconds(0.05))
    return _end(job, 0.1)


@tasks.on_failed
@tasks.task(retry=RETRY)
async def report(job: Running, failed: FailedJob) -> str:
    """Hears of every failure, and may fail itself."""
    await asyncio.sleep(_seconds(0.05))
    return f"{_end(job, 0.2)} for {failed.id}"
