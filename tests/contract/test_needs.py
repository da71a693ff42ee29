"""claim by needs: each kind is claimed for by itself, in the order of the line, within bytes."""

from __future__ import annotations

import random
from datetime import datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import InvalidInput
from tenure.rules.claim import ALL_NEEDS, MAX_CLAIM_KB, NEEDS, UNKNOWN, Ask, Claimed, Demand
from tenure.rules.codec import encode
from tenure.rules.gates import Limits
from tenure.rules.job import Json, NewJob
from tenure.rules.lifecycle import release, retry, snooze, succeed
from tenure.rules.ticks import ScheduleTiming
from tenure.store import NewSchedule, Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, expire, ids_of, settle, take

ASYNC, THREAD, PROCESS = NEEDS["async"], NEEDS["thread"], NEEDS["process"]


@pytest.fixture(autouse=True)
def gate_g(request: pytest.FixtureRequest) -> None:
    """A gate without limits."""
    if "store" in request.fixturenames:
        store, clock = request.getfixturevalue("store"), request.getfixturevalue("clock")
        store.declare_gates({"g": Limits()}, now=clock.now)


def claim(
    store: Store, now: datetime, ask: Ask | int, *, max_kb: int = MAX_CLAIM_KB
) -> list[Claimed]:
    """The jobs of one claim, in the order of the line."""
    leases = store.claim("w1", {"default": ask}, max_kb=max_kb, now=now)
    return sorted((job for lease in leases for job in lease.jobs), key=lambda job: job.id)


def only(needs: int, most: int = 100) -> Ask:
    return Ask(most, {needs: most})


@pytest.mark.parametrize("gate", [None, "g"])
def test_a_job_of_another_kind_holds_up_nothing(
    store: Store, clock: Clock, gate: str | None
) -> None:
    """However many of them are first in line; at a gate they are in a line of their own."""
    key = None if gate is None else "threads"
    threads = add_many(store, clock.now, 70, needs=THREAD, gate=gate, gate_key=key)
    key = None if gate is None else "loop"
    loop = add_many(store, clock.now, 3, needs=ASYNC, gate=gate, gate_key=key)
    assert ids_of(claim(store, clock.now, only(ASYNC))) == loop
    assert claim(store, clock.now, only(ASYNC)) == []
    assert ids_of(claim(store, clock.now, only(THREAD))) == threads


def test_the_first_job_of_a_kind_is_found_after_claims_of_another(
    store: Store, clock: Clock
) -> None:
    """A claimer looks at the kinds that it has not seen so far together."""
    for needs in (THREAD, ASYNC, 3, 0):
        added = add_many(store, clock.now, 2, needs=needs)
        assert store.peek(["default"]).ready
        assert ids_of(claim(store, clock.now, Ask.any(100))) == added
        assert not store.peek(["default"]).ready


def test_a_line_at_a_gate_keeps_its_order(store: Store, clock: Clock) -> None:
    store.declare_gates({"g": Limits(max_running=100)}, now=clock.now)
    ids = [
        add(store, clock.now, needs=needs, gate="g") for needs in (ASYNC, THREAD, ASYNC, PROCESS)
    ]
    assert ids_of(claim(store, clock.now, only(ASYNC))) == ids[:1]
    assert claim(store, clock.now, only(ASYNC)) == []
    both = Ask(9, {ASYNC: 9, THREAD: 9})
    assert ids_of(claim(store, clock.now, both)) == ids[1:3]
    assert ids_of(claim(store, clock.now, 9)) == ids[3:]


def test_lines_behind_many_that_are_not_wanted_are_found(store: Store, clock: Clock) -> None:
    """More than a page of lines."""
    for n in range(120):
        add(store, clock.now, needs=THREAD, gate="g", gate_key=f"k{n}")
    last = add(store, clock.now, needs=ASYNC, gate="g", gate_key="last")
    taken: list[int] = []
    for _ in range(9):
        taken += ids_of(claim(store, clock.now, only(ASYNC, 5)))
    assert taken == [last]
    assert len(claim(store, clock.now, Ask(200, {THREAD: 200}))) > 0


def test_kinds_share_the_limit_of_their_queue_in_the_order_of_the_line(
    store: Store, clock: Clock
) -> None:
    ids = [add(store, clock.now, needs=needs) for needs in (THREAD, ASYNC, ASYNC, THREAD, ASYNC)]
    ask = Ask(3, {ASYNC: 3, THREAD: 1})
    assert ids_of(claim(store, clock.now, ask)) == ids[:3]
    assert ids_of(claim(store, clock.now, ask)) == ids[3:]


