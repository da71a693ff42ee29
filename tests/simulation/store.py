"""The real SQLite store, in memory, behind a wire on which requests and answers get lost.

A request travels, is carried out in one moment, and its answer travels back. It may be carried out
although its sender has died or given up, and long after its sender was cut off. What the store does
about unanswered requests is what the PostgreSQL store does (`repeat`, ids known before the insert,
the end of a late request before its repeat), or what the SQLite store does: the seed chooses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, cast

import apsw

from tenure.errors import OutcomeUnknown, StoreBusy, StoreUnavailable, ValueRefused
from tenure.store import AsyncStore, Store
from tenure.store.bell import Bell, OnCancel, Ring
from tenure.store.session import Collided, Mode, Operation, R, Tx, drive
from tenure.store.sqlite import driver
from tenure.store.sqlite import migrate as sqlite_migrate
from tenure.store.sqlite.boot_clock import EPOCH, MICROSECOND, Clock
from tenure.store.sqlite.driver import Connection
from tenure.store.sqlite.group_commit import Outcome
from tenure.store.sqlite.session import SQLite
from tenure.store.sqlite.threads import WRITING_THREADS, Line, Threads
from tenure.store.sqlite.tx import SQLiteTx
from tests.simulation.faults import Fate, Faults, trouble
from tests.simulation.hub import OP, Gone, Hub, Process
from tests.simulation.loop import Pool

WALL_START_SECONDS = 1_800_000_000
PATH = "simulation.db"
EFFECTS = "create table effect (job_id integer not null, token integer not null) strict"
ENDS = """
create table flow_end (workflow_id integer not null, ended integer not null) strict;
create trigger flow_ends after update of ended_at on tenure_workflow
when new.ended_at is not old.ended_at or new.ended_at is not null
begin insert into flow_end values (new.id, new.ended_at is not null); end
"""
"""Every end of a workflow, and every time that it was opened again, in order."""
STALE_STEPS = """
create table stale_step (job_id integer not null, token integer not null) strict;
create trigger step_is_recorded after insert on tenure_step
when not exists (select 1 from tenure_job where id = new.job_id and token = new.token)
begin insert into stale_step values (new.job_id, new.token); end
"""
"""Every step that was recorded by an attempt that had lost its job."""
REPEATS = 3


class VirtualClock(Clock):
    """Boot time is the time of the hub; the wall clock jumps.

    No reading of the wall clock is given out at two times, so that a stored one tells when it was.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.ahead_seconds = 0.0
        self.furthest_seconds = 0.0
        self.read_at: dict[int, float] = {}

    def wall(self) -> int:
        """Microseconds since 1970."""
        now = self._hub.now
        wall = int(1e6 * (WALL_START_SECONDS + now + self.ahead_seconds))
        while self.read_at.setdefault(wall, now) != now:
            wall += 1
        return wall

    def read(self, now: datetime | None) -> dict[str, Any]:
        assert now is None, "the simulation drives the clock"
        return {"now": self.wall(), "tick": int(1e6 * self._hub.now), "boot": "simulated"}

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.ahead_seconds += seconds
        self.furthest_seconds = max(self.furthest_seconds, self.ahead_seconds)

    def when(self, at: datetime) -> float:
        """The time of the hub at which the store wrote this."""
        return self.read_at[(at - EPOCH) // MICROSECOND]


class _Failed(Exception):
    """An error before anything was committed."""


class _Lost(Exception):
    """It was committed, and nobody said so."""


class _Call:
    """One call through all its tries."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.repeat = False
        self.collided = False
        self.tries: list[Try] = []

    def around(self, op: Operation[R]) -> Operation[R]:
        """This try of the operation: it keeps what is known now, whenever it arrives."""
        repeat, collided = self.repeat, self.collided

        def run(tx: Tx) -> Any:
            tx.request_id, tx.repeat, tx.collided = self.name, repeat, collided
            return op(tx)

        return run


@dataclass(slots=True)
class Try:
    """One try of a call, as long as it may still arrive."""

    is_ended: bool = False


@dataclass(frozen=True, slots=True)
class HandedOut:
    """When an attempt was put on a lease, and whether it was the only one there."""

    at: float
    alone: bool


class Session(SQLite):
    """One database for all simulated processes."""

    def __init__(self, hub: Hub, faults: Faults, *, repeats: bool, threads: bool) -> None:
        self.hub = hub
        self.faults = faults
        self.repeats = repeats
        """Answer like PostgreSQL when an answer is missing."""
        self.threads = threads
        """Async operations run in threads; or else on the event loop."""
        self.memory = cast(apsw.Connection, driver.connect(":memory:", "apsw"))
        self.memory.deserialize("main", _template())
        self.bells: list[VirtualBell] = []
        self.handed_out: dict[tuple[int, int], HandedOut] = {}
        """By job and token, whether or not the worker was told."""
        self.requests = 0
        self.delayed_until = 0.0
        """By then everything that was sent so far is answered."""
        self.transactions = 0
        self._signs = (-1, -1)
        self._waited = 0.0
        self._calls = 0
        super().__init__(PATH)
        self.clock = self._clock = VirtualClock(hub)
        driver.configure(cast(Connection, self.memory), "FULL", give_up_seconds=10.0)

    def _connect(self, process: object) -> Connection:  # noqa: ARG002
        return cast(Connection, self.memory)

    def _check_in_place(self, process: object) -> None:
        """There is no file that somebody could take away."""

    async def aclose(self) -> None:
        """Only the simulation closes it."""

    def _begin(self, connection: Connection) -> float:
        super()._begin(connection)
        return self._waited

    async def transact(self, op: Operation[R], mode: Mode = Mode.WRITE) -> R:
        reads = mode in (Mode.READ, Mode.COUNT, Mode.GLANCE)
        self._calls += 1
        call = _Call(f"call-{self._calls}" if self.repeats else "")

        def carry_out(fate: Fate, wanted: Operation[R]) -> R:
            if not fate.commits:
                wanted = _undone(wanted)
            return drive(SQLite.transact(self, wanted, mode))

        for _ in range(REPEATS):
            for earlier in call.tries:
                earlier.is_ended = True
            call.tries.append(Try())
            this = partial(carry_out, wanted=call.around(op))
            try:
                return await self._request(this, reads=reads, late=call.tries[-1])
            except Collided:
                call.collided = True
            except ValueRefused:
                if not call.repeat or call.collided:
                    raise
                call.collided = True
            except StoreBusy:
                if not call.repeat:
                    raise
                break
            except (_Failed, _Lost) as error:
                call.repeat = call.repeat or isinstance(error, _Lost)
                if not self.repeats or self.hub.random.random() < 0.3:
                    break
                await self._rest_before_repeat()
        raise _outage(call.repeat)

    def transact_each(self, ops: Sequence[Operation[Any]]) -> list[Outcome]:
        def carry_out(fate: Fate) -> list[Outcome]:
            if not fate.commits:
                raise _Failed
            return SQLite.transact_each(self, ops)

        try:
            return drive(self._request(carry_out, reads=False))
        except (_Failed, _Lost) as error:
            raise _outage(isinstance(error, _Lost)) from None

    async def reserve_ids(self, count: int) -> list[int] | None:
        if not self.repeats:
            return None

        async def draw(tx: Tx) -> list[int]:
            tx.at(None)
            return await tx.draw_ids(count)

        return await self.transact(draw, Mode.LONE)

    async def borrow(self, connection: object, *, blocking: bool) -> Tx:  # noqa: ARG002
        assert isinstance(connection, Transaction)
        return SQLiteTx(cast(Connection, self.memory), PATH, self.clock)

    def bell(self, ring: Ring, on_cancel: OnCancel | None = None) -> Bell:
        return VirtualBell(self, self.hub.here(), ring, on_cancel)

    async def rest(self, seconds: float) -> None:
        if self.hub.fiber().loop is None:
            self.hub.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    async def _rest_before_repeat(self) -> None:
        seconds = self.hub.random.random() ** 4  # mostly short, up to a second
        trouble(self.hub.fiber(), OP.get(), seconds)
        await self.rest(seconds)

    # --- the wire --------------------------------------------------------------------------------

    async def _request(
        self, carry_out: Callable[[Fate], R], *, reads: bool, late: Try | None = None
    ) -> R:
        hub = self.hub
        sender = hub.fiber()
        process = sender.process
        if process.dead:
            raise Gone
        fate = self.faults.draw(sender, hub.now, op=OP.get(), reads=reads)
        outcome: list[Outcome] = []
        self.requests += 1
        if sender.loop is None:
            number = sender.waits

            def wake() -> None:
                hub.wake(sender, number)

            self._send(process, fate, carry_out, outcome, wake, reads=reads, late=late)
            hub.suspend(sender)
        else:
            loop, future = sender.loop, sender.loop.create_future()

            def tell() -> None:
                if not (process.dead or loop.is_closed()):
                    loop.call_soon_threadsafe(_wake, future)

            self._send(process, fate, carry_out, outcome, tell, reads=reads, late=late)
            await future
        answer, error = outcome[0]
        if error is not None:
            raise error
        return cast(R, answer)

    def _send(
        self,
        process: Process,
        fate: Fate,
        carry_out: Callable[[Fate], Any],
        outcome: list[Outcome],
        tell: Callable[[], None],
        *,
        reads: bool,
        late: Try | None,
    ) -> None:
        def arrive_late() -> None:
            if late is not None and not late.is_ended:
                self._carry_out(fate, carry_out, reads=reads)

        def cut_off() -> None:
            outcome.append((None, _Lost()))
            tell()

        def arrive() -> None:
            if process.dead and not fate.outlives:
                return
            outcome.append(self._carry_out(fate, carry_out, reads=reads))
            self.hub.at(fate.back_seconds, tell)

        if fate.late_seconds:
            self.hub.at(fate.there_seconds, cut_off)
            self.hub.at(fate.there_seconds + fate.late_seconds, arrive_late)
        else:
            self.hub.at(fate.there_seconds, arrive)
        travel_seconds = fate.there_seconds + max(fate.back_seconds, fate.late_seconds)
        answered_at = self.hub.now + travel_seconds
        self.delayed_until = max(self.delayed_until, answered_at)

    def _carry_out(self, fate: Fate, carry_out: Callable[[Fate], Any], *, reads: bool) -> Outcome:
        if fate.busy:
            return None, StoreBusy("somebody holds a lock")
        if not fate.arrives:
            return None, _Failed()
        self._waited = fate.waited_seconds
        self.transactions += 1
        try:
            answer = carry_out(fate)
        except Exception as error:  # noqa: BLE001 - the caller's
            return None, error
        finally:
            self._waited = 0.0
        self._note_claim(answer)
        if not reads:
            self._ring_bells()
        return (answer, None) if fate.answered else (None, _Lost())

    def _note_claim(self, answer: Any) -> None:
        for lease in getattr(answer, "claim", ()):
            for job in lease.jobs:
                noted = HandedOut(self.hub.now, alone=len(lease.jobs) == 1)
                self.handed_out.setdefault((job.id, job.token), noted)

    def _ring_bells(self) -> None:
        [(position, cancels)] = self.memory.execute("select position, cancels from tenure_counter")
        before, self._signs = self._signs, (position, cancels)
        for bell in self.bells if before != self._signs else ():
            if self.hub.random.random() < 0.7:
                after = 0.005 * self.hub.random.random()
                if before[0] != position:
                    self.hub.at(after, bell.hear)
                if before[1] != cancels:
                    self.hub.at(after, bell.hear_cancel)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():  # nor cancelled
        future.set_result(None)


def _outage(may_have_landed: bool) -> StoreUnavailable:
    if may_have_landed:
        return OutcomeUnknown("the answer is missing")
    return StoreUnavailable("the store cannot be reached")


def _undone(op: Operation[R]) -> Operation[R]:
    async def run(tx: Tx) -> R:
        await op(tx)
        raise _Failed

    return run


@cache
def _template() -> bytes:
    """A database with our tables, and one of the application."""
    connection = apsw.Connection(":memory:")
    sqlite_migrate.migrate_sqlite(cast(Connection, connection))
    for script in (EFFECTS, ENDS, STALE_STEPS):
        connection.execute(script)
    return connection.serialize("main")


class Transaction:
    """A transaction of the application, in the database of its jobs. Takes no time."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> Transaction:
        if self._session.hub.here().dead:
            raise Gone
        self._session.memory.execute("begin immediate")
        return self

    def add_effect(self, job_id: int, token: int) -> None:
        """What the job is there for."""
        self._session.memory.execute("insert into effect values (?, ?)", (job_id, token))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._session.memory.execute("rollback" if kind else "commit")


class VirtualThreads(Threads):
    """The threads of a store, at the hub."""

    def __init__(self, session: Session, most: int) -> None:
        self._session = session
        super().__init__(session, most)

    def _begin(self) -> None:
        super()._begin()
        pool = cast(Any, Pool(self._session.hub))
        lines: tuple[Line, ...] = ("writing", "reading", "gathering")
        self._pools = dict.fromkeys(lines, pool)


class VirtualStore(Store):
    """A store for callers in threads."""

    def __init__(self, session: Session, tenant: str | None = None) -> None:
        super().__init__(session, tenant)
        self._session = session

    def in_threads(self, *, most: int = WRITING_THREADS, owns_session: bool = True) -> AsyncStore:
        session, tenant = self._session, self._scope.tenant
        if not session.threads:
            return AsyncStore(session, tenant)
        return AsyncStore(session, tenant, VirtualThreads(session, most), owns_session=owns_session)

    def for_tenant(self, tenant: str) -> Store:
        return VirtualStore(self._session, tenant)


class VirtualBell(Bell):
    """Rings most of the time, a little later."""

    def __init__(
        self, session: Session, process: Process, ring: Ring, on_cancel: OnCancel | None
    ) -> None:
        super().__init__(ring, on_cancel)
        self._session = session
        self._process = process

    def start(self) -> None:
        self._session.bells.append(self)

    def stop(self) -> None:
        if self in self._session.bells:
            self._session.bells.remove(self)

    def hear(self) -> None:
        """There may be new work."""
        if self._can_hear():
            self._ring()

    def hear_cancel(self) -> None:
        """Running jobs were asked to stop."""
        if self._can_hear():
            self._call_cancel(None)

    def _can_hear(self) -> bool:
        if self._process.dead:
            self.stop()
            return False
        return self._process.paused_until <= self._session.hub.now

    def _prepare(self) -> None: ...

    def _run(self) -> None: ...

    def _wake(self) -> None: ...
