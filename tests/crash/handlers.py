"""The application of the crash tests: handlers that say what happens to them, and wait at gates.

What a handler says goes to a file of the stage, at once, so that a kill loses nothing. A gate is a
file that the test makes. The application takes its database from TENURE_URL and the folder of the
stage from TENURE_STAGE, so that child processes find both.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from tenure.app import Tenure
from tenure.control import Retry, Skip, Snooze
from tenure.errors import LeaseLost
from tenure.rules.retry import Fixed
from tenure.running import Running
from tenure.store.sqlite.session import SQLite
from tenure.tasks import TaskSet
from tenure.testing.recorder import RecordingStore
from tests.crash import ledger
from tests.support.patience import PATIENCE_SECONDS

beating = threading.Lock()
"""Whoever has it knows that no heartbeat of this process is under way."""
STAGE = "TENURE_STAGE"
RECORD = "TENURE_RECORD"
"""Set for processes that a worker process starts."""
LOOK_SECONDS = 0.005

tasks = TaskSet()


def stage() -> Path:
    """The folder of the stage on which this process plays."""
    return Path(os.environ[STAGE])


def say(kind: str, job: Running | None = None, what: object = None) -> None:
    """Say something that a kill afterwards cannot take back."""
    line = (kind, job and job.id, job and job.token, os.getpid(), time.time(), what)
    file = os.open(stage() / "said", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, msgspec.json.encode(line) + b"\n")
    os.close(file)


def meet(number: int) -> None:
    """Send this thread a signal that does not return before it has worked.

    `os.kill` would let the thread go on for a moment: long enough to begin a transaction, and to
    be stopped with the database's lock in its hands. No other thread may have SQLite's write lock
    when the process stops, either, or have the lease locked by a heartbeat: see `Stage.stop`.
    """

    def send() -> None:
        signal.pthread_kill(threading.get_ident(), number)

    if number != signal.SIGSTOP:
        send()
        return
    recorded = app.whole_store
    assert isinstance(recorded, RecordingStore)
    session = recorded._store._scope.session
    if isinstance(session, SQLite):
        session._alone(session._process().lock, send)
    else:
        with beating:
            send()


def is_open(gate: str) -> bool:
    """Has the test opened this gate?"""
    return (stage() / f"gate-{gate}").exists()


def pass_gate(gate: str) -> None:
    """Wait until the test opens the gate, deaf to everything else."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_open(gate):
        assert time.monotonic() < deadline, f"gate {gate} was never opened"
        time.sleep(LOOK_SECONDS)


def hold_out(job: Running, gate: str) -> str:
    """Wait for the gate, or until the worker says that the job is lost; later attempts pass."""
    say("ran", job)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while job.token == 1 and not is_open(gate):
            assert time.monotonic() < deadline, f"gate {gate} was never opened"
            job.lost.wait(LOOK_SECONDS)
            job.check()
    except BaseException as error:
        say("told", job, type(error).__name__)
        raise
    return f"token {job.token}"


@tasks.task()
def quick(job: Running) -> int:
    """Nothing but a word."""
    say("ran", job)
    return job.token


@tasks.task()
async def quick_async(job: Running) -> int:
    """The same on the event loop."""
    say("ran", job)
    return job.token


@tasks.task()
def hold(job: Running, gate: str) -> str:
    """Until the gate opens, in a thread."""
    return hold_out(job, gate)


@tasks.task(isolation="process")
def hold_in_child(job: Running, gate: str) -> str:
    """Until the gate opens, in a child process."""
    return hold_out(job, gate)


@tasks.task()
async def hold_async(job: Running, gate: str) -> str:
    """Until the gate opens, on the event loop."""
    say("ran", job)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while job.token == 1 and not is_open(gate):  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(LOOK_SECONDS)
    except asyncio.CancelledError:
        say("told", job, "lost" if job.lost else "stopped")
        raise
    return f"token {job.token}"


@tasks.task()
def wait_deaf(job: Running, gate: str) -> None:
    """Until the gate opens, in a thread, deaf to the worker; later attempts pass."""
    say("ran", job)
    if job.token == 1:
        pass_gate(gate)


@tasks.task(queue="lonely")
async def hold_lonely(job: Running, gate: str) -> str:
    """The same in a queue of its own."""
    return await hold_async.fn(job, gate)  # type: ignore[no-any-return]


@tasks.task()
def end_as(job: Running, how: str) -> str:
    """End in one of the ways in which a handler can end."""
    say("ran", job)
    job.progress(0.5, f"token {job.token}")
    match how:
        case "raise":
            raise ValueError("no")
        case "retry":
            raise Retry(after_seconds=0.01)
        case "snooze" if job.token <= 2:
            raise Snooze(0.01)
        case "skip":
            raise Skip("nothing to do")
        case _:
            return f"token {job.token}"


