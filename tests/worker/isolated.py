"""Handlers that run in child processes, and the application that children import.

The store comes from TENURE_URL, the folder for what handlers leave behind from TENURE_TEST_FOLDER.
With TENURE_TEST_IMPORT_SECONDS the import takes so long.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tenure import Cancel, Fixed, Retry, Running, Skip, Snooze, Tenure, current
from tenure.tasks import _Decorator

app = Tenure()

begun, spoken = threading.Event(), threading.Event()
AGAIN = Fixed(0.01)
DEAF = "trap '' TERM; echo deaf; exec sleep 600"

time.sleep(float(os.environ.get("TENURE_TEST_IMPORT_SECONDS", "0")))


def task(**options: Any) -> _Decorator:
    """A task in a child process that is tried again at once."""
    defaults: dict[str, Any] = {"isolation": "process", "retry": AGAIN}
    return app.task(**(defaults | options))


def note(file: str, number: int) -> None:
    """Leave a number behind that survives every death."""
    path = Path(os.environ["TENURE_TEST_FOLDER"], file)
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(out, b"%d\n" % number)
    os.close(out)


@task(max_attempts=1)
def saves_on(job: Running) -> int:
    """Saves until the file `go on` is there."""
    while not Path(os.environ["TENURE_TEST_FOLDER"], "go on").exists():
        job.save(1)
        time.sleep(0.05)
    return 1


@task(max_attempts=1)
def waits_for_a_child() -> int:
    """Waits for a job that needs the slot that this one has."""
    return pid.enqueue().wait()


@task()
def pid() -> int:
    return os.getpid()


@task()
async def async_pid(job: Running) -> tuple[int, int]:
    await asyncio.sleep(0.01)
    inner = current()
    assert inner is job
    return os.getpid(), job.id


@task()
def group() -> tuple[int, int, int]:
    return os.getpid(), os.getpgid(0), os.getsid(0)


@task(max_attempts=2)
def exit_now(code: int) -> None:
    note("attempts", os.getpid())
    os._exit(code)


@task(max_attempts=2)
def segfault() -> None:
    ctypes.string_at(0)


@task(max_attempts=2)
def abort() -> None:
    os.abort()


@task(max_attempts=2)
def killed() -> None:
    """What the system does to a process that uses up the memory."""
    print("about to take all the memory", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@task(max_attempts=2)
def signalled(number: int) -> None:
    os.kill(os.getpid(), number)


@task(max_attempts=2)
def hog() -> None:
    """Takes more memory than it may have."""
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    b"".join(b"x" * 2**26 for _ in range(64))


class Worse(BaseException):
    """Not an Exception."""


RAISED: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        ValueError, MemoryError, RecursionError, SystemExit, KeyboardInterrupt, GeneratorExit,
        asyncio.CancelledError, Worse,
    )
}  # fmt: skip


@task(max_attempts=1)
def raises(name: str) -> None:
    raise RAISED[name]("raised by a handler")


@task(max_attempts=1)
def fail(words: str) -> None:
    print(f"out: {words}")
    print(f"err: {words}", file=sys.stderr)
    raise ValueError(words)


@task(max_attempts=1)
def say_and_die(words: str) -> None:
    print(words, flush=True)
    os._exit(3)


@task()
def say_and_succeed(words: str) -> None:
    print(words, flush=True)


@task(max_attempts=1)
def pour(mebibytes: int) -> None:
    """Much output, then a failure."""
    for _ in range(mebibytes * 16):
        os.write(1, b"x" * 65535 + b"\n")
    print("the end")
    raise ValueError("full")


@task(max_attempts=1, timeout_seconds=0.5)
def pour_for_ever() -> None:
    while True:
        os.write(1, b"x" * 65536)


@task(max_attempts=1)
def close_output(seconds: float) -> None:
    os.close(1)
    os.close(2)
    time.sleep(seconds)


@task()
def close_streams() -> str:
    sys.stdout.close()
    return "closed"


@task(max_attempts=1)
def close_everything(seconds: float) -> None:
    os.closerange(3, 256)
    time.sleep(seconds)


@task(max_attempts=1, timeout_seconds=1.0)
def loop() -> None:
    note("started", os.getpid())
    while True:
        pass


@task()
def busy(seconds: float) -> None:
    """Busy in Python code, with no moment of rest."""
    note("started", os.getpid())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@task(max_attempts=1, timeout_seconds=1.0)
def ignores_everything() -> None:
    note("started", os.getpid())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with suppress(BaseException):
            time.sleep(60)


@task(max_attempts=1, timeout_seconds=2.0)
def with_grandchildren() -> None:
    """A grandchild that ignores SIGTERM, as a shell in between might make it."""
    grandchild = subprocess.Popen(["sh", "-c", DEAF], stdout=subprocess.PIPE)
    assert grandchild.stdout is not None
    grandchild.stdout.readline()
    note("grandchildren", grandchild.pid)
    time.sleep(600)


@task(max_attempts=1)
def dies_before_its_grandchild() -> None:
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note("grandchildren", grandchild.pid)
    os._exit(0)


@task(max_attempts=1)
def cleans_up(seconds: float) -> None:
    """Has something to tidy up when it is stopped."""
    note("started", os.getpid())
    try:
        time.sleep(seconds)
    finally:
        note("cleaned", os.getpid())


@task(max_attempts=1)
def interrupts_a_tool() -> int:
    """Stops a program that it has started as Ctrl-C would."""
    tool = subprocess.Popen(["sleep", "600"])
    tool.send_signal(signal.SIGINT)
    try:
        return tool.wait(5)
    finally:
        tool.kill()


@task(max_attempts=1)
def fails_to_clean_up(seconds: float) -> None:
    note("started", os.getpid())
    try:
        time.sleep(seconds)
    finally:
        raise ValueError("cannot clean up")


@task(max_attempts=1)
async def cleans_up_async(seconds: float) -> None:
    note("started", os.getpid())
    try:
        await asyncio.gather(asyncio.sleep(seconds), _spin(seconds))
    except asyncio.CancelledError:
        note("cleaned", os.getpid())
        raise


async def _spin(seconds: float) -> None:
    """Another task, almost always the one that runs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(20_000))
        await asyncio.sleep(0)