def test_priority_counts_before_position_in_all_kinds(store: Store, clock: Clock) -> None:
    late = add(store, clock.now, needs=ASYNC, priority=5)
    first = add(store, clock.now, needs=THREAD, priority=-5)
    second = add(store, clock.now, needs=UNKNOWN)
    assert ids_of(take(store, clock.now, 1)) == [first]
    assert ids_of(take(store, clock.now, 1)) == [second]
    assert ids_of(take(store, clock.now, 1)) == [late]


def test_jobs_of_an_unknown_kind_have_a_number_of_their_own(store: Store, clock: Clock) -> None:
    """More of them may be taken than of any kind, but no more than of all jobs together."""
    line = (UNKNOWN, THREAD, UNKNOWN, ASYNC, THREAD, UNKNOWN, ASYNC, UNKNOWN, UNKNOWN)
    for needs in line:
        add(store, clock.now, needs=needs)
    taken = claim(store, clock.now, Ask(6, {ASYNC: 5, THREAD: 1, UNKNOWN: 4}))
    kinds = [job.needs for job in taken]
    assert kinds == [UNKNOWN, THREAD, UNKNOWN, ASYNC, UNKNOWN, ASYNC]
    taken = claim(store, clock.now, Ask(9, {ASYNC: 1, THREAD: 1, UNKNOWN: 1}))
    assert [job.needs for job in taken] == [THREAD, UNKNOWN]


def test_one_suspect_in_all_kinds(store: Store, clock: Clock) -> None:
    for needs in (ASYNC, THREAD, PROCESS):
        add_many(store, clock.now, 2, needs=needs)
    take(store, clock.now, 6)
    expire(store, clock)
    store.sweep(now=clock.now)
    both = Ask(9, {ASYNC: 9, THREAD: 9})
    taken = claim(store, clock.now, both)
    assert [job.needs for job in taken] == [ASYNC]
    assert taken[0].crashes == 1
    assert [job.needs for job in claim(store, clock.now, only(PROCESS))] == [PROCESS]


def test_a_paused_queue_gives_no_kind(store: Store, clock: Clock) -> None:
    for needs in ALL_NEEDS:
        add(store, clock.now, needs=needs)
    store.pause("default", now=clock.now)
    assert claim(store, clock.now, 9) == []
    store.resume("default", now=clock.now)
    assert len(claim(store, clock.now, 9)) == 4


def test_every_new_ticket_says_what_its_job_needs(store: Store, plain: Plain, clock: Clock) -> None:
    """enqueue, promote, retry, snooze, release, sweep, move, unhold, replay, free, at gates."""
    for gate in (None, "g"):
        parent = add(store, clock.now, needs=ASYNC, gate=gate)
        child = add(store, clock.now, needs=PROCESS, parents=(parent,), gate=gate)
        due = add(store, clock.now, needs=THREAD, delay_seconds=5.0, gate=gate)
        assert tickets(plain) == {parent: ASYNC}
        [running] = claim(store, clock.now, only(ASYNC))
        for settlement in (release, lambda job: snooze(job, 0.0), lambda job: retry(job, ERROR, 0)):
            settle(store, clock.now, settlement(running))
            assert tickets(plain) == {parent: ASYNC}
            [running] = claim(store, clock.now, only(ASYNC))
        expire(store, clock)
        store.sweep(now=clock.now)
        store.promote(now=clock.now)
        assert tickets(plain) == {parent: ASYNC, due: THREAD}
        store.move(due, priority=3, now=clock.now)
        store.hold(parent, now=clock.now)
        assert tickets(plain) == {due: THREAD}
        store.unhold(parent, now=clock.now)
        assert tickets(plain) == {parent: ASYNC, due: THREAD}
        [running] = claim(store, clock.now, only(ASYNC))
        settle(store, clock.now, succeed(running))
        assert tickets(plain) == {child: PROCESS, due: THREAD}
        store.cancel(child, now=clock.now)
        store.cancel(due, now=clock.now)
        store.replay(child, now=clock.now)
        assert tickets(plain) == {child: PROCESS}
        assert store.get(child, now=clock.now).needs == "process"
        store.cancel(child, now=clock.now)


def tickets(plain: Plain) -> dict[int, int]:
    """What each ticket says."""
    rows = plain.rows("select job_id, needs from tenure.ready")
    rows += plain.rows("select job_id, needs from tenure.gated")
    return dict(rows)


