"""A stage for crash tests: worker processes, gates, what handlers said, and the record of it all.

stage.add(hold.call("later"))
victim = stage.victim(moment="before settle", signal=signal.SIGKILL)    # meets it there
stage.heard("ran")
stage.open("later")
stage.worker()
stage.drained()
stage.check()                       # every invariant, over everything that was recorded
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tenure.app import Tenure
from tenure.rules.job import Job
from tenure.store import Store, open_store
from tenure.store.jobs import sweep
from tenure.store.records import ExpiredLease
from tenure.store.session import Tx
from tenure.store.sqlite.session import SQLite
from tenure.tasks import Call
from tenure.testing.recorder import RecordingEnvironment, RecordingStore
from tenure.worker.worker import Worker
from tests.crash import handlers
from tests.processes.crew import Crew, Member, Voice
from tests.support.books import Books, Expected
from tests.support.invariants import check
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.plain import Plain

LEASE_SECONDS = 1.5
WRITE_LOCK_BYTE = 120
"""In the `-shm` file: https://www.sqlite.org/walformat.html"""
AT_WORK = """
    select state from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend'
        and pid <> pg_backend_pid() and state <> 'idle'
"""
ON_ITS_WAY_SECONDS = 0.05
"""So long a statement may be on its way to the server that a stopped process has sent."""
STALL = 0
"""Instead of a signal: this part of the process hangs, for as long as the test lasts."""
MID_SWEEP = "in the middle of a sweep"

FAST: Mapping[str, Any] = {
    "lease_seconds": 60.0,
    "heartbeat_seconds": 0.4,
    "sweep_seconds": 0.1,
    "promote_seconds": 0.05,
    "idle_poll_seconds": 0.05,
    "drain_seconds": 120.0,
    "kill_seconds": 0.5,
}
"""The lease is long: a worker that waits for a processor is not dead."""


QUIET: Mapping[str, Any] = {
    "sweep_seconds": 3600.0,
    "promote_seconds": 3600.0,
    "schedule_seconds": 3600.0,
    "idle_poll_seconds": 3600.0,
}
"""For a process that will be stopped: one that has SQLite's write lock then stops everybody."""


@dataclass(frozen=True)
class Word:
    """Something that a handler, or a process at a chosen moment, has said."""

    kind: str
    job: int | None
    token: int | None
    pid: int
    at: float
    what: Any


