"""One open transaction on a SQLite file: the statements of the hot steps, row by row or in bulk."""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec

from tenure.rules.claim import Ask
from tenure.rules.gates import line_name
from tenure.rules.job import Feature, Json, NewJob, Unique
from tenure.rules.limits import FAR_FUTURE
from tenure.store.gate_records import GateQuestion, LineFound, LinePicked, OpenGate, lines_of
from tenure.store.records import (
    BatchFeatures,
    EndedJob,
    MovedJob,
    NewLease,
    Peeked,
    ReadTicket,
    SeenTicket,
    TakenTicket,
)
from tenure.store.rows import Freed, features_of, is_plain
from tenure.store.session import (
    Done,
    Edge,
    Ended,
    Moved,
    Row,
    Searching,
    Tx,
    Wanted,
    as_records,
    given_time,
    to_json,
)
from tenure.store.sqlite import driver
from tenure.store.sqlite.boot_clock import EPOCH, MICROSECOND, Clock
from tenure.store.sqlite.driver import Connection, DriverError
from tenure.store.sqlite.find import SQLiteConditions
from tenure.store.sqlite.gates import look_at_gates
from tenure.store.sqlite.lanes import pick_tickets
from tenure.store.statements import completed, qualify, statements

SCHEMA = "tenure"
ROWS_AT_ONCE = 32
MANY_CHILDREN = 32
WIDE_CACHE = "pragma cache_size = -8000"
"""For a connection that frees many children: they, their edges and their place in history are all
over the tables. (With 2 MB, a random graph of 10,000 nodes took half as much CPU again.)"""


