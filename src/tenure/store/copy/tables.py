"""The tables of a copy: jobs with events and steps, keys, pauses, gates, workflows, schedules, the
feed with its readers, failure hooks, and statistics.

Rows are copied in one form for all stores: times are datetimes, flags are bools, and JSON is text,
unchanged to the letter. Two stores hold the same data if these rows are equal.

Not copied: leases and workers (a copy refuses to run while there are any); the clock of prune; the
last count of live jobs, which the next worker makes again; void
tickets; events of deleted jobs; the number of an event, which only gives the order of the events of
a job; turns at gates, which the target writes itself; and buckets, so that all of them are full at
first.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from tenure.rules.limits import LONG_AGO, MAX_ID
from tenure.store.records import Returned
from tenure.store.session import Row, Tx, to_json

CHUNK_ROWS = 1000
CHUNK_BYTES = 16 * 2**20
"""A chunk of jobs ends where either is reached, with at least one: memory stays bounded."""
CHUNK_WORKFLOWS = 100

Key = int | tuple[str, ...]
Chunk = dict[Key, tuple[Any, ...]]

_TIMES = frozenset(
    {"at", "claimed_at", "created_at", "due_at", "expires_at", "finished_at", "paused_at",
     "queued_at", "reported_at", "saved_at", "next_at", "done_until", "last_at", "changed_at",
     "tick_at", "fired_at", "start_by", "finish_by", "ended_at", "cancelled_at", "recorded_at",
     "keep_until", "seen_at", "lost_at"}
)  # fmt: skip
_LONG_AGO = LONG_AGO.isoformat()
_FLAGS = frozenset(
    {"held", "cancel_requested", "suspect", "triggered", "keyed", "by_hand", "paused", "failed",
     "cancelled", "stopping"}
)  # fmt: skip


class RunningJobs(NamedTuple):
    """How many jobs are running, and the first of them."""

    jobs: int
    first_id: int


class TableCount(NamedTuple):
    """How many rows there are of one kind."""

    kind: str
    rows: int


class Counters(NamedTuple):
    """The highest job id and the highest position that were ever drawn."""

    job_id: int
    position: int


class JobSize(NamedTuple):
    """A job, and about how many bytes belong to it."""

    id: int
    bytes: int


RETURNED_BY: Returned = {
    RunningJobs: ("first_running",),
    TableCount: ("count_all",),
    Counters: ("counters",),
    JobSize: ("next_jobs",),
}


class Table(NamedTuple):
    """A table and its columns, in the order in which the statements name them."""

    name: str
    columns: tuple[str, ...]

    def read(self, tx: Tx, row: Row) -> Row:
        """A row of this store in the form that all stores share."""
        return tuple(
            value if value is None else
            tx.when(value) if column in _TIMES else
            bool(value) if column in _FLAGS else value
            for column, value in zip(self.columns, row, strict=True)
        )  # fmt: skip

    async def write(self, tx: Tx, rows: Iterable[Row]) -> None:
        """Write such rows into this store."""
        ours = [
            tuple(
                tx.time(value) if column in _TIMES else value
                for column, value in zip(self.columns, row, strict=True)
            )
            for row in rows
        ]
        if ours:
            await tx.write_rows(f"write_{self.name}", ours)


def _table(name: str, columns: str) -> Table:
    return Table(name, tuple(columns.split()))


JOB_TABLES: tuple[Table, ...] = (
    _table(
        "job",
        """id token position created_at due_at queued_at timeout_seconds unique_seconds priority
        attempts max_attempts crashes features needs size_kb held cancel_requested tenant queue task
        args retry metadata error reason parked unique_scope unique_key unique_until gate
        gate_key keep_succeeded_seconds keep_other_seconds start_by finish_by""",
    ),
    _table("ready", "job_id queue needs priority position token suspect size_kb"),
    _table("due", "job_id due_at token"),
    _table(
        "history",
        """id token created_at claimed_at finished_at duration_seconds timeout_seconds
        unique_seconds state priority attempts max_attempts crashes features needs tenant queue task
        args worker result error reason retry metadata unique_scope unique_key unique_until gate
        gate_key keep_until keep_succeeded_seconds keep_other_seconds start_by finish_by""",
    ),
    _table("event", "job_id at token kind worker request_id detail"),
    _table("note", "job_id token fraction message reported_at checkpoint saved_at notes"),
    _table("step", "job_id name n token recorded_at bytes function result"),
    _table("parent", "job_id parent_id parent_state"),
    _table("gated", "job_id queue gate key priority position token suspect needs size_kb"),
    _table("node", "job_id workflow_id name rule added_by paused"),
)
"""All that is known of a job. The first column is its id."""
_LIVE, _FINISHED = 0, 3

WORKFLOWS = _table(
    "workflow",
    """id created_at ended_at paused_at cancelled_at finaliser_id failed cancelled stopping tenant
    name key on_failure outcome reason""",
)
_ENDS = next(table for table in JOB_TABLES if table.name == "parent")

UNIQUE_KEYS = _table("unique_key", "tenant scope key job_id until fingerprint expires_at outcome")
QUEUES = _table("queue", "name paused_at reason")
GATES = _table("gate", "name max_running rate per_seconds burst keyed by_hand declared")
SCHEDULES = _table(
    "schedule",
    """tenant name next_at done_until last_at last_job_id created_at changed_at paused_at reason
    timing job declared""",
)
FEED = _table(
    "feed",
    """place job_id token state attempts finished_at duration_seconds tenant queue task worker
    reason error_type error_message""",
)
FEED_END = _table("feed_end", "name place")
FEED_READERS = _table("feed_reader", "tenant name position created_at seen_at lost_at kept_seconds")
FAILURE_HOOKS = _table("failure_hook", "task hook parameter job")
TICKS = _table("tick", "tenant schedule tick_at fired_at job_id triggered")
STATISTICS = _table(
    "statistic",
    "span at queue task outcome process ends wait_seconds run_seconds waits runs",
)
_NUMBERS = frozenset({"span"})
"""Columns of keys that are integers."""


class Kind(ABC):
    """One kind of thing that is carried. Each has a key, under which it is found again."""

    first: Key
    """Comes before all keys."""

    @abstractmethod
    def name(self, key: Key) -> str:
        """What a message calls the one with this key."""

    @abstractmethod
    async def next_keys(self, tx: Tx, after: Key) -> list[Key]:
        """The keys of the next chunk, in order."""

    @abstractmethod
    async def read(self, tx: Tx, keys: list[Key]) -> Chunk:
        """Those of them that are there, in the same order, with all that belongs to each."""

    @abstractmethod
    async def write(self, tx: Tx, chunk: Chunk) -> None:
        """Write them; none of them is there."""


class Jobs(Kind):
    """Jobs, live and finished, each with its ticket and its story; those up to the last id."""

    first = 0

    def __init__(self, last: int = MAX_ID) -> None:
        self._last = last

    def name(self, key: Key) -> str:
        return f"job {key}"

    async def next_keys(self, tx: Tx, after: Key) -> list[Key]:
        keys: list[Key] = []
        room = CHUNK_BYTES
        for job in await tx.fetch_as(
            JobSize, "next_jobs", after=after, last=self._last, most=CHUNK_ROWS
        ):
            room -= job.bytes
            if keys and room < 0:
                break
            keys.append(job.id)
        return keys

    async def read(self, tx: Tx, keys: list[Key]) -> Chunk:
        found: dict[Key, tuple[list[Row], ...]] = {
            key: tuple([] for _ in JOB_TABLES) for key in keys
        }
        ids = to_json(keys)
        for n, table in enumerate(JOB_TABLES):
            for row in await tx.fetch(f"{table.name}_rows", ids=ids):
                id, *_ = row
                found[id][n].append(table.read(tx, row))
        return {key: rows for key, rows in found.items() if rows[_LIVE] or rows[_FINISHED]}

    async def write(self, tx: Tx, chunk: Chunk) -> None:
        for n, table in enumerate(JOB_TABLES):
            await table.write(tx, (row for rows in chunk.values() for row in rows[n]))


class Workflows(Kind):
    """Workflows, each with the edges to its end. Their nodes come with the jobs."""

    first = 0

    def name(self, key: Key) -> str:
        return f"workflow {key}"

    async def next_keys(self, tx: Tx, after: Key) -> list[Key]:
        return await tx.fetch_column("next_workflows", after=after, most=CHUNK_WORKFLOWS)

    async def read(self, tx: Tx, keys: list[Key]) -> Chunk:
        rows = await tx.fetch("workflow_rows", ids=to_json(keys))
        found: dict[int, Row] = {id: WORKFLOWS.read(tx, (id, *rest)) for id, *rest in rows}
        ends: dict[int, list[Row]] = {id: [] for id in found}
        for child, *rest in await tx.fetch("parent_rows", ids=to_json([-id for id in found])):
            ends[-child].append(_ENDS.read(tx, (child, *rest)))
        return {id: (found[id], ends[id]) for id in sorted(found)}

    async def write(self, tx: Tx, chunk: Chunk) -> None:
        await WORKFLOWS.write(tx, (row for row, _ in chunk.values()))
        await _ENDS.write(tx, (edge for _, ends in chunk.values() for edge in ends))


class Ends(Kind):
    """The ends of the feed, by their places. Those without a place get one first: see run.py."""

    first = 0

    def name(self, key: Key) -> str:
        return f"the end at place {key} of the feed"

    async def next_keys(self, tx: Tx, after: Key) -> list[Key]:
        return await tx.fetch_column("next_feed", after=after, most=CHUNK_ROWS)

    async def read(self, tx: Tx, keys: list[Key]) -> Chunk:
        rows = await tx.fetch("feed_rows", ids=to_json(keys))
        found: dict[Key, Row] = {place: FEED.read(tx, (place, *rest)) for place, *rest in rows}
        return {key: found[key] for key in keys if key in found}

    async def write(self, tx: Tx, chunk: Chunk) -> None:
        await FEED.write(tx, chunk.values())


class _Listed(Kind):
    """The rows of one table. Its first columns are their key. Times and numbers in it are texts."""

    def __init__(self, what: str, table: Table, key_columns: int) -> None:
        self._what = what
        self._table = table
        self._names = table.columns[:key_columns]
        self.first = tuple(
            _LONG_AGO if name in _TIMES else "0" if name in _NUMBERS else "" for name in self._names
        )

    def name(self, key: Key) -> str:
        assert isinstance(key, tuple)
        *_, name = key
        return f"{self._what} {name!r}"

    async def next_keys(self, tx: Tx, after: Key) -> list[Key]:
        named = self._named(tx, after)
        rows = await tx.fetch(f"next_{self._table.name}", most=CHUNK_ROWS, **named)
        return [self._key(tx, row) for row in rows]

    async def read(self, tx: Tx, keys: list[Key]) -> Chunk:
        rows = to_json([self._named(tx, key) for key in keys])
        found = {
            self._key(tx, row): self._table.read(tx, row)
            for row in await tx.fetch(f"{self._table.name}_rows", rows=rows)
        }
        return {key: found[key] for key in keys if key in found}

    async def write(self, tx: Tx, chunk: Chunk) -> None:
        await self._table.write(tx, chunk.values())

    def _key(self, tx: Tx, row: Row) -> tuple[str, ...]:
        return tuple(
            tx.when(value).isoformat() if name in _TIMES else str(value)
            for name, value in zip(self._names, row, strict=False)
        )

    def _named(self, tx: Tx, key: Key) -> dict[str, object]:
        assert isinstance(key, tuple)
        return {
            name: tx.time(datetime.fromisoformat(text)) if name in _TIMES else text
            for name, text in zip(self._names, key, strict=True)
        }


def kinds(last_id: int = MAX_ID) -> tuple[Kind, ...]:
    """Everything, in an order in which pauses and keys hold whenever a job is there.

    Schedules come last: what has none cannot fire.
    """
    return (
        _Listed("paused queue", QUEUES, 1),
        _Listed("gate", GATES, 1),
        _Listed("unique key", UNIQUE_KEYS, 3),
        Workflows(),
        Jobs(last_id),
        _Listed("feed", FEED_END, 1),
        Ends(),
        _Listed("reader", FEED_READERS, 2),
        _Listed("failure hook", FAILURE_HOOKS, 2),
        _Listed("tick", TICKS, 3),
        _Listed("statistic", STATISTICS, 6),
        _Listed("schedule", SCHEDULES, 2),
    )
