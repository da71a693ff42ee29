"""Gates where many lines are empty or full: whoever can pass behind them does, and at once.

No claim looks at all of them: jobs without a gate would wait for that. The next one goes on.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tenure.rules.claim import Claimed
from tenure.rules.gates import Limits
from tenure.rules.lifecycle import succeed
from tenure.store import Store
from tenure.store.gates.passing import TURNS_PER_PAGE, Passed
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, ids_of, job, settle, take

MOST = 5
PAGE = TURNS_PER_PAGE + MOST
MANY = 2 * PAGE + 7


@pytest.fixture(autouse=True)
def gates(store: Store, clock: Clock) -> None:
    """The gates of these tests."""
    declared = {"each": Limits(max_running=1, keyed=True), "fair": Limits()}
    store.declare_gates(declared, now=clock.now)


def empty_lines(store: Store, clock: Clock) -> None:
    """Lines with a turn, in which nobody stands any more."""
    many = [job(gate="each", gate_key=str(n)) for n in range(MANY)]
    for added in store.enqueue(many, now=clock.now):
        store.cancel(added.id, now=clock.now)


def full_lines(store: Store, clock: Clock) -> list[Claimed]:
    """Lines in this queue that are full because of jobs of another one, which are answered."""
    for queue in ("other", "default"):
        many = [job(gate="each", gate_key=str(n), queue=queue) for n in range(MANY)]
        store.enqueue(many, now=clock.now)
    running = take(store, clock.now, MANY, queue="other")
    assert len(running) == MANY
    return running


def few_at_once(monkeypatch: pytest.MonkeyPatch, turns: int = 5) -> None:
    """A claim looks at no more than two pages of so many turns, or at the first one and a page."""
    monkeypatch.setattr(
        importlib.import_module("tenure.store.gates.passing"), "TURNS_PER_NEXT_PAGE", turns
    )


def count_pages(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each page of turns at which claims look, with the gates locked."""
    module = importlib.import_module("tenure.store.jobs.claim")
    pass_gates, pages = module.pass_gates, list[None]()

    async def counted(*args: Any, **kwargs: Any) -> Passed:
        pages.append(None)
        passed: Passed = await pass_gates(*args, **kwargs)
        return passed

    monkeypatch.setattr(module, "pass_gates", counted)
    return pages


def look(store: Store, clock: Clock, *, new_permits: int = MOST) -> tuple[list[int], bool]:
    """Claim from this queue: what there was, and whether there may be more."""
    claim = store.claim("w2", {"default": MOST}, new_permits=new_permits, now=clock.now)
    return [job.id for lease in claim for job in lease.jobs], claim.more == {"default"}


def follow(store: Store, clock: Clock) -> list[list[int]]:
    """Claim as long as there may be more, like a worker: what each claim got, to the first."""
    seen = [look(store, clock)]
    while seen[-1] == ([], True):
        assert len(seen) < 200, "there is no end to it"
        seen.append(look(store, clock))
    return [ids for ids, _ in seen]


@pytest.mark.parametrize("lines", [empty_lines, full_lines])
def test_who_can_pass_behind_many_who_cannot_does_so_at_once(
    store: Store, clock: Clock, lines: object
) -> None:
    assert callable(lines)
    lines(store, clock)
    id = add(store, clock.now, gate="each", gate_key="free")
    seen = follow(store, clock)
    assert seen[-1] == [id]
    assert len(seen) <= 2


def test_turns_of_empty_lines_are_used_up(store: Store, plain: Plain, clock: Clock) -> None:
    empty_lines(store, clock)
    assert follow(store, clock)[-1] == []
    assert plain.one("select count(*) from tenure.turn") == 0


def test_an_end_leaves_no_turn_where_nobody_waits(
    store: Store, plain: Plain, clock: Clock, store_url: str
) -> None:
    if not store_url.startswith("sqlite"):
        pytest.skip("who comes meanwhile may rely on that turn")
    many = [job(gate="each", gate_key=str(n)) for n in (1, 2, 2)]
    store.enqueue(many, now=clock.now)
    settle(store, clock.now, *map(succeed, take(store, clock.now)))
    assert plain.rows("select key from tenure.turn") == [("\x1f2",)]


def test_turns_of_full_lines_stay_in_order(store: Store, plain: Plain, clock: Clock) -> None:
    running = full_lines(store, clock)
    turns = plain.rows("select n, key from tenure.turn order by n")
    assert look(store, clock) == look(store, clock) == ([], False)
    assert plain.rows("select n, key from tenure.turn order by n") == turns
    settle(store, clock.now, *map(succeed, running))
    first = [store.get(id, now=clock.now).gate_key for id in look(store, clock)[0]]
    assert first == [f"\x1f{n}" for n in range(MOST)]