class SQLiteTx(Tx):
    """An open transaction on one connection."""

    def __init__(self, connection: Connection, path: str, clock: Clock) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._sql = statements("sqlite", SCHEMA)
        self._now: dict[str, Any] = {}

    @property
    def file(self) -> str | None:
        return self._path

    def at(self, now: datetime | None) -> None:
        self._now = self._clock.read(given_time(now))

    async def cancels_requested(self, ids: Collection[int]) -> None:  # noqa: ARG002 - any worker
        await self.fetch("count_cancels")

    async def fetch(self, statement: str, **params: object) -> list[Row]:
        values = params | self._now
        rows: list[Row] = []
        try:
            for sql in self._sql[statement]:
                rows += self._connection.execute(sql, values)
        except DriverError as error:
            raise driver.translate(error, self._path) from error
        return rows

    async def search(self, statement: str, search: Searching, **params: object) -> list[Row]:
        [sql] = self._sql[statement]
        condition = SQLiteConditions(search.terms, search.side)
        where = qualify(condition.sql, "sqlite", SCHEMA)
        try:
            return list(
                self._connection.execute(
                    completed(sql, where, oldest=search.oldest),
                    params | condition.params | self._now,
                )
            )
        except DriverError as error:
            raise driver.translate(error, self._path) from error

    async def draw_ids(self, count: int) -> list[int]:
        [(last,)] = await self.fetch("draw_ids", count=count)
        return list(range(last - count + 1, last + 1))

    async def insert_jobs(self, jobs: Sequence[tuple[int, NewJob]]) -> None:
        """Row by row with bound values: three times as fast here as taking a JSON batch apart."""
        now: int = self._now["now"]
        [(last,)] = await self.fetch("draw_positions", count=len(jobs))
        placed = list(enumerate(jobs, last - len(jobs) + 1))
        span = {"first": jobs[0][0], "last": jobs[-1][0]}
        plain = [is_plain(job) for _, job in jobs]
        if all(plain):
            rows = [
                (id, position, now, job.priority, job.max_attempts, job.tenant, job.queue, job.task,
                 job.args.decode(), job.needs, job.size_kb if len(job.args) > 1023 else 0)
                for position, (id, job) in placed
            ]  # fmt: skip
            await self._insert("insert_plain_job", rows)
            await self.fetch("insert_tickets", **span)
            return
        rows = [self._job_row(now, position, id, job) for position, (id, job) in placed]
        await self._insert("insert_job", rows)
        await self.fetch("insert_tickets", **span)
        await self.fetch("insert_due", **span)
        gated = [
            (job.gate, line_name(job.tenant, job.gate_key),
             position if self._is_ready(job, now) else None, id)
            for position, (id, job) in placed if job.gate is not None
        ]  # fmt: skip
        if gated:
            await self._each("set_gate_of", gated)

    def _job_row(self, now: int, position: int, id: int, job: NewJob) -> Row:
        """The values of `insert_job`."""
        has_ticket = job.gate is None and self._is_ready(job, now)
        key = _NO_KEY if job.unique is None else _key(job, job.unique)
        return (
            id, position if has_ticket else None, now, self._due(job, now), job.timeout_seconds,
            job.priority, job.max_attempts, features_of(job), job.tenant, job.queue, job.task,
            job.args.decode(), _text(job.retry), _text(job.metadata),
            "parents" if _waits(job) else None, *key, job.needs, job.size_kb,
            job.keep_succeeded_seconds, job.keep_other_seconds,
            *self._deadlines(job, now),
        )  # fmt: skip

    def _is_ready(self, job: NewJob, now: int) -> bool:
        return self._due(job, now) is None and not _waits(job)

    def _due(self, job: NewJob, now: int) -> int | None:
        """The due time in microseconds, or None if the job is ready at once."""
        due = self.time(job.due_at)
        if job.delay_seconds is not None:
            due = now + int(1e6 * job.delay_seconds)
        return due if due is not None and due > now else None

    def _deadlines(self, job: NewJob, now: int) -> tuple[int | None, int | None]:
        """When it must start and finish, counted from its due time if it has one."""
        if not job.has_deadline:
            return None, None
        since = self._due(job, now) or now
        return (
            _from(since, self.time(job.expires_at), job.start_within_seconds),
            _from(since, self.time(job.finish_by), job.finish_within_seconds),
        )

    async def take_tickets(self, wanted: Wanted) -> list[TakenTicket]:
        taken: list[ReadTicket] = []
        for picked in await pick_tickets(self, wanted):
            lane = {"queue": picked.queue, "needs": picked.needs}
            if picked.suspect is not None:
                name = lane | picked.suspect._asdict()
                taken += await self.fetch_as(ReadTicket, "take_suspect", **name)
                await self.fetch("drop_suspect", **name)
                continue
            tickets = await self.fetch_as(ReadTicket, "take_tickets", most=picked.tickets, **lane)
            if not tickets:
                continue
            last = tickets[-1]  # the single writer read the head of the lane: all up to this one
            await self.fetch("drop_tickets", priority=last.priority, position=last.position, **lane)
            taken += tickets
        return await self._put_on_leases(wanted, taken)

    async def take_spots(self, wanted: Wanted, spots: Sequence[SeenTicket]) -> list[TakenTicket]:
        taken: list[ReadTicket] = []
        for spot in spots:
            name = {
                "queue": spot.queue, "needs": spot.needs, "priority": spot.priority,
                "position": spot.position,
            }  # fmt: skip
            taken += await self.fetch_as(ReadTicket, "take_suspect", **name)
            await self.fetch("drop_suspect", **name)
        return await self._put_on_leases(wanted, taken)

    async def open_gates(self, queues: Mapping[str, Ask]) -> list[OpenGate]:
        return [
            OpenGate._make(row)
            for queue, ask in queues.items()
            for row in await self.fetch("open_gates", queue=queue, needs=to_json([*ask.of]))
        ]

    async def look_at_gates(
        self, wanted: Wanted, questions: Sequence[GateQuestion]
    ) -> list[LineFound]:
        return await look_at_gates(self, wanted, questions)

    async def leave_gates(self, lines: Collection[Row]) -> None:
        rows = [{"queue": queue, "gate": gate, "key": key} for queue, gate, key in lines]
        await self.fetch("leave_gates", rows=to_json(rows))

    async def take_gated(
        self, wanted: Wanted, lines: Sequence[LinePicked]
    ) -> list[list[TakenTicket]]:
        taken: list[ReadTicket] = []
        line_of: dict[tuple[str, int], int] = {}
        for n, line in enumerate(lines):
            picked = msgspec.structs.asdict(line)
            tickets = await self.fetch_as(ReadTicket, "take_gated", **picked)
            if tickets:
                last = {"priority": tickets[-1].priority, "position": tickets[-1].position}
                await self.fetch("drop_gated", **picked | last)
            line_of.update(dict.fromkeys([(each.queue, each.position) for each in tickets], n))
            taken += tickets
        leased = await self._put_on_leases(wanted, taken)
        by_line: list[list[TakenTicket]] = [leased] if len(lines) == 1 else [[] for _ in lines]
        for ticket in leased if len(lines) > 1 else ():
            by_line[line_of[ticket.queue, ticket.position]].append(ticket)
        await self._each("hold_at_gates", list(_holds(wanted, lines, by_line)))
        return by_line

    async def _put_on_leases(self, wanted: Wanted, taken: list[ReadTicket]) -> list[TakenTicket]:
        live = [ticket for ticket in sorted(taken, key=_by_position) if ticket.id is not None]
        if [ticket for ticket in live if ticket.start_by is not None]:
            live = [_ending(ticket, self._now["now"]) for ticket in live]
        leased = _on_lease([ticket for ticket in taken if ticket.id is None], None)
        for block in _blocks(live):
            first = block[0]
            unstarted = first.ends == 2 or (wanted.ahead and not first.crashes and not first.ends)
            [lease] = await self.fetch_as(
                NewLease, "insert_lease", worker=wanted.worker, request_id=self.request_id,
                jobs=to_json([(ticket.id, ticket.token) for ticket in block]),
                started="[]" if unstarted else None, lease_seconds=wanted.lease_seconds,
            )  # fmt: skip
            leased += _on_lease(block, lease)
        keyed = [ticket.id for ticket in live if ticket.features & Feature.KEY_UNTIL_STARTED]
        if keyed:
            await self.fetch("drop_started_keys", ids=to_json(keyed))
        return leased

    async def peek(self, queues: Collection[str]) -> Peeked:
        [seen] = await self.fetch_as(Peeked, "peek", queues=to_json([*queues]))
        ready, due_seconds, expired, gates = seen
        return Peeked(set(msgspec.json.decode(ready)), due_seconds, bool(expired), bool(gates))

    async def succeed_jobs(self, worker: str, by_lease: Mapping[int, Sequence[Done]]) -> Moved:
        """Through a table in memory: half the cost of a JSON batch with RETURNING."""
        rows: list[tuple[object, ...]] = []
        for lease, jobs in by_lease.items():
            for claimed_at in await self.fetch_column("lease_of_worker", id=lease, worker=worker):
                rows += [
                    (id, token, duration, _text(result), claimed_at)
                    for id, token, duration, result in jobs
                ]
        if not rows:
            return Moved([])
        await self.fetch("open_batch")
        await self._each("add_to_batch", rows)
        kinds: list[BatchFeatures] = []
        [(featured, followed)] = await self.fetch("any_featured")
        if featured:
            kinds = await self.fetch_as(BatchFeatures, "features_of_batch")
        before = driver.total_changes(self._connection)
        if self.keep_succeeded is None and not any(each.features & Feature.KEEP for each in kinds):
            await self.fetch("succeed", worker=worker)
        else:
            await self.fetch(
                "succeed_keeping", worker=worker, keep=self.keep_succeeded, far_future=_FAR_FUTURE
            )
        changed = driver.total_changes(self._connection) - before
        if followed:
            await self.fetch("feed_batch", worker=worker)
        if changed < len(rows):
            moved = await self.fetch_as(MovedJob, "moved_jobs")
            await self._drop_live([job.id for job in moved])
            return Moved(moved, _lines_at_gates({job.line for job in moved}))
        moved = as_records(MovedJob, [(id, token, 0, None, None, 1) for id, token, *_ in rows])
        if any(kind.features & ~Feature.GATE for kind in kinds):
            featured = {job.id: job for job in await self.fetch_as(MovedJob, "featured_in_batch")}
            moved = [featured.get(job.id, job) for job in moved]
        await self.fetch("drop_batch")
        return Moved(moved, _lines_at_gates({kind.line for kind in kinds}))

    async def finish_jobs(self, rows: str) -> Ended:
        jobs = await self.fetch_as(
            EndedJob, "finish", rows=rows, keep=self.keep_other, far_future=_FAR_FUTURE
        )
        if jobs and await self.fetch("has_readers"):
            await self.fetch("feed_finished", rows=rows)
        await self._drop_live([job.id for job in jobs])
        return Ended(jobs, _lines_at_gates({job.line for job in jobs}))

    async def free_jobs(self, freed: Sequence[Freed]) -> None:
        """Row by row with bound values: half the cost of `add_tickets`."""
        if len(freed) >= MANY_CHILDREN:
            self._widen_cache()
        now: int = self._now["now"]
        [last] = await self.fetch_column("draw_positions", count=len(freed))
        placed = list(enumerate(freed, last - len(freed) + 1))
        await self._each(
            "free", [(now, position, j.reason, j.id, j.token) for position, j in placed]
        )
        await self._each(
            "free_tickets",
            [
                (j.queue, j.needs, j.priority, position, j.id, j.token + 1, j.suspect, j.size_kb)
                for position, j in placed
            ],
        )

    async def write_edges(self, edges: Sequence[Edge]) -> None:
        await self._each("write_parent", [(child, parent, None) for child, parent, _ in edges])

    async def write_rows(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        await self._each(statement, rows)

    async def _drop_live(self, ids: list[int]) -> None:
        """Delete the live rows of jobs that are in history now."""
        if ids:
            await self.fetch("drop_live", ids=to_json(ids))

    async def _insert(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Run an insert of one row for all of these, several at a time.

        (A row at a time, 1,000 jobs looked at 2,242 pages in place of 1,281. 64 jobs took 6.1
        microseconds each in place of 5.0, and 960 jobs 3.3 in place of 3.0.)
        """
        [sql] = self._sql[statement]
        try:
            whole = len(rows) - len(rows) % ROWS_AT_ONCE
            if whole:
                several = _for_rows(sql, ROWS_AT_ONCE)
                for start in range(0, whole, ROWS_AT_ONCE):
                    part = rows[start : start + ROWS_AT_ONCE]
                    self._connection.execute(several, tuple(chain.from_iterable(part)))
            if whole < len(rows):
                self._connection.executemany(sql, rows[whole:])
        except DriverError as error:
            raise driver.translate(error, self._path) from error

    async def _each(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Run a statement once per row of values."""
        [sql] = self._sql[statement]
        try:
            self._connection.executemany(sql, rows)
        except DriverError as error:
            raise driver.translate(error, self._path) from error

    def _widen_cache(self) -> None:
        self._connection.execute(WIDE_CACHE)

    def time(self, at: datetime | None) -> int | None:
        return None if at is None else (at - EPOCH) // MICROSECOND

    def when(self, value: Any) -> datetime:
        return EPOCH + timedelta(microseconds=value)


@cache
def _for_rows(sql: str, count: int) -> str:
    """An insert of one row, for several."""
    head, word, row = sql.rpartition("values ")
    return head + word + ", ".join([row.rstrip(";")] * count)


_by_position = attrgetter("priority", "position")
_NO_KEY = (None, None, None, None)
_FAR_FUTURE = (FAR_FUTURE - EPOCH) // MICROSECOND


def _from(since: int, at: int | None, seconds: float | None) -> int | None:
    """A time, or one that is some seconds later than another."""
    return at if seconds is None else since + int(1e6 * seconds)


def _waits(job: NewJob) -> bool:
    """Does it wait for its parents?"""
    return bool(job.parents or job.features & Feature.PARENTS)


def _lines_at_gates(names: Set[str | None]) -> Collection[Row]:
    lines = {name for name in names if name is not None}
    return lines_of(lines) if lines else ()


def _on_lease(tickets: list[ReadTicket], lease: NewLease | None) -> list[TakenTicket]:
    """These tickets on one lease; without one they are void."""
    id, claimed_at = lease or (None, None)
    rows = [(*ticket[:-1], id, claimed_at) for ticket in tickets]  # without `start_by`
    return as_records(TakenTicket, rows)


def _ending(ticket: ReadTicket, now: int) -> ReadTicket:
    """Mark a job that was not started in time."""
    is_late = ticket.start_by is not None and ticket.start_by < now and not ticket.attempts
    return ticket._replace(ends=2) if is_late and not ticket.ends else ticket


def _blocks(tickets: list[ReadTicket]) -> list[list[ReadTicket]]:
    """The tickets of each lease: all that end now, all trusted ones, each suspect alone."""
    asked = [ticket for ticket in tickets if ticket.ends == 1]
    expired = [ticket for ticket in tickets if ticket.ends == 2]
    others = [ticket for ticket in tickets if not ticket.ends]
    trusted = [ticket for ticket in others if not ticket.crashes]
    suspects = [[ticket] for ticket in others if ticket.crashes]
    return [block for block in (asked, expired, trusted, *suspects) if block]


def _holds(
    wanted: Wanted, lines: Sequence[LinePicked], by_line: list[list[TakenTicket]]
) -> Iterator[Row]:
    """For each lease and line, the jobs that have passed."""
    for line, tickets in zip(lines, by_line, strict=True):
        for lease in {each.lease for each in tickets if each.lease is not None}:
            jobs = [(each.id, each.token) for each in tickets if each.lease == lease]
            name = (line.queue, line.gate, line.key)
            yield (lease, *name, wanted.worker, len(jobs), to_json(jobs))


def _key(job: NewJob, unique: Unique) -> tuple[str, str, str, float | None]:
    return unique.scope or job.task, unique.key, unique.until, unique.period_seconds


def _text(data: Json | None) -> str | None:
    return None if data is None or data == b"null" else data.decode()
