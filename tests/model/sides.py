"""Real stores that speak the model's ids, so that one step can be sent to all of them.

An `Op` is one call. The model performs it first; each `Side` then performs it on its store, learns
from the expected answer which of the store's new ids stand for which of the model's, and answers in
the model's terms. What is left is a comparison by `==`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import msgspec
import psycopg

from tenure.errors import TenureError
from tenure.rules.claim import Lease
from tenure.rules.ends import Ended
from tenure.rules.job import Beat, Enqueued, Job
from tenure.rules.lifecycle import Settlement, succeed
from tenure.rules.limits import MAX_ID
from tenure.store import AsyncStore, Count, Page, Store, open_store
from tenure.store.postgres import tx as postgres_tx
from tenure.store.postgres.connection import (
    Blocking,
    BlockingColour,
    Suspending,
    SuspendingColour,
    Wire,
)
from tenure.store.postgres.floors import Floors
from tenure.store.postgres.session import Postgres
from tenure.store.session import Row
from tests.model.books import NOBODY, Held, JobId, LeaseId, Wish
from tests.model.reference import Model
from tests.support.plain import Plain
from tests.support.postgres import Server, usual_place
from tests.support.stores import Face, open_face, url_of

FAST_WORKER = "fast"
ONCE = {
    "enqueue", "claim", "sweep", "hold", "unhold", "move", "replay", "delete", "resume",
    "free_key",
}  # fmt: skip


class Lost(Enum):
    """What the network lost of one operation. The caller sends it again."""

    NOTHING = ""
    REQUEST = "request lost"
    REPLY = "reply lost"


@dataclass(frozen=True)
class Raised:
    """The answer of a refused operation."""

    error: str


@dataclass(frozen=True)
class Op:
    """One call of one operation, with the model's ids."""

    name: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    lost: Lost = Lost.NOTHING

    @property
    def repeated(self) -> bool:
        """Does it happen twice? Most operations know themselves again, and happen once."""
        return self.lost is Lost.REPLY and self.name not in ONCE


class _Presented(NamedTuple):
    """`Held` with a store's ids."""

    id: int
    token: int
    lease_id: int


class Network:
    """Cuts the connection around the COMMIT of the next operation, when told so."""

    def __init__(self) -> None:
        self.lose = Lost.NOTHING
        self.meanwhile: Callable[[], None] | None = None

    async def commit(self, wire: Wire, send: Callable[[], Awaitable[None]]) -> None:
        lose, self.lose = self.lose, Lost.NOTHING
        if lose is not Lost.REQUEST:
            await send()
        if lose is Lost.NOTHING:
            return
        await wire.close()
        if lose is Lost.REPLY and self.meanwhile is not None:
            self.meanwhile()
        raise psycopg.OperationalError(f"cut: {lose.value}")


class _Unreliable(Wire):
    """A connection over such a network. The draw of ids is left in peace."""

    network: Network
    _draws_ids = False

    async def script(self, sql: str) -> None:
        if sql.endswith("commit") and not self._draws_ids:
            await self.network.commit(self, lambda: self._send(sql))
            return
        self._draws_ids = False
        await self._send(sql)

    async def _send(self, sql: str) -> None:
        await super().script(sql)  # type: ignore[safe-super]  # of the wire that this is mixed into

    async def fetch(self, sql: str, params: Mapping[str, object], *, prepare: bool) -> list[Row]:
        self._draws_ids = "nextval('tenure.job_id')" in sql
        rows: list[Row] = []

        async def send() -> None:
            found = await super(_Unreliable, self).fetch(sql, params, prepare=prepare)  # type: ignore[safe-super]
            rows.extend(found)

        if "insert into tenure.job" in sql and self.idle:  # it will commit itself
            await self.network.commit(self, send)
        else:
            await send()
        return rows


class _Blocking(_Unreliable, Blocking):
    pass


class _Suspending(_Unreliable, Suspending):
    pass


class _Hasty(BlockingColour):
    """One connection, over the network, and no wait before a repeat."""

    def __init__(self, network: Network) -> None:
        super().__init__(1)
        self._network = network

    async def connect(self, **params: Any) -> Wire:
        wire = _Blocking(psycopg.connect(**params))
        wire.network = self._network
        return wire

    async def sleep(self, seconds: float) -> None:
        pass


class _HastyAsync(SuspendingColour):
    """The same on an event loop."""

    def __init__(self, network: Network) -> None:
        super().__init__(1)
        self._network = network

    async def connect(self, **params: Any) -> Wire:
        wire = _Suspending(await psycopg.AsyncConnection.connect(**params))
        wire.network = self._network
        return wire

    async def sleep(self, seconds: float) -> None:
        pass


