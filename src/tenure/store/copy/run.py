"""copy: all jobs of one store into another one, while nothing runs on either.

Jobs are copied by id in chunks, each chunk in one transaction of the target. If a copy was
interrupted, run it again: the rows that the target already has must be the same as in the source,
and nothing is ever overwritten. At the end both stores are read once more, each in one snapshot,
and compared row by row: it is an error if another process has written into one of them meanwhile.

Ids, tokens, times and positions stay the same, and so does the order of every queue. The target
draws higher ids and positions from then on. tables.py lists what is copied.
"""

from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from tenure.errors import CopyConflict, InvalidInput, SchemaTooNew, StillInUse, ValueRefused
from tenure.rules.job import LIVE_STATES, State
from tenure.store.api import Store
from tenure.store.copy.tables import (
    Chunk,
    Counters,
    Jobs,
    Key,
    Kind,
    RunningJobs,
    TableCount,
    kinds,
)
from tenure.store.feed.readers import place_ends
from tenure.store.migrate import VERSION
from tenure.store.session import Mode, R, Row, Scope, Tx, for_all_tenants, transaction

ALIVE_SECONDS = 30.0
HISTORY_DAYS = 3
MAX_SWEEPS = 1000

_NEW_TARGET = (
    "copy into a new database, or into one that holds nothing but what an interrupted copy of this "
    "source has left there"
)
_WRITTEN = (
    "another program has written meanwhile: stop all workers and clients of both databases, and "
    "copy again"
)


class Copied(msgspec.Struct, frozen=True):
    """How many jobs the target has after a copy: as many as the source."""

    live: int
    finished: int


def count(source: Store) -> int:
    """How many jobs there are to copy, live and finished."""
    return sum(_jobs(source.run(_counted)))


def copy(
    source: Store,
    target: Store,
    progress: Callable[[int], object],
    *,
    now: datetime | None = None,
) -> Copied:
    """Copy everything, and answer when source and target have been seen to hold the same.

    `progress` is called after each chunk with the number of its jobs. Raises `StillInUse` when a
    worker is alive, at the end also when it began meanwhile on the source, or a job is running;
    jobs of dead workers are taken back first. Raises `CopyConflict` when the target holds anything
    that the source does not, or when the two differ in the end. To run it again is always safe.
    """
    _refuse_same(source, target)
    sides = {"source": source, "target": target}
    for name, store in sides.items():
        _refuse_newer(name, store)
        _refuse_workers(name, store, now)
    _sweep(source, now)
    source.run(place_ends)
    for name, store in sides.items():
        _refuse_running(name, store, now)
    given_out = target.run(_counters).job_id
    source.run(_side_by_side, target, partial(_refuse_strangers, given_out=given_out))
    target.run(_make_days)
    counters = source.run(_counters)
    for kind in kinds(last_id=counters.job_id):  # a busy client cannot make it endless
        for chunk in _chunks(source, kind):
            _put(target, kind, chunk)
            if isinstance(kind, Jobs):
                target.run(_raise_counters, counters)
                progress(len(chunk))
    target.run(_raise_counters, counters)
    target.heal_gates(now=now)  # a turn for every line that was copied
    copied = source.run(_side_by_side, target, _verify)
    # One that began meanwhile and found nothing ready yet would run what the target runs, too.
    _refuse_workers("source", source, now)
    return copied


def _refuse_same(source: Store, target: Store) -> None:
    if source is target or source.run(_identity) == target.run(_identity):
        raise InvalidInput("source and target of a copy are the same database; name two")


@transaction(Mode.READ)
async def _identity(tx: Tx) -> Row:
    for_all_tenants("copy", tx.tenant)
    [row] = await tx.fetch("identity")
    return row


def _refuse_newer(name: str, store: Store) -> None:
    """Newer tables may have columns that this code does not know, and so would leave behind."""
    version = store.about().schema_version
    if version > VERSION:
        raise SchemaTooNew(
            f"the schema of the {name} is at version {version}, and this code copies {VERSION}; "
            "upgrade the tenure package"
        )


def _refuse_workers(name: str, store: Store, now: datetime | None) -> None:
    """Who announced itself within the length of its leases may be alive: heartbeats are shorter."""
    here = store.about(now=now).now
    for worker in store.workers(alive_seconds=ALIVE_SECONDS, now=now):
        lease_seconds = worker.settings.get("lease_seconds")
        limit = max(ALIVE_SECONDS, lease_seconds if isinstance(lease_seconds, float | int) else 0.0)
        if worker.alive or here - worker.seen_at < timedelta(seconds=limit):
            raise StillInUse(
                f"worker {worker.name} (process {worker.pid} on {worker.host}) works on the "
                f"{name}; stop it. One that was killed counts for {limit:g} s more"
            )


def _sweep(store: Store, now: datetime | None) -> None:
    """Take back the jobs of dead workers, as a live one would."""
    for _ in range(MAX_SWEEPS):
        if not store.sweep(most=1000, now=now).more:
            break


def _refuse_running(name: str, store: Store, now: datetime | None) -> None:
    running = store.run(_running)
    if running.jobs:
        first = running.first_id
        job = store.get(first, now=now)
        raise StillInUse(
            f"{running.jobs} jobs of the {name} are running; job {first} is on worker {job.worker} "
            f"until {job.expires_at}. Stop the workers; what a dead one held is free by then"
        )


@transaction(Mode.READ)
async def _running(tx: Tx) -> RunningJobs:
    [running] = await tx.fetch_as(RunningJobs, "first_running")
    return running