def test_a_worker_corrects_what_a_ticket_says(store: Store, plain: Plain, clock: Clock) -> None:
    id = add(store, clock.now, needs=ASYNC)
    [job] = claim(store, clock.now, 1)
    settle(store, clock.now, msgspec.structs.replace(release(job), needs=THREAD))
    assert tickets(plain) == {id: THREAD}
    assert store.get(id, now=clock.now).needs == "thread"


def test_the_job_of_a_tick_says_what_it_needs(store: Store, clock: Clock) -> None:
    job = NewJob(task="app.send", needs=THREAD)
    store.add_schedule(
        NewSchedule(name="tick", timing=ScheduleTiming(every_seconds=60.0), job=job), now=clock.now
    )
    id = store.trigger_schedule("tick", now=clock.now)
    assert store.get(id, now=clock.now).needs == "thread"


@pytest.mark.parametrize("needs", [-1, 4, "async"])
def test_needs_that_do_not_exist_are_refused(needs: object) -> None:
    with pytest.raises(InvalidInput, match="needs"):
        NewJob(task="app.send", needs=needs)  # type: ignore[arg-type]


# --- bytes ---------------------------------------------------------------------------------------

LARGE = encode({"text": "x" * 100_000})


def sized(kb: int) -> Json:
    """Arguments of this size."""
    return encode({"text": "x" * (1024 * kb)})


@pytest.mark.parametrize("gate", [None, "g"])
@pytest.mark.parametrize("needs", [UNKNOWN, ASYNC])
def test_a_claim_is_bounded_by_bytes(
    store: Store, clock: Clock, gate: str | None, needs: int
) -> None:
    ids = add_many(store, clock.now, 10, args=LARGE, needs=needs, gate=gate)
    taken = claim(store, clock.now, 10, max_kb=250)
    assert ids_of(taken) == ids[:2]
    assert {job.size_kb for job in taken} == {97}
    assert ids_of(claim(store, clock.now, Ask(10, {needs: 10}), max_kb=0)) == ids[2:3]
    assert ids_of(claim(store, clock.now, 10, max_kb=10_000)) == ids[3:]


def test_small_jobs_do_not_overtake_a_large_one(store: Store, clock: Clock) -> None:
    """Otherwise a stream of small jobs would keep it waiting for ever."""
    small = add_many(store, clock.now, 2, needs=ASYNC)
    large = add_many(store, clock.now, 2, args=LARGE, needs=THREAD)
    add_many(store, clock.now, 2, needs=ASYNC)
    ask = Ask(20, {ASYNC: 10, THREAD: 10})
    assert ids_of(claim(store, clock.now, ask, max_kb=100)) == [*small, large[0]]


def test_a_job_keeps_its_size(store: Store, plain: Plain, clock: Clock) -> None:
    """Also with its metadata, in bulk, after a replay, and as a child."""
    ids = add_many(store, clock.now, 150, args=LARGE)
    ids += add_many(store, clock.now, 2, metadata=LARGE)
    child = add(store, clock.now, args=LARGE, parents=(ids[0],))
    assert {kb for (kb,) in plain.rows("select size_kb from tenure.ready")} == {97}
    for job in claim(store, clock.now, 1000, max_kb=10**6):
        settle(store, clock.now, succeed(job))
    store.replay(ids[0], now=clock.now)
    rows = plain.rows("select job_id, size_kb from tenure.ready")
    assert dict(rows) == {ids[0]: 97, child: 97}


def test_a_job_that_is_too_large_comes_alone(store: Store, clock: Clock) -> None:
    """Whether it comes before or after small jobs, of other queues or at gates."""
    for first, second in ((0, 200), (200, 0)):
        for gate in (None, "g"):
            for other in (None, "g"):
                ids = [
                    add(store, clock.now, args=sized(first), queue="a", gate=gate),
                    add(store, clock.now, args=sized(second), queue="b", gate=other),
                ]
                for _ in range(2):
                    leases = store.claim("w1", {"a": 1, "b": 1}, max_kb=10, now=clock.now)
                    [job] = [job for lease in leases for job in lease.jobs]
                    ids.remove(job.id)
                assert ids == []


def test_both_parts_of_a_claim_share_its_bytes(store: Store, clock: Clock) -> None:
    """One part takes jobs at gates, the other one all others."""
    for gates in ((None, "g"), ("g", None)):
        small, large = (
            add(store, clock.now, args=sized(kb), gate=gate)
            for kb, gate in zip((90, 900), gates, strict=True)
        )
        assert ids_of(claim(store, clock.now, 5, max_kb=100)) == [small]
        assert ids_of(claim(store, clock.now, 5, max_kb=100)) == [large]


