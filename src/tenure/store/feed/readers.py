"""Readers follow the feed of finished jobs, each with its own position.

Every end writes a row in the transaction that makes it true, if there is a reader: see `succeed`
and `finish`. Rows get their places, and with them their order, once they are committed: on SQLite
at once, because there is one writer; on PostgreSQL by the next reader that looks, one at a time. So
a transaction that commits late gets a late place, and no reader can have passed it. Ends of the
same job are in order: the second begins when the first is committed.

An end is removed when all readers have passed it. A reader that does not read for a week, or whose
next end is a week old, is lost: the feed no longer waits for it, and tells it so when it is back.
(`kept_seconds` is another length of time. A lost reader that is kept for less than a day is
removed.)
"""

from datetime import datetime

from tenure.errors import FeedMissed, ReaderNotFound, StoreBusy
from tenure.rules.ends import Ended, FeedPage, FeedReader
from tenure.rules.limits import MAX_ID, check_int, check_name, check_seconds
from tenure.store.feed.records import EndRow, ReaderRow
from tenure.store.session import Mode, Scope, Tx, transaction

KEPT_SECONDS = 7 * 86_400.0
"""How long the feed waits for a reader."""
SEEN_SECONDS = 60.0
"""A reader that only looks says this seldom that it is still there."""
MAX_ENDS = 1000
_BATCH = 5000
_WAIT_SECONDS = 5.0


async def add_reader(
    scope: Scope, name: str, *, kept_seconds: float = KEPT_SECONDS, now: datetime | None = None
) -> bool:
    """Add a reader of the feed: it gets every job that ends from now on.

    Returns False, and changes nothing, if there is a reader of this name. A reader of a tenant gets
    the jobs of that tenant and global jobs. If it does not read for `kept_seconds`, it is lost.
    On PostgreSQL it waits for transactions that may not have seen it. `StoreBusy`, after 5 s: the
    reader is added, but ends of a transaction that is still open may be missing.
    """
    check_name("reader", name)
    check_seconds("kept_seconds", kept_seconds, least=SEEN_SECONDS)

    async def write(tx: Tx) -> bool:
        tx.at(now)
        await tx.fetch("open_feed")
        await _place_all(tx)
        added = await tx.fetch(
            "add_reader", tenant=tx.tenant or "", name=name, kept_seconds=kept_seconds
        )
        return bool(added) or tx.repeat

    async def in_flight(tx: Tx) -> set[str]:
        return set(await tx.fetch_column("ends_in_flight"))

    if not await scope.transact(write):
        return False
    older = await scope.transact(in_flight, Mode.READ)  # they may not have seen the reader
    waited = 0.0
    while older:
        if waited > _WAIT_SECONDS:
            raise StoreBusy(
                f"reader {name} is added, but a transaction from before that ends jobs is still "
                "open: their ends may be missing"
            )
        await scope.session.rest(0.005)
        waited += 0.005
        older &= await scope.transact(in_flight, Mode.READ)
    return True


async def read_feed(
    scope: Scope, name: str, *, limit: int = 100, now: datetime | None = None
) -> FeedPage:
    """The next ends for this reader, in order, and the position behind them.

    It does not move the reader: to do so, pass the position to `move_reader` when the ends are
    dealt with. Until then the same ends come again. Raises `FeedMissed` if the reader was away for
    so long that ends are gone, and `ReaderNotFound` if there is none of this name.
    """
    check_name("reader", name)
    check_int("limit", limit, 1, MAX_ENDS)

    async def look(tx: Tx) -> tuple[ReaderRow, FeedPage]:
        tx.at(now)
        row = await _reader(tx, name)
        rows = await tx.fetch_as(EndRow, "read_feed", after=row.position, most=limit)
        position = rows[-1].place if rows else row.position
        return row, FeedPage(tuple(_visible(tx, rows)), position, row.position)

    async def place(tx: Tx) -> None:
        tx.at(now)
        await tx.fetch("lock_feed")
        await tx.fetch("place_ends", most=_BATCH)
        await tx.fetch("see_reader", tenant=tx.tenant or "", name=name)

    row, page = await scope.transact(look, Mode.READ)
    room = page.position < page.since + limit
    if (row.unplaced and room) or row.unseen_seconds > SEEN_SECONDS:
        await scope.transact(place)
        _, page = await scope.transact(look, Mode.READ)
    return page


def _visible(tx: Tx, rows: list[EndRow]) -> list[Ended]:
    return [row.ended(tx) for row in rows if tx.tenant is None or row.tenant in ("", tx.tenant)]


async def _reader(tx: Tx, name: str) -> ReaderRow:
    """The reader. Raises if there is none, or if it is lost."""
    tenant = tx.tenant or ""
    for row in await tx.fetch_as(ReaderRow, "read_readers", tenant=tenant, name=name):
        if row.lost_at is not None:
            raise FeedMissed(
                f"reader {name} was last seen at {tx.when(row.seen_at).isoformat()}, and the feed "
                "does not wait that long: look up the jobs that have finished since, then "
                "call remove_reader and add_reader to follow the feed from now on"
            )
        return row
    raise ReaderNotFound(f"the feed has no reader {name!r}; add it with add_reader")


@transaction(Mode.WRITE)
async def move_reader(tx: Tx, name: str, position: int, *, now: datetime | None = None) -> None:
    """A reader is done with all ends up to this position. It never moves back.

    Ends that all readers have passed are removed.
    """
    check_name("reader", name)
    check_int("position", position, 0, MAX_ID)
    tx.at(now)
    await tx.fetch("lock_feed")
    await _reader(tx, name)
    await tx.fetch("move_reader", tenant=tx.tenant or "", name=name, position=position)
    await tx.fetch("trim_feed", most=_BATCH)


@transaction(Mode.WRITE)
async def remove_reader(tx: Tx, name: str, *, now: datetime | None = None) -> bool:
    """Remove a reader. Returns whether there was one. Without readers, ends are not written."""
    check_name("reader", name)
    tx.at(now)
    await tx.fetch("lock_feed")
    removed = await tx.fetch("remove_reader", tenant=tx.tenant or "", name=name)
    await tx.fetch("trim_feed", most=_BATCH)
    return bool(removed) or tx.repeat


@transaction(Mode.READ)
async def readers(tx: Tx, *, now: datetime | None = None) -> list[FeedReader]:
    """All readers of the feed, or those of this tenant."""
    tx.at(now)
    rows = await tx.fetch_as(ReaderRow, "read_readers", tenant=tx.tenant, name=None)
    return [row.reader(tx) for row in rows]


@transaction(Mode.WRITE)
async def place_ends(tx: Tx) -> None:
    """copy: give a place to every end that has none yet."""
    await _place_all(tx)


async def prune_feed(scope: Scope, now: datetime | None = None) -> None:
    """prune: give up readers that were away for too long, and remove ends that no reader wants."""

    async def give_up(tx: Tx) -> None:
        tx.at(now)
        await _place_all(tx)
        await tx.fetch("give_up_readers")

    async def trim(tx: Tx) -> int:
        tx.at(now)
        await tx.fetch("lock_feed")
        return len(await tx.fetch("trim_feed", most=_BATCH))

    await scope.transact(give_up)
    while await scope.transact(trim):
        pass


async def _place_all(tx: Tx) -> None:
    """Give a place to every end that is committed. Locks the feed."""
    await tx.fetch("lock_feed")
    while len(await tx.fetch("place_ends", most=_BATCH)) == _BATCH:
        pass