def test_a_claim_that_has_not_looked_at_all_says_so_and_the_next_one_goes_on(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_lines(store, clock)
    id = add(store, clock.now, gate="each", gate_key="free")
    few_at_once(monkeypatch)
    seen = follow(store, clock)
    assert seen[-1] == [id]
    assert len(seen) == 1 + (MANY + 1 - PAGE + 4) // 10


def test_a_claim_looks_at_two_pages_however_many_there_are(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_lines(store, clock)
    few_at_once(monkeypatch)
    pages = count_pages(monkeypatch)
    id = add(store, clock.now)  # behind all who wait at the gate
    assert look(store, clock) == ([id], True)
    assert len(pages) == 2
    assert look(store, clock) == ([], True)
    assert len(pages) == 4


def test_claims_come_to_an_end_where_nobody_can_pass(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: they do not begin again before a worker has rested."""
    full_lines(store, clock)
    for n in range(MANY):
        add(store, clock.now, gate="each", gate_key=str(n))
    few_at_once(monkeypatch, turns=1)
    pages = count_pages(monkeypatch)
    assert not any(follow(store, clock))
    assert len(pages) == 1 + 2 * MANY - PAGE + 1
    pages.clear()
    assert not any(follow(store, clock))
    assert len(pages) == 1 + MANY - PAGE + 1  # the others were in vain


def test_a_line_that_is_full_keeps_its_first_turn(store: Store, plain: Plain, clock: Clock) -> None:
    """Else every claim would meet them all."""
    full_lines(store, clock)
    turns = plain.rows("select n, key from tenure.turn where queue = 'default' order by n")
    for n in [*range(MANY), *range(MANY)]:
        add(store, clock.now, gate="each", gate_key=str(n))
    for _ in range(2):
        assert not any(follow(store, clock))
    assert plain.rows("select n, key from tenure.turn where queue = 'default' order by n") == turns


def test_a_later_turn_stays_where_the_first_one_is_gone(
    store: Store, plain: Plain, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another claim may have taken it, and somebody have come since."""
    full_lines(store, clock)
    few_at_once(monkeypatch)
    assert look(store, clock) == ([], True)
    [(first,)] = plain.rows("select min(n) from tenure.turn where queue = 'default'")
    plain.rows(f"delete from tenure.turn where queue = 'default' and n = {first}")
    for n in (0, 1):
        add(store, clock.now, gate="each", gate_key=str(n))
    assert not any(follow(store, clock))
    keys = plain.rows("select key from tenure.turn where queue = 'default' order by n")
    assert keys == [(f"\x1f{n}",) for n in (*range(1, MANY), 0)]


def test_who_comes_before_those_that_were_seen_is_found(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = full_lines(store, clock)
    few_at_once(monkeypatch)
    assert look(store, clock) == ([], True)
    settle(store, clock.now, succeed(running[0]))
    assert not any(follow(store, clock))  # of the others, first
    [id], more = look(store, clock)
    assert not more
    assert store.get(id, now=clock.now).gate_key == "\x1f0"


def test_another_gate_at_which_jobs_pass_keeps_nobody_waiting(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_lines(store, clock)
    add(store, clock.now, gate="each", gate_key="free")
    for _ in range(30):
        add(store, clock.now, gate="fair")
    few_at_once(monkeypatch)
    ids: list[int] = []
    claims = 0
    while len(ids) < 31:
        ids += look(store, clock)[0]
        claims += 1
    assert claims <= 20


def test_who_has_no_place_for_a_job_does_not_look_for_one(store: Store, clock: Clock) -> None:
    """It would ask again and again."""
    many = [job(gate="each", gate_key=str(n)) for n in range(MANY)]
    ids = [added.id for added in store.enqueue(many, now=clock.now)]
    assert look(store, clock, new_permits=0) == ([], False)
    assert look(store, clock)[0] == ids[:MOST]


def test_a_claim_that_met_only_void_tickets_at_a_gate_goes_on(
    store: Store, plain: Plain, clock: Clock
) -> None:
    first, second = (add(store, clock.now, gate="each", gate_key="k") for _ in range(2))
    plain.rows(f"update tenure.gated set token = 7 where job_id = {first}")
    assert ids_of(take(store, clock.now, 1)) == [second]
    assert plain.one("select count(*) from tenure.gated") == 0
    plain.rows(f"delete from tenure.job where id = {first}")
