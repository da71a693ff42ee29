"""An open transaction on PostgreSQL: our own, or one that the caller owns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec
import psycopg

from tenure.errors import InvalidInput, ValueRefused
from tenure.rules.claim import ALL_NEEDS, Ask
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import PARENTS_FINISHED
from tenure.rules.permits import Use, tickets_of, turns_of
from tenure.store.borrowing import Borrowed
from tenure.store.gate_records import (
    GateQuestion,
    LineFound,
    LinePicked,
    OpenGate,
    line_of,
    lines_of,
)
from tenure.store.postgres.connection import Wire
from tenure.store.postgres.copy_format import can_copy, job_lines, line, ticket_lines
from tenure.store.postgres.errors import CONFLICTS, translate
from tenure.store.postgres.find import PostgresConditions
from tenure.store.postgres.floors import Floors, LineFloors
from tenure.store.postgres.notify import News
from tenure.store.records import (
    AddedTicket,
    DrawnPositions,
    EndedJob,
    FreedNode,
    MovedJob,
    NewLane,
    Peeked,
    SeenTicket,
    TakenTicket,
)
from tenure.store.rows import Freed, job_row, raw
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
from tenure.store.statements import completed, qualify

COPY_ROWS = 100
BRIEF_MILLISECONDS = 100
POSITIONS_PER_DRAW = 1000

MAX_NAMED = 400
"""How many jobs the notification of cancel requests names: it has at most 8,000 bytes."""

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class PostgresTx(Tx):
    """An open transaction on one connection."""

    news: News | None = None
    """What it may tell workers; None: it sends no notification."""
    sorts_by_finish = False
    schema = "tenure"
    told_of_cancels = False
    """It has sent a notification of cancel requests."""

    def __init__(
        self, wire: Wire, sql: Mapping[str, tuple[str, ...]], floors: Floors, *, prepare: bool
    ) -> None:
        self._wire = wire
        self._sql = sql
        self._floors = floors
        self._prepare = prepare
        self._now: datetime | None = None

    def at(self, now: datetime | None) -> None:
        self._now = given_time(now)

    async def fetch(self, statement: str, **params: object) -> list[Row]:
        [sql] = self._sql[statement]
        params["now"] = self._now
        return await self._wire.fetch(sql, params, prepare=self._prepare)

    async def search(self, statement: str, search: Searching, **params: object) -> list[Row]:
        """Filters are many and different, so a statement with one is not prepared."""
        [sql] = self._sql[statement]
        condition = PostgresConditions(search.terms, search.side)
        where = qualify(condition.sql, "postgres", self.schema)
        return await self._wire.fetch(
            completed(sql, where, oldest=search.oldest), params | condition.params,
            prepare=self._prepare and not search.terms,
        )  # fmt: skip

    async def tickets_added(self, tickets: Sequence[AddedTicket | NewLane]) -> None:
        if self.news is not None:
            self.news.add_tickets(tickets)
            await self._send_news()

    async def queues_ready(self, queues: Collection[str]) -> None:
        if self.news is not None:
            self.news.add_ready(queues)
            await self._send_news()

    async def gates_changed(self, queues: Collection[str]) -> None:
        if self.news is not None:
            self.news.add_soon(queues)
            await self._send_news()

    async def cancels_requested(self, ids: Collection[int]) -> None:
        if self.news is not None:
            named = sorted(ids) if len(ids) <= MAX_NAMED else []
            await self.fetch("notify_cancels", ids=" ".join(map(str, named)))
            self.told_of_cancels = True

    async def _send_news(self) -> None:
        """Our own transactions send the news with their COMMIT."""

    async def draw_ids(self, count: int) -> list[int]:
        return await self.fetch_column("draw_ids", count=count)

    async def insert_jobs(self, jobs: Sequence[tuple[int, NewJob]]) -> None:
        if len(jobs) >= COPY_ROWS and all(can_copy(job) for _, job in jobs):
            await self._copy_jobs(jobs)
        else:
            await self._insert_jobs(jobs)

    async def _insert_jobs(self, jobs: Sequence[tuple[int, NewJob]]) -> None:
        rows = to_json([job_row(id, job, job.due_at) for id, job in jobs])
        lanes = await self.fetch("insert_jobs", rows=rows)
        if self.news is not None:
            await self.tickets_added(as_records(NewLane, lanes))

    async def _copy_jobs(self, jobs: Sequence[tuple[int, NewJob]]) -> None:
        """COPY writes many rows per WAL record: about 80 bytes less per job than INSERT.

        A separate statement draws the positions here, so `draw_positions` locks `ready` first: the
        floors of the claimers rely on it.
        """
        assert len(jobs) <= POSITIONS_PER_DRAW
        [(first, now)] = await self.fetch_as(DrawnPositions, "draw_positions")
        created_at = now.isoformat()
        await self._wire.copy(self._sql["copy_jobs"][0], job_lines(jobs, first, created_at))
        await self._wire.copy(self._sql["copy_tickets"][0], ticket_lines(jobs, first))
        if self.news is not None:
            last_to_first = reversed(list(enumerate(jobs, first)))
            lanes = {
                (job.queue, job.needs, job.priority): position
                for position, (_, job) in last_to_first
            }
            for lane, position in lanes.items():
                self.news.add(*lane, position)

    def time(self, at: datetime | None) -> datetime | None:
        return at

    def when(self, value: Any) -> datetime:
        if type(value) is bytes:  # as the server sends it: see `take_tickets`
            return _EPOCH + timedelta(microseconds=int.from_bytes(value, signed=True))
        at: datetime = value
        return at.astimezone(UTC)  # the session's time zone is the user's business

    async def take_tickets(self, wanted: Wanted) -> list[TakenTicket]:
        await self._floors.advance(self)
        lines = _lines(wanted.queues)
        gaps = self._floors.unseen(lines)
        gap_of = {
            (gap.queue, needs): n
            for n, gap in enumerate(gaps) for needs in range(gap.first, gap.last + 1)
        }  # fmt: skip
        lanes = [
            {"n": n, "queue": queue, "needs": needs, "most": min(most, ask.most),
             "total": ask.most, "gap": gap_of.get((queue, needs))}
            for n, (queue, ask) in enumerate(wanted.queues.items())
            for needs, most in ask.of.items()
        ]  # fmt: skip
        tickets = await self.fetch_as(
            TakenTicket, "take_tickets", lanes=to_json(lanes), ranges=self._floors.ranges(lines),
            gaps=to_json([{"gap": n, **gap._asdict()} for n, gap in enumerate(gaps)]),
            worker=wanted.worker, request_id=self.request_id, lease_seconds=wanted.lease_seconds,
            ahead=wanted.ahead, max_kb=wanted.max_kb, taken=wanted.taken,
        )  # fmt: skip
        taken = {(each.queue, each.needs, each.priority) for each in tickets}
        self._floors.note_taken(taken, len(tickets))
        return tickets

    async def take_spots(self, wanted: Wanted, spots: Sequence[SeenTicket]) -> list[TakenTicket]:
        rows = [
            {"queue": s.queue, "needs": s.needs, "priority": s.priority, "position": s.position}
            for s in spots
        ]
        return await self.fetch_as(
            TakenTicket, "take_spots", rows=to_json(rows), worker=wanted.worker,
            request_id=self.request_id, lease_seconds=wanted.lease_seconds, ahead=wanted.ahead,
        )  # fmt: skip

    async def open_gates(self, queues: Mapping[str, Ask]) -> list[OpenGate]:
        rows = await self.fetch(
            "open_gates", queues=to_json([{"name": name} for name in queues]),
            ranges=self._floors.ranges(_lines(queues), all_of_it=False),
        )  # fmt: skip
        gates = list(map(OpenGate._make, rows))
        if gates:
            self._now = gates[0].now
        return gates

    async def look_at_gates(
        self, wanted: Wanted, questions: Sequence[GateQuestion]
    ) -> list[LineFound]:
        """A line that seems to be empty from its floor on is read again from its start."""
        floors = self._floors.lines.known()
        rows = await self._look_at_gates(wanted, questions, floors)
        bare = [(queue, gate, key) for queue, gate, key, *_, tickets in rows if not tickets]
        if bare := [line for line in bare if line in floors]:
            self._floors.lines.forget(bare)
            floors = {line: head for line, head in floors.items() if line not in bare}
            rows = await self._look_at_gates(wanted, questions, floors)
        decode = msgspec.json.decode
        lines = []
        for queue, gate, key, *use, running, starts, age_seconds, turns, asked, text in rows:
            tickets = tickets_of(decode(text or "[]"))  # one more than may pass
            lines.append(
                LineFound(
                    queue, gate, key, Use(*use), running, starts, age_seconds,
                    turns_of(decode(turns)), tickets[: asked - 1], len(tickets) == asked,
                    (queue, gate, key) in floors,
                )
            )  # fmt: skip
        lines.sort(key=attrgetter("turns"))  # the line with the first turn goes first
        return lines

    async def _look_at_gates(
        self, wanted: Wanted, questions: Sequence[GateQuestion], floors: Mapping[Row, Row]
    ) -> list[Row]:
        names = ("queue", "gate", "key", "priority", "position")
        from_here = [dict(zip(names, line + head, strict=True)) for line, head in floors.items()]
        return await self.fetch(
            "look_at_gates", rows=to_json(questions), worker=wanted.worker,
            new_permits=wanted.new_permits, floors=to_json(from_here),
        )  # fmt: skip

    async def take_gated(
        self, wanted: Wanted, lines: Sequence[LinePicked]
    ) -> list[list[TakenTicket]]:
        several = len(lines) > 1
        rows = await self.fetch(
            "take_gated", rows=to_json(lines), worker=wanted.worker, request_id=self.request_id,
            lease_seconds=wanted.lease_seconds, ahead=wanted.ahead, several=several,
        )  # fmt: skip
        tickets = as_records(TakenTicket, [ticket for *ticket, _ in rows])
        if not several:
            [only] = lines
            if len(tickets) >= LineFloors.MANY:
                last = max((ticket.priority, ticket.position) for ticket in tickets)
                self._floors.lines.note((only.queue, only.gate, only.key), *last)
            return [tickets]
        names = [line_of(line.queue, line.gate, line.key) for line in lines]
        by_line: dict[str, list[TakenTicket]] = {name: [] for name in names}
        for (*_, name), ticket in zip(rows, tickets, strict=True):
            by_line[name].append(ticket)
        return list(by_line.values())

    async def leave_gates(self, lines: Collection[Row]) -> None:
        rows = [
            {
                "queue": queue,
                "gate": gate,
                "key": key,
                "from_priority": priority,
                "from_position": position,
            }
            for (queue, gate, key), (priority, position) in (
                (line, self._floors.heads.of(line)) for line in map(tuple, lines)
            )
        ]
        left = await self.fetch("leave_gates", rows=to_json(rows))
        for *name, priority, position in left:
            if priority is not None:
                self._floors.heads.note(tuple(name), priority, position)
        await self.gates_changed({queue for queue, *_ in left})

    async def commit_late(self) -> None:
        await self._wire.script("set local synchronous_commit = off")

    async def wait_briefly(self) -> None:
        await self._wire.script(f"set local lock_timeout = '{BRIEF_MILLISECONDS}ms'")

    async def peek(self, queues: Collection[str]) -> Peeked:
        lines = [(queue, needs) for queue in queues for needs in ALL_NEEDS]
        gaps = self._floors.without_floor(lines)
        together = {(gap.queue, n) for gap in gaps for n in range(gap.first, gap.last + 1)}
        ranges = self._floors.ranges(
            [line for line in lines if line not in together], all_of_it=False
        )
        [seen] = await self.fetch_as(
            Peeked, "peek", ranges=ranges, gaps=to_json([gap._asdict() for gap in gaps])
        )
        # A queue whose dead part was not read for a while counts as ready: the claim reads all.
        return seen._replace(ready={*seen.ready, *self._floors.overdue(queues)})

    async def succeed_jobs(self, worker: str, by_lease: Mapping[int, Sequence[Done]]) -> Moved:
        groups = []
        for lease, jobs in by_lease.items():
            ids, tokens, durations, results = zip(*jobs, strict=True)
            group = {"lease": lease, "ids": ids, "tokens": tokens, "durations": durations}
            if any(results):
                group["results"] = [raw(result) for result in results]
            groups.append(group)
        rows = to_json(groups)
        moved = await self.fetch_as(
            MovedJob, "succeed", rows=rows, worker=worker, keep=self.keep_succeeded
        )
        return Moved(moved, _lines_at_gates([job.line for job in moved]))

    async def finish_jobs(self, rows: str) -> Ended:
        jobs = await self.fetch_as(EndedJob, "finish", rows=rows, keep=self.keep_other)
        return Ended(jobs, _lines_at_gates(job.line for job in jobs))

    async def free_nodes(self, ids: list[int]) -> list[int]:
        nodes = await self.fetch_as(
            FreedNode, "free_nodes", ids=to_json(ids), reason=PARENTS_FINISHED
        )
        if self.news is not None:
            for node in nodes:
                if node.position is not None:
                    self.news.add(node.queue, node.needs, node.priority, node.position)
            await self._send_news()
        return [node.id for node in nodes if node.position is None]

    async def free_jobs(self, freed: Sequence[Freed]) -> None:
        rows = to_json([job.ticket for job in freed])
        await self.tickets_added(await self.fetch_as(AddedTicket, "add_tickets", rows=rows))

    async def write_edges(self, edges: Sequence[Edge]) -> None:
        await self.write_rows("write_edges", edges)

    async def write_rows(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        [sql] = self._sql[statement]
        await self._wire.copy(sql, ["".join([line(row) for row in rows])])


def _lines(queues: Mapping[str, Ask]) -> list[tuple[str, int]]:
    return [(queue, needs) for queue, ask in queues.items() for needs in ask.of]


def _lines_at_gates(names: Iterable[str | None]) -> Collection[Row]:
    lines = {name for name in names if name is not None}
    return lines_of(lines) if lines else ()


class BorrowedTx(PostgresTx):
    """The caller's transaction, through whatever connection the caller has: see `borrow`."""

    bulk = False
    aborts = True

    def __init__(self, wire: Wire, sql: Mapping[str, tuple[str, ...]], borrowed: Borrowed) -> None:
        # Planned again each time: a plan made for empty tables would scan them.
        super().__init__(wire, sql, Floors(), prepare=False)
        self._borrowed = borrowed

    async def insert_jobs(self, jobs: Sequence[tuple[int, NewJob]]) -> None:
        await self._insert_jobs(jobs)

    async def fetch(self, statement: str, **params: object) -> list[Row]:
        try:
            return await super().fetch(statement, **params)
        except UnicodeEncodeError as error:
            raise ValueRefused(
                f"on= cannot carry a text ({error}); set its client_encoding to UTF8"
            ) from error
        except psycopg.Error as error:
            own = self._borrowed.as_raised(self._wire.original(error), statement)
            if self._wire.broken:
                await self._borrowed.lose()
            if isinstance(error, CONFLICTS):  # the caller's transaction, and theirs to run again
                raise own from own.__cause__
            raise translate(error) from error

    async def _send_news(self) -> None:
        """At once: the COMMIT is the caller's."""
        if self.news is not None and (notice := self.news.take()):
            await self.fetch("notify", **notice.params)

    async def require_read_committed(self) -> None:
        [(level,)] = await self._wire.fetch(
            "select current_setting('transaction_isolation')", {}, prepare=False
        )
        if level != "read committed":
            raise InvalidInput(
                f"on= is a {level} transaction, and this job has children: whether they are free "
                "cannot be seen there. Use READ COMMITTED to complete it"
            )