class Side:
    """One store, its ids, and a plain connection beside it."""

    def __init__(self, style: str, url: str) -> None:
        self.style = style
        self.url = url
        self.network = Network()
        self.session: Postgres | None = None
        if style == "postgres-sync":
            self.session = Postgres(url, lambda: _Hasty(self.network))
            self.store = Store(self.session)
        elif style == "postgres-async":
            self.session = Postgres(url, lambda: _HastyAsync(self.network))
            self.store = cast(Store, Face(AsyncStore(self.session), asyncio.new_event_loop()))
        else:
            self.store = open_face(style, url)
        self.other = open_store(url) if self.session else self.store
        self.plain = Plain(url)
        self.start()

    def close(self) -> None:
        """Close all connections."""
        self.plain.close()
        if self.other is not self.store:
            self.other.close()
        self.store.close()

    def start(self) -> None:
        """Empty tables, no ids, and floors that move with every second ticket."""
        self.plain.wipe()
        self.jobs: dict[int, JobId] = {MAX_ID: NOBODY}
        self.leases: dict[int, LeaseId] = {}
        self._their_jobs: dict[int, int] = {}
        self._their_leases: dict[int, int] = {}
        if self.session is not None:
            self.session.floors = Floors(full_scan_seconds=1e9, step_tickets=2)

    def perform(self, op: Op, expected: object) -> object:
        """The store's answer, in the model's terms."""
        try:
            if op.name == "enqueue_and_finish":
                return self._enqueue_and_finish(op, cast(Any, expected))
            return self._in(self._call(op), expected)
        except TenureError as error:
            return Raised(type(error).__name__)
        except Exception as error:  # noqa: BLE001 - a wrong answer like any other, to be shrunk
            return Raised(repr(error))

    def _call(self, op: Op) -> object:
        store = self.store if op.tenant is None else self.store.for_tenant(op.tenant)
        args, options = self._out(op.args), self._out(op.options)
        if op.name == "list_jobs":
            return _all_pages(store, options)
        if op.name == "follow":
            return _all_ends(store, *args, **options)
        method = getattr(store, op.name)
        if self.session is not None:
            self.network.lose = op.lost
        elif op.repeated:
            with suppress(TenureError):
                method(*args, **options)
        try:
            return method(*args, **options)
        finally:
            self.network.lose = Lost.NOTHING

    def _enqueue_and_finish(self, op: Op, expected: tuple[list[Enqueued], list[Lease]]) -> object:
        """The jobs are claimed and finished before their enqueue is answered, or even repeated."""
        wishes, queues = op.args
        leases: list[Lease] = []

        def meanwhile() -> None:
            found = self.other.claim(FAST_WORKER, queues, **op.options)
            leases.extend(found)
            done = [succeed(job) for lease in found for job in lease.jobs]
            self.other.settle(
                FAST_WORKER, done, done_leases=[x.id for x in found], now=op.options["now"]
            )

        wanted = Op("enqueue", (wishes,), {"now": op.options["now"]}, lost=op.lost)
        if self.session is None or op.lost is not Lost.REPLY:
            added = self._call(wanted)
            meanwhile()
        else:
            self.network.meanwhile = meanwhile
            added = self._call(wanted)
            self.network.meanwhile = None
        return self._in(added, expected[0]), self._in(leases, expected[1])

    # Ids -------------------------------------------------------------------------------------

    def job_id(self, id: int) -> int:
        """The store's id of a job; one that nobody has when the job was never enqueued."""
        return self._their_jobs.get(id, MAX_ID)

    def _lease_id(self, id: int) -> int:
        return self._their_leases.get(id, MAX_ID)

    def _out(self, value: Any) -> Any:
        """The model's terms to the store's."""
        match value:
            case Wish():
                parents = tuple(self.job_id(id) for id in value.parents)
                return msgspec.structs.replace(value.job, parents=parents)
            case Held():
                return _Presented(
                    self.job_id(value.id), value.token, self._lease_id(value.lease_id)
                )
            case Settlement():
                return msgspec.structs.replace(
                    value, id=self.job_id(value.id), lease=self._lease_id(value.lease)
                )
            case JobId():
                return self.job_id(value)
            case LeaseId():
                return self._lease_id(value)
            case tuple() | list():
                return type(value)(self._out(part) for part in value)
            case dict():
                return {self._out(key): self._out(part) for key, part in value.items()}
        return value

    def _in(self, answer: Any, expected: Any) -> Any:
        """The store's terms to the model's. New ids are learnt from the expected answer."""
        match answer:
            case [Enqueued(), *_]:
                if isinstance(expected, list):
                    for mine, theirs in zip(expected, answer, strict=False):
                        if mine.created and theirs.created and theirs.id not in self.jobs:
                            self.jobs[theirs.id] = JobId(mine.id)
                            self._their_jobs[mine.id] = theirs.id
                return [msgspec.structs.replace(x, id=self._mine(x.id)) for x in answer]
            case [Lease(), *_]:
                return self._leases_in(answer, expected)
            case [Job(), *_]:
                return [self._in(job, None) for job in answer]
            case [Count(), *_]:
                return sorted(answer, key=lambda x: (x.queue, x.task, x.state, x.tenant))
            case [Ended(), *_]:
                ends = [msgspec.structs.replace(x, id=self._mine(x.id), place=0) for x in answer]
                return sorted(ends, key=lambda end: (end.id, end.token))
            case Job():
                return msgspec.structs.replace(answer, id=self._mine(answer.id))
            case Beat():
                lost = tuple(sorted(self.leases.get(id, -id) for id in answer.lost))
                stop = tuple((self._mine(id), token) for id, token in answer.cancelled)
                return msgspec.structs.replace(answer, lost=lost, cancelled=stop)
        return answer

    def _mine(self, id: int) -> int:
        return self.jobs.get(id, -id)

    def _leases_in(self, leases: list[Lease], expected: Any) -> list[Lease]:
        known = {}
        if isinstance(expected, list):
            known = {frozenset(job.id for job in x.jobs): LeaseId(x.id) for x in expected}
        translated = []
        for lease in leases:
            ids = frozenset(self._mine(job.id) for job in lease.jobs)
            if ids in known:
                self.leases[lease.id] = known[ids]
                self._their_leases[known[ids]] = lease.id
            mine = self.leases.get(lease.id, -lease.id)
            jobs = tuple(
                msgspec.structs.replace(job, id=self._mine(job.id), lease_id=mine)
                for job in lease.jobs
            )
            translated.append(msgspec.structs.replace(lease, id=mine, jobs=jobs))
        return translated


