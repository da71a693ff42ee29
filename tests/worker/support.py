"""What the worker's tests share: a worker beside the test, workers in processes, and waiting.

`working` runs a worker in a thread of the test's process, so that a test is written in plain calls
and its handlers may share objects with it. `Script` runs one in a process of its own, which can be
killed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import apsw
import psutil

from tenure import Job, JobEvent, Tenure, Worker
from tenure.rules.claim import Ask, Lease
from tenure.rules.job import Event
from tenure.rules.lifecycle import Settlement
from tenure.store import AsyncStore
from tenure.store.jobs.claim import claim
from tenure.store.jobs.settle import settle
from tenure.worker.environment import Environment
from tenure.worker.process import WorkerProcess
from tests.support import patience
from tests.support.plain import Plain

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = patience.PATIENCE_SECONDS
FAST: dict[str, Any] = {
    "lease_seconds": 30.0,
    "heartbeat_seconds": 0.3,
    "sweep_seconds": 0.1,
    "promote_seconds": 0.05,
    "idle_poll_seconds": 0.05,
    "drain_seconds": 10.0,
    "kill_seconds": 0.5,
}
"""The lease is long: a worker that waits for a processor is not dead."""
QUICK_LEASE = FAST | {"lease_seconds": 2.0, "heartbeat_seconds": 0.1}
"""Heartbeats are dense, so that a machine that stands still for a moment costs no lease."""


def eventually(condition: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until this is true, and return its value."""
    return patience.until(condition, seconds=seconds)


WORKER_THREAD = "worker-under-test"


@contextmanager
def working(
    app: Tenure, queues: dict[str, int] | None = None, *, environment: Any = None, **settings: Any
) -> Iterator[Worker]:
    """A worker at work in a thread of this process. It has drained when the block is left."""
    worker = Worker(app, queues, environment=environment, **(FAST | settings))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - told to the test below
            errors.append(error)

    thread = threading.Thread(target=run, name=WORKER_THREAD)
    thread.start()
    try:
        eventually(lambda: errors or is_ready(worker))
        if errors:
            raise errors[0]
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the worker does not stop"
    if errors:
        raise errors[0]


def process_of(worker: Worker) -> WorkerProcess:
    """The inside of a worker that is at work."""
    assert worker._process is not None
    return worker._process


def is_ready(worker: Worker) -> bool:
    return worker._process is not None and worker._process.ready.is_set()


def believe_in_short_jobs(worker: Worker) -> None:
    """Have the worker think that jobs take a millisecond, so that it claims ahead of its slots."""
    intake = process_of(worker).intake
    for kind in ("async", "thread", "process"):
        intake.pace.learn(kind, 0.001)
    for queue in worker.settings.queues:
        intake.queue_pace.learn(queue, 0.001)


@dataclass
class Heard:
    """The events that a listener heard, in order."""

    events: list[JobEvent] = field(default_factory=list)

    def kinds(self, id: int | None = None) -> list[str]:
        """What happened, to all jobs or to one."""
        return [event.kind for event in list(self.events) if id is None or event.id == id]


def listen(app: Tenure) -> Heard:
    """Keep all that the workers of this application tell."""
    heard = Heard()
    app.listen(heard.events.append)
    return heard


def ended(app: Tenure, id: int, *, seconds: float = PATIENCE_SECONDS) -> Job:
    """The job, once it is finished."""
    return app.wait(id, timeout_seconds=seconds)


def story(app: Tenure, id: int) -> list[Event]:
    """What happened to a job."""
    return app.timeline(id)


def kinds(app: Tenure, id: int) -> list[str]:
    """The names of what happened to a job."""
    return [event.kind for event in story(app, id)]