@task()
def sleeps(seconds: float) -> int:
    note("started", os.getpid())
    time.sleep(seconds)
    return os.getpid()


@app.task()
async def in_loop() -> str:
    return "async"


@app.task()
def in_thread() -> str:
    return "thread"


@task()
def tells(job: Running, seconds: float) -> None:
    """Reports its way until somebody asks it to stop."""
    job.progress(0.25, "a quarter")
    note("started", os.getpid())
    job.cancelled.wait(seconds)


@task()
def annotates(job: Running) -> dict[str, object]:
    """Dies in its first attempt, and says more just before its end."""
    before = app.get(job.id).notes
    job.annotate(now=True, attempt=job.attempt)
    if job.attempt == 1:
        os._exit(3)
    job.annotate(late="last word", before=before == {"attempt": 1})
    return before


@task(at_most_once=True)
def dies_once(job: Running) -> None:
    note("ran", job.token)
    os._exit(3)


@task()
def leaves_a_thread(job: Running) -> int:
    """Its thread goes on to report when the next job of this child has begun."""

    def late() -> None:
        begun.wait()
        job.progress(0.99, "of the first job")
        job._leased.completed = True  # type: ignore[attr-defined]
        spoken.set()

    threading.Thread(target=late, daemon=True).start()
    return os.getpid()


@task(max_attempts=1)
def lets_it_speak(job: Running) -> int:
    job.progress(0.5, "of the second job")
    begun.set()
    spoken.wait(60)
    return os.getpid()


@task()
def babbles(job: Running, times: int) -> None:
    """More reports than anybody wants."""
    for n in range(times):
        job.progress(n / times, "x" * 500)


@task(max_attempts=1, timeout_seconds=0.5)
def babbles_for_ever(job: Running) -> None:
    while True:
        job.progress(0.5, "still here")


@task(max_attempts=3)
def remembers(job: Running) -> list[int]:
    """Counts its attempts in a checkpoint, and dies twice."""
    seen = [*(job.load(list[int]) or []), job.attempt]
    job.save(seen)
    if job.attempt < 3:
        os._exit(1)
    return seen


@contextmanager
def caller(url: str) -> Iterator[Any]:
    """A transaction of the user's own; a SQLite file must be named with `driver=sqlite3`."""
    if url.startswith("sqlite"):
        import sqlite3

        path = url.removeprefix("sqlite:///").partition("?")[0]
        connection = sqlite3.connect(path, isolation_level=None, timeout=5)
        connection.execute("begin immediate")
        try:
            yield connection
            connection.execute("commit")
        except BaseException:
            connection.execute("rollback")
            raise
        finally:
            connection.close()
    else:
        import psycopg

        with psycopg.connect(url) as owned:
            yield owned


def make_ledger(url: str) -> None:
    from tests.support.plain import Plain

    with Plain(url) as plain:
        plain.rows("create table ledger (job bigint)")


@task(max_attempts=1)
def completes(job: Running, ending: str) -> str:
    with caller(app.url) as connection:
        connection.execute(f"insert into ledger values ({job.id})")
        job.complete("from inside", on=connection)
        if ending == "roll back":
            raise ValueError("no")
    if ending == "die":
        os._exit(9)
    if ending == "hang":
        note("started", os.getpid())
        time.sleep(600)
    return "not recorded"


@task(max_attempts=1)
def returns_nonsense(what: str) -> object:
    return {"object": object(), "nan": float("nan"), "lock": app}[what]


@task(max_attempts=2)
def answers(what: str) -> object:
    if current().attempt > 1:  # type: ignore[union-attr]
        return "second"
    return {
        "retry": Retry("later", after_seconds=0.01),
        "snooze": Snooze(3600, "not now"),
        "skip": Skip("nothing to do"),
        "cancel": Cancel("superseded"),
    }[what]


@task(max_attempts=1)
def forks(file: str) -> int:
    """A fork that comes back to where only its parent should."""
    if os.fork() == 0:
        return -1
    note(file, os.getpid())
    os.wait()
    return os.getpid()


@task()
def counts(number: int) -> int:
    note("counted", number)
    return number


@task(max_attempts=1, timeout_seconds=0.5)
async def checks_for_ever(job: Running) -> None:
    while True:
        job.check()
        await asyncio.sleep(0.01)
