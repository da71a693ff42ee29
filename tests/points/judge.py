"""Who carries on after a death, and whether all is well then.

Another worker comes by: it sweeps, promotes, fires and heals, claims what there is and runs it, at
times that lie ever later, so that nothing waits. Then everything that was recorded, and every row,
is checked: the invariants of the history, those of the rows, and what the deed itself promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tests.points.deed import SUCCESSOR, Deed, Hand
from tests.points.deeds_jobs import complete
from tests.support import invariants
from tests.support.audit import check as check_rows
from tests.support.books import Books, Expected
from tests.support.history import read_final, read_records
from tests.support.plain import Plain

ROUNDS = 8
LEASE_SECONDS = 31


def carry_on(deed: Deed, hand: Hand, plain: Plain) -> None:
    """Until nothing is left, or enough time has passed for everything.

    The safety net of gates is never needed: there is nothing to heal.
    """
    deed.again(hand)
    for _ in range(ROUNDS):
        hand.clock.advance(LEASE_SECONDS)
        while hand.store.sweep(now=hand.now).more:
            pass
        hand.store.promote(now=hand.now)
        hand.store.fire(now=hand.now)
        healed = hand.store.heal_gates(now=hand.now)
        assert not healed, f"the safety net of gates was needed for {healed} rows"
        hand.store.heal_workflows(now=hand.now)
        while _work(deed, hand):
            pass
        if not plain.one("select count(*) from tenure.job"):
            break


def _work(deed: Deed, hand: Hand) -> bool:
    held = hand.take(worker=SUCCESSOR)
    for one in held:
        deed.work(hand, one)
    if deed.has_effects:
        for one in held:
            complete(hand, one, SUCCESSOR)
    elif held:
        _settle(deed, hand, held)
    return bool(held)


def _settle(deed: Deed, hand: Hand, held: list[Claimed]) -> None:
    ends = [deed.endings.get(one.task, lifecycle.succeed)(one) for one in held]
    for one in held:
        hand.ended(one, SUCCESSOR)
    leases = sorted({one.lease_id for one in held})
    answers = hand.store.settle(SUCCESSOR, ends, done_leases=leases, now=hand.now)
    assert all(answer.landed for answer in answers), "a live worker was refused"


def verdict(deed: Deed, hand: Hand, plain: Plain, folder: Path, *, landed: bool) -> Iterator[str]:
    """Everything that is wrong in the end."""
    if not plain.is_postgres and plain.rows("pragma integrity_check") != [("ok",)]:
        yield "rows: the file is damaged"
    yield from row_faults(plain)
    yield from _history_faults(deed, hand.url, plain, folder)
    wanted = deed.ends(landed=landed)
    found = Counter(row[0] for row in plain.rows("select cast(state as text) from tenure.history"))
    if wanted is not None and found != wanted:
        yield f"jobs ended as {dict(found)}, not as {dict(wanted)}"
    try:
        deed.check(hand, landed=landed)
    except AssertionError as error:
        yield f"promise: {error}"


def row_faults(plain: Plain) -> Iterator[str]:
    """The invariants of rows."""
    try:
        check_rows(plain)
    except AssertionError as error:
        yield f"rows: {str(error).splitlines()[0]}"


def _history_faults(deed: Deed, url: str, plain: Plain, folder: Path) -> Iterator[str]:
    books = Books(read_records(folder), read_final(url))
    effects = None
    if deed.has_effects:
        effects = Counter(row[0] for row in plain.rows("select job from ledger"))
    for broken in invariants.violations(books, Expected(effects=effects)):
        if broken.name in deed.by_hand:
            continue
        if broken.name == "lost job" and deed.forgets and _has_ended(books, broken.job):
            continue
        yield f"history: {broken}"
    for event in books.final.events:
        if event.kind == "crashed" and event.worker == SUCCESSOR:
            yield f"history: job {event.id} was taken from a live worker"


def _has_ended(books: Books, id: int | None) -> bool:
    return any(
        write.id == id and write.op == "settle" and write.answer == "landed"
        for write in books.writes
    )