def is_gone(pid: int) -> bool:
    """Has this process ended? One that nobody has collected yet counts as gone."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def file_numbers(path: Path) -> list[int]:
    """The numbers that processes have appended to a file, one per line."""
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def meddle(url: str, sql: str) -> None:
    """Change rows behind the back of everybody, as soon as the database lets us."""

    def changed() -> bool:
        with Plain(url) as plain:
            try:
                plain.rows(sql)
            except apsw.BusyError:
                return False
        return True

    eventually(changed)


class Lines(logging.Handler):
    """Keeps what the library logs, as text that a user would see."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self) -> list[str]:
        return [self.format(record) for record in list(self.records)]

    def with_text(self, text: str) -> list[str]:
        """The lines that say this."""
        return [line for line in self.texts() if text in line]


class Script:
    """A Python script in a process of its own; what it prints is kept."""

    def __init__(self, path: Path, url: str, *args: str, folder: Path) -> None:
        self._said = folder / f"{path.stem}-{time.monotonic_ns()}.out"
        with self._said.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", str(path), *args],
                env=os.environ | {"TENURE_URL": url, "PYTHONPATH": str(ROOT)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self._said.read_text(errors="replace")

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until it has said this so often."""

        def said() -> bool:
            alive = self.process.poll() is None
            if self.output.count(text) >= times:
                return True
            assert alive, f"ended with {self.process.returncode}:\n{self.output}"
            return False

        try:
            eventually(said)
        except AssertionError as error:
            error.add_note(f"it said:\n{self.output}")
            raise

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the script alone."""
        self.process.send_signal(number)

    def ends(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its end. Answers its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s:\n{self.output}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


class Watch(Environment):
    """Sees every claim and every settlement of a worker, and so what it has in hand.

    `done` tells how many handlers have ended.
    """

    def __init__(self, done: Callable[[], int] = lambda: 0) -> None:
        self.lock = threading.Lock()
        self._done = done
        self._claimed = 0
        self.most_unfinished = 0
        """The most jobs that were claimed at one time and whose handlers had not ended."""
        self.in_hand: Counter[str] = Counter()
        """Claimed and not settled, by queue and, under "all", together."""
        self.peak: Counter[str] = Counter()
        self.claims: list[dict[str, Ask]] = []
        """What was asked for."""
        self.flushes: list[list[Settlement]] = []
        self.at_once = 0
        self.most_at_once = 0
        """How many settlement calls were under way at the same time."""
        self._queue_of: dict[tuple[int, int], str] = {}

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        return Watched(store, self)

    def took(self, leases: list[Lease]) -> None:
        with self.lock:
            for job in [job for lease in leases for job in lease.jobs]:
                self._claimed += 1
                self._queue_of[job.id, job.token] = job.queue
                for name in (job.queue, "all"):
                    self.in_hand[name] += 1
                    self.peak[name] = max(self.peak[name], self.in_hand[name])
            self.most_unfinished = max(self.most_unfinished, self._claimed - self._done())

    async def settling(self, answers: Any, settlements: list[Settlement]) -> Any:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            answered = await answers
        finally:
            self.at_once -= 1
        self.flushes.append(settlements)
        with self.lock:
            for settlement, answer in zip(settlements, answered, strict=True):
                queue = self._queue_of.pop((settlement.id, settlement.token), None)
                if queue is not None and not answer.busy:
                    self.in_hand[queue] -= 1
                    self.in_hand["all"] -= 1
        return answered


class Watched(AsyncStore):
    """A store that tells a `Watch` what goes through it."""

    def __init__(self, store: AsyncStore, watch: Watch) -> None:
        super().__init__(store._scope.session, store._scope.tenant, store._threads)
        self._inner = store
        self._watch = watch

    async def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        if call is settle:
            return await self._watch.settling(self._inner.run(call, *args, **kwargs), args[1])
        answer = await self._inner.run(call, *args, **kwargs)
        if call is claim:
            self._watch.claims.append(dict(args[1]))
            self._watch.took(answer)
        return answer

    async def close(self) -> None:
        await self._inner.close()