def test_numbers_that_no_claim_can_want_are_refused(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 2, needs=ASYNC)
    for wrong in (Ask(0, {ASYNC: 1}), Ask(5, {ASYNC: -1}), Ask(5, {ASYNC: "1"})):  # type: ignore[dict-item]
        with pytest.raises(InvalidInput, match="the number of jobs wanted from default"):
            claim(store, clock.now, wrong)
    assert claim(store, clock.now, Ask(5, {ASYNC: 0})) == []


@pytest.mark.parametrize("text", ["x" * 5000, "\u00e9\u20ac" * 3000, "x" * 34_000_000])
def test_the_size_of_a_job_is_the_same_in_python_and_in_sql(
    store: Store, plain: Plain, clock: Clock, text: str
) -> None:
    """A text that is not ASCII has more bytes than characters; the column has an end."""
    args = Json(msgspec.json.encode({"text": text}))
    id = add(store, clock.now, args=args, metadata=encode({"text": text[:9000]}))
    size = "select size_kb from tenure.job"
    [(kb,)] = plain.rows(size)
    [claimed] = claim(store, clock.now, 1)
    assert claimed.size_kb == kb > 0
    settle(store, clock.now, succeed(claimed))
    store.replay(id, now=clock.now)
    assert plain.rows(size) == [(kb,)]
    store.cancel(id, now=clock.now)
    store.replay_many([id], now=clock.now)
    assert plain.rows(size) == [(kb,)]


# --- the rule ------------------------------------------------------------------------------------

jobs_in_line = st.lists(
    st.tuples(st.sampled_from(ALL_NEEDS), st.sampled_from([0, 0, 0, 1, 40])), max_size=25
)


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    of = draw(st.dictionaries(st.sampled_from(ALL_NEEDS), st.integers(1, 8), min_size=1))
    return Ask(draw(st.integers(1, 12)), of)


@settings(max_examples=60)
@given(jobs_in_line, asks(), st.integers(0, 100))
def test_no_claim_takes_more_than_it_wants(
    line: list[tuple[int, int]], ask: Ask, max_kb: int
) -> None:
    """The rule itself: what fits is taken from the front of each lane, and nothing more."""

    class Ticket:
        def __init__(self, needs: int, size_kb: int) -> None:
            self.needs, self.size_kb = needs, size_kb

    tickets = [Ticket(*each) for each in line]
    demand = Demand({"q": ask}, max_kb)
    taken = demand.first_fitting("q", tickets)
    assert len(taken) <= ask.most
    if len(taken) > 1:
        assert sum(each.size_kb for each in taken[1:]) <= max(max_kb, 0)
    counts = {needs: sum(each.needs == needs for each in taken) for needs in ALL_NEEDS}
    for needs in ALL_NEEDS:
        assert counts[needs] <= ask.of.get(needs, 0)
    for needs in ALL_NEEDS:  # no job overtakes another one with the same needs
        own = [each for each in tickets if each.needs == needs]
        assert [each for each in taken if each.needs == needs] == own[: counts[needs]]


@pytest.mark.parametrize("seed", range(4))
def test_a_claim_takes_what_the_rule_says(store: Store, clock: Clock, seed: int) -> None:
    """Random lines in two queues, with jobs of all kinds and sizes."""
    rng = random.Random(seed)
    for case in range(25):
        queues = [f"q{case}a", f"q{case}b"][: rng.randint(1, 2)]
        jobs = [
            NewJob(task="app.send", queue=rng.choice(queues), needs=rng.choice(ALL_NEEDS),
                   priority=rng.choice([0, 0, 1]), args=sized(rng.choice([0, 0, 1, 40])))
            for _ in range(rng.randint(1, 16))
        ]  # fmt: skip
        asked = {queue: random_ask(rng) for queue in queues}
        max_kb = rng.randint(0, 100)
        ids = [added.id for added in store.enqueue(jobs, now=clock.now)]
        demand = Demand(asked, max_kb)
        wanted: list[NewJob] = []
        for queue in queues:
            line = sorted((job for job in jobs if job.queue == queue), key=lambda job: job.priority)
            wanted += demand.first_fitting(queue, line)
        leases = store.claim("w1", asked, max_kb=max_kb, now=clock.now)
        got = {job.id for lease in leases for job in lease.jobs}
        chosen = set(map(id, wanted))
        assert got == {key for key, job in zip(ids, jobs, strict=True) if id(job) in chosen}


def random_ask(rng: random.Random) -> Ask:
    of = {needs: rng.randint(1, 6) for needs in rng.sample(ALL_NEEDS, rng.randint(1, 4))}
    return Ask(rng.randint(1, 10), of)