@tasks.task(max_attempts=50)
def nap(job: Running, seconds: float) -> int:
    """Take some time, in a thread."""
    job.lost.wait(seconds)
    job.check()
    return job.token


@tasks.task(max_attempts=50)
async def nap_async(job: Running, seconds: float) -> int:
    """Take some time, on the event loop."""
    await asyncio.sleep(seconds)
    return job.token


@tasks.task(max_attempts=50, isolation="process")
def nap_in_child(job: Running, seconds: float) -> int:
    """Take some time, in a child process."""
    time.sleep(seconds)
    return job.token


@tasks.task(max_attempts=50)
def book(job: Running, seconds: float = 0.0) -> None:
    """Write a row into the ledger, in the transaction that completes the job."""
    time.sleep(seconds)
    with ledger.transaction(app.url) as connection:
        ledger.enter(connection, job.id, job.token)
        job.complete(on=connection)


@tasks.task()
def book_and_meet_a_signal(job: Running, when: str, number: int) -> None:
    """The first attempt sends itself a signal at a chosen moment of its own transaction."""
    say("ran", job)

    def moment(name: str) -> None:
        if name == when and job.token == 1:
            say("moment", job, name)
            meet(number)

    moment("before the transaction")
    try:
        with ledger.transaction(app.url) as connection:
            quick_child.options(on=connection).enqueue(job.token)
            ledger.enter(connection, job.id, job.token)
            moment("before complete")
            job.complete(f"token {job.token}", on=connection)
            moment("before commit")
    except LeaseLost:
        say("refused", job)
        raise
    moment("after commit")


@tasks.task()
def quick_child(parent_token: int) -> int:
    """A child that a handler enqueues."""
    return parent_token


@tasks.task()
def write_late(job: Running, gate: str) -> None:
    """Everything that a handler may write, after the gate has opened; deaf until then."""
    say("ran", job)
    if job.token == 1:
        pass_gate(gate)
    attempts: dict[str, Any] = {
        "save": lambda: job.save({"token": job.token}),
        "step": lambda: job.step("late", lambda: job.token),
        "complete": lambda: _complete(job),
    }
    for name, write in attempts.items():
        try:
            write()
        except LeaseLost:
            say("refused", job, name)
        else:
            say("landed", job, name)


def _complete(job: Running) -> None:
    with ledger.transaction(app.url) as connection:
        quick_child.options(on=connection).enqueue(job.token)
        ledger.enter(connection, job.id, job.token)
        job.complete(on=connection)


STEPS = 3


def effect(job: Running, n: int, deaths: list[str]) -> list[int]:
    """What a step does to the world: it is said."""
    die(job, f"before effect {n}", deaths)
    say("effect", job, n)
    die(job, f"before record {n}", deaths)
    return [n, job.token]


async def effect_async(job: Running, n: int, deaths: list[str]) -> list[int]:
    """The same on the event loop."""
    return effect(job, n, deaths)


def die(job: Running, moment: str, deaths: list[str]) -> None:
    """SIGKILL, at the moment that is chosen for this attempt."""
    if job.token <= len(deaths) and deaths[job.token - 1] == moment:
        meet(signal.SIGKILL)


def take_steps(job: Running, deaths: list[str]) -> list[list[int]]:
    """All steps, one after the other."""
    say("ran", job)
    results = []
    for n in range(STEPS):
        results.append(job.step(f"step {n}", effect, job, n, deaths))
        die(job, f"after record {n}", deaths)
    return results


@tasks.task(max_attempts=10)
def steps(job: Running, deaths: list[str]) -> list[list[int]]:
    """Steps in a thread."""
    return take_steps(job, deaths)


@tasks.task(max_attempts=10, isolation="process", retry=Fixed(0.01))
def steps_in_child(job: Running, deaths: list[str]) -> list[list[int]]:
    """Steps in a child process, which dies alone."""
    return take_steps(job, deaths)


@tasks.task(max_attempts=10)
async def steps_async(job: Running, deaths: list[str]) -> list[list[int]]:
    """Steps on the event loop."""
    say("ran", job)
    results = []
    for n in range(STEPS):
        results.append(await job.step_async(f"step {n}", effect_async, job, n, deaths))
        die(job, f"after record {n}", deaths)
    return results


@tasks.task()
def step_late(job: Running, gate: str) -> list[str]:
    """A step that takes longer than the lease, deaf to the worker; later attempts are quick."""

    def late() -> str:
        say("effect", job)
        if job.token == 1:
            pass_gate(gate)
        return f"token {job.token}"

    try:
        return [job.step("early", lambda: f"token {job.token}"), job.step("late", late)]
    except LeaseLost:
        say("refused", job)
        raise


app = Tenure()
app.include(tasks)