class BeatingStore(RecordingStore):
    """On PostgreSQL: no heartbeat of this process is under way when it stops itself."""

    def run(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        if call is not sweep.extend or isinstance(self._store._scope.session, SQLite):
            return super().run(call, *args, **kwargs)
        with handlers.beating:
            return super().run(call, *args, **kwargs)


class StageEnvironment(RecordingEnvironment):
    """Records everything, and sends the process a signal at one moment of its life.

    Heartbeats come all the time: that moment counts from when the test has opened the gate `armed`.
    """

    def __init__(self, folder: Path, moment: str | None, number: int) -> None:
        super().__init__(folder)
        self._moment = moment
        self._signal = number

    def wrap(self, store: Store) -> Store:
        return store if isinstance(store, RecordingStore) else BeatingStore(store, self, self._log)

    def crash_point(self, name: str) -> None:
        if name == self._moment and (name != "before heartbeat" or handlers.is_open("armed")):
            self._moment = None
            handlers.say("moment", None, name)
            if self._signal == STALL:
                handlers.pass_gate("stall")
            else:
                handlers.meet(self._signal)


def work(
    voice: Voice,
    url: str,
    folder: Path,
    queues: Mapping[str, int] | None,
    settings: Mapping[str, Any],
    moment: str | None,
    number: int,
    lives: int,
    module: str,
) -> None:
    """The role of a worker process; with several lives, of several workers, one by one.

    `module` has the application. Processes that this one starts find RECORD set: they record
    themselves if the module does.
    """
    os.environ.update({"TENURE_URL": url, handlers.STAGE: str(folder)})
    app: Tenure = importlib.import_module(module).app
    os.environ[handlers.RECORD] = "1"
    log = folder / f"log-{os.getpid()}"
    logging.basicConfig(filename=log, level=logging.INFO, force=True)
    if settings.get("processes", 1) > 1:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    environment = StageEnvironment(folder, moment, number)
    if moment == MID_SWEEP:
        _meet_in_the_middle_of_a_sweep(environment)
    if settings.get("processes", 1) == 1:
        environment.record(app)
    voice.say("begun", os.getpid())
    for _ in range(lives):
        Worker(app, queues, environment=environment, **settings).run()
        voice.say("left")


def _meet_in_the_middle_of_a_sweep(environment: StageEnvironment) -> None:
    """The store has no crash points of its own: this one sits in the open transaction."""
    shrink = sweep._shrink

    async def meet(tx: Tx, leases: list[ExpiredLease]) -> None:
        environment.crash_point(MID_SWEEP)
        await shrink(tx, leases)

    sweep._shrink = meet


class Stage:
    """One database, some worker processes, and the test as a client and an observer."""

    def __init__(self, url: str, folder: Path, crew: Crew) -> None:
        self.url = url
        self.folder = folder
        self.crew = crew
        self._environment = RecordingEnvironment(folder)
        self.store = self._environment.wrap(open_store(url))

    def close(self) -> None:
        """Close what the test itself has open."""
        self.store.close()

    def add(self, *calls: Call[Any]) -> list[int]:
        """Enqueue calls; answers their ids."""
        return [answer.id for answer in self.store.enqueue([call.job for call in calls])]

    def worker(
        self,
        queues: Mapping[str, int] | None = None,
        *,
        moment: str | None = None,
        signal: int = signal.SIGKILL,
        url: str | None = None,
        lives: int = 1,
        module: str = "tests.crash.handlers",
        **settings: Any,
    ) -> Member:
        """Start a worker process; it meets a signal at the named moment, the first time."""
        settings = {**FAST, **settings}
        member = self.crew.start(
            work, url or self.url, self.folder, queues, settings, moment, int(signal), lives,
            module,
        )  # fmt: skip
        member.wait_for("begun")
        return member

    def victim(self, queues: Mapping[str, int] | None = None, **settings: Any) -> Member:
        """Start a worker process that is about to be hit: its lease is soon over."""
        return self.worker(queues, **{"lease_seconds": LEASE_SECONDS, **settings})

    def stop(self, member: Member) -> None:
        """SIGSTOP, at a moment at which the process does not hold up everybody else.

        A process that is stopped with SQLite's write lock in its hands stops all others: nothing
        but its death or its awakening can help. One that is stopped in a transaction of PostgreSQL
        keeps its rows locked, and its lease from being swept. Nobody else may be at work.
        """
        until(lambda: self._stopped_alone(member), "a stop outside of transactions")

    def _stopped_alone(self, member: Member) -> bool:
        stop(member.pid, self.url)
        if not is_in_transaction(self.url):
            return True
        member.signal(signal.SIGCONT)
        return False

    def open(self, gate: str) -> None:
        """Let those pass who wait at this gate."""
        (self.folder / f"gate-{gate}").touch()

    def said(self, kind: str, job: int | None = None) -> list[Word]:
        """What was said so far, of one kind."""
        path = self.folder / "said"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        words = [Word(*msgspec.json.decode(line)) for line in lines]
        return [w for w in words if w.kind == kind and job in (None, w.job)]

    def heard(self, kind: str, job: int | None = None, times: int = 1) -> list[Word]:
        """Wait until it has been said so often."""
        until(lambda: len(self.said(kind, job)) >= times, f"{times} x {kind!r}")
        return self.said(kind, job)

    def drained(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until no job is live."""
        until(lambda: not self.store.count_live(), "an empty backlog", seconds)

    def finished(self, id: int, seconds: float = PATIENCE_SECONDS) -> Job:
        """Wait until a job is final."""
        until(lambda: self.store.get(id).state.final, f"the end of job {id}", seconds)
        return self.store.get(id)

    def story(self, id: int) -> list[tuple[str, int]]:
        """What happened to a job: kinds and tokens."""
        return [(event.kind, event.token) for event in self.store.timeline(id)]

    def at(self, id: int, kind: str, token: int) -> float:
        """When that happened, by the database's clock."""
        [event] = [e for e in self.store.timeline(id) if (e.kind, e.token) == (kind, token)]
        return event.at.timestamp()

    def log_of(self, member: Member) -> str:
        """What a worker process has logged."""
        return (self.folder / f"log-{member.pid}").read_text()

    def check(self, **expected: Any) -> Books:
        """Assert every invariant."""
        return check(self.folder, self.url, Expected(**expected))


def gone(member: Member, seconds: float = PATIENCE_SECONDS) -> int:
    """Wait until a process has ended; answers its exit code, negative for a signal."""
    member.process.join(seconds)
    assert member.process.exitcode is not None, f"process {member.pid} did not end"
    assert not member.said("error"), member.said("error")
    return member.process.exitcode


def stop(pid: int, url: str) -> None:
    """See `Stage.stop`."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: is_stopped(pid), "the process is stopped")
        if not holds_write_lock(pid, url):
            return
        os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Has the process been stopped by a signal?"""
    status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return status == "T"


def holds_write_lock(pid: int, url: str) -> bool:
    """Does this process hold the lock of SQLite's one writer? PostgreSQL has none."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return False
    inode = Path(f"{parts.path.removeprefix('/')}-shm").stat().st_ino
    return any(
        kind == "WRITE" and holder == str(pid) and where.endswith(f":{inode}")
        and int(first) <= WRITE_LOCK_BYTE <= int(last)
        for _, _, _, kind, holder, where, first, last in _locks()
        if last != "EOF"
    )  # fmt: skip


def is_in_transaction(url: str) -> bool:
    """Does anybody but us have a transaction of PostgreSQL open? Statements may end first."""
    if not url.startswith("postgres"):
        return False
    with Plain(url) as plain:
        time.sleep(ON_ITS_WAY_SECONDS)
        until(lambda: ("active",) not in plain.rows(AT_WORK), "every statement has ended")
        return bool(plain.rows(AT_WORK))


def _locks() -> list[list[str]]:
    """All locks on files; those that somebody waits for have a line of another shape."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [fields for fields in lines if len(fields) == 8]