def perform_on_model(model: Model, op: Op) -> object:
    """What the answer must be."""
    options = dict(op.options)
    if op.tenant is not None:
        options["tenant"] = op.tenant
    try:
        if op.name == "enqueue_and_finish":
            wishes, queues = op.args
            added = model.enqueue(wishes, now=options["now"])
            leases = model.claim(FAST_WORKER, queues, **options)
            done = [succeed(job) for lease in leases for job in lease.jobs]
            model.settle(
                FAST_WORKER, done, done_leases=[LeaseId(x.id) for x in leases], now=options["now"]
            )
            return added, leases
        method = getattr(model, op.name)
        if op.repeated:
            with suppress(TenureError):
                method(*op.args, **options)
        answer: object = method(*op.args, **options)
        return answer
    except TenureError as error:
        return Raised(type(error).__name__)


def comparable(answer: Any) -> Any:
    """In which order jobs of different queues come out of one claim is nobody's business."""
    match answer:
        case tuple():
            return tuple(comparable(part) for part in answer)
        case [Lease(), *_]:
            by_queue = [
                msgspec.structs.replace(
                    lease, jobs=tuple(sorted(lease.jobs, key=lambda job: job.queue))
                )
                for lease in answer
            ]
            return sorted(by_queue, key=lambda lease: min(job.id for job in lease.jobs))
    return answer


def _all_pages(store: Store, options: Mapping[str, Any]) -> list[Job]:
    found: list[Job] = []
    after: str | None = None
    while True:
        page: Page = store.list_jobs(**options, after=after)
        assert len(page.jobs) <= options["limit"]
        found += page.jobs
        if page.next is None:
            return found
        assert page.next != after, "the next page does not come nearer"
        after = page.next


def _all_ends(store: Store, name: str, now: datetime) -> list[Ended]:
    found: list[Ended] = []
    while (page := store.read_feed(name, limit=4, now=now)).position > page.since:
        assert [end.place for end in page.ends] == sorted({end.place for end in page.ends})
        assert all(page.since < end.place <= page.position for end in page.ends)
        found += page.ends
        store.move_reader(name, page.position, now=now)
    return found


@contextmanager
def open_sides(styles: Sequence[str], server: Server | None) -> Iterator[list[Side]]:
    """Stores of these styles on fresh databases; COPY is used for as few as three jobs."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(postgres_tx, "COPY_ROWS", 3))
        place = usual_place(durable=False)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tenure-", dir=place))
        sides = []
        for style in styles:
            url = None
            if style.startswith("postgres"):
                assert server is not None
                url = server.create_database()
                stack.callback(server.drop_database, url)
                with open_store(url) as store:
                    store.migrate()
            side = Side(style, url_of(style, str(Path(folder) / f"{style}.db"), url))
            stack.callback(side.close)
            sides.append(side)
        yield sides