@transaction(Mode.READ)
async def _counted(tx: Tx) -> dict[str, int]:
    for_all_tenants("copy", tx.tenant)
    return await _count_all(tx)


async def _count_all(tx: Tx) -> dict[str, int]:
    return {each.kind: each.rows for each in await tx.fetch_as(TableCount, "count_all")}


def _jobs(counts: dict[str, int]) -> tuple[int, int]:
    """Live and finished ones."""
    live = sum(counts.get(state, 0) for state in LIVE_STATES)
    return live, sum(counts.get(state, 0) for state in State) - live


@transaction(Mode.WRITE)
async def _make_days(tx: Tx) -> None:
    """Partitions of history: a day whose jobs lie in the default one already gets none any more."""
    await tx.fetch("lock_copy")  # who is at it makes way soon, and jobs come next
    await tx.fetch("add_history_days", days=HISTORY_DAYS)


@transaction(Mode.READ)
async def _counters(tx: Tx) -> Counters:
    """The highest id and the highest position that were ever drawn."""
    [counters] = await tx.fetch_as(Counters, "counters")
    return counters


@transaction(Mode.WRITE)
async def _raise_counters(tx: Tx, counters: Counters) -> None:
    """From now on ids and positions are higher than those of the source.

    Not before there is a job: ids drawn from a target without jobs mean that a client uses it.
    """
    await tx.fetch("raise_counters", job_id=counters.job_id, position=counters.position)


def _chunks(source: Store, kind: Kind) -> Iterator[Chunk]:
    after = kind.first
    while chunk := source.run(_read_chunk, kind, after):
        yield chunk
        after = next(reversed(chunk))


@transaction(Mode.READ)
async def _read_chunk(tx: Tx, kind: Kind, after: Key) -> Chunk:
    return await kind.read(tx, await kind.next_keys(tx, after))


def _put(target: Store, kind: Kind, chunk: Chunk) -> None:
    """Write a chunk. One that the database refuses is halved until the bad row stands alone."""
    try:
        target.run(_write_missing, kind, chunk)
    except ValueRefused as error:
        if len(chunk) == 1:
            [key] = chunk
            raise ValueRefused(
                f"the target cannot take {kind.name(key)} ({error}); remove it from the source, or "
                f"{_NEW_TARGET}"
            ) from error
        half = len(chunk) // 2
        _put(target, kind, dict(islice(chunk.items(), half)))
        _put(target, kind, dict(islice(chunk.items(), half, None)))


@transaction(Mode.WRITE)
async def _write_missing(tx: Tx, kind: Kind, chunk: Chunk) -> None:
    """The look and the insert are one transaction, and one copy at a time is in here."""
    await tx.fetch("lock_copy")
    stored = await kind.read(tx, list(chunk))
    _refuse_changed(kind, chunk, stored, _NEW_TARGET)
    await kind.write(tx, {key: chunk[key] for key in chunk if key not in stored})


async def _side_by_side(
    scope: Scope, target: Store, look: Callable[[Tx, Tx], Coroutine[Any, Any, R]]
) -> R:
    """Look at one snapshot of the source and one of the target."""

    async def at_both(old: Tx) -> R:
        return target.run(_look_at, lambda new: look(old, new))

    return await scope.transact(at_both, Mode.READ)


async def _look_at(scope: Scope, look: Callable[[Tx], Coroutine[Any, Any, R]]) -> R:
    return await scope.transact(look, Mode.READ)


async def _refuse_strangers(old: Tx, new: Tx, *, given_out: int) -> None:
    """Whatever the target has, the source has the same.

    A client of PostgreSQL draws ids in stock. If it drew some from this target before, it could
    give them to new jobs later, and they may be ids of jobs that come now. `given_out`, the highest
    of them, was read before this snapshot: sequences are in none, and another copy raises them as
    soon as its first jobs are committed. So if it was that copy, its jobs are seen here.
    """
    for kind in kinds():
        await _require_same(kind, new, old, ("target", "source"), _NEW_TARGET)
    here, there = await _count_all(new), await _count_all(old)
    if given_out and any(_jobs(there)) and not any(_jobs(here)):
        raise CopyConflict(
            "the target has no jobs, but it was used before: it has given out ids up to "
            f"{given_out}, and a client may still have some; {_NEW_TARGET}"
        )


async def _verify(old: Tx, new: Tx) -> Copied:
    """The target has as much as the source, and whatever the source has: so they are the same."""
    counts, copied = await _count_all(old), await _count_all(new)
    for what in sorted(counts.keys() | copied.keys()):
        there, here = counts.get(what, 0), copied.get(what, 0)
        if there != here:
            raise CopyConflict(f"{what}: {there} in the source, {here} in the target; {_WRITTEN}")
    for kind in kinds():
        await _require_same(kind, old, new, ("source", "target"), _WRITTEN)
    live, finished = _jobs(copied)
    return Copied(live, finished)


async def _require_same(kind: Kind, here: Tx, there: Tx, names: tuple[str, str], fix: str) -> None:
    after, (here_name, there_name) = kind.first, names
    while keys := await kind.next_keys(here, after):
        ours, theirs = await kind.read(here, keys), await kind.read(there, keys)
        for key in ours:
            if key not in theirs:
                raise CopyConflict(
                    f"{kind.name(key)} is in the {here_name} and not in the {there_name}; {fix}"
                )
        _refuse_changed(kind, ours, theirs, fix)
        after = keys[-1]


def _refuse_changed(kind: Kind, here: Chunk, there: Chunk, fix: str) -> None:
    for key, content in there.items():
        if content != here[key]:
            raise CopyConflict(f"{kind.name(key)} differs between source and target; {fix}")
