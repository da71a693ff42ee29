"""Gates: how many run, how many start, in which order, whose turn it is."""

from __future__ import annotations

import importlib
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from tenure.errors import GateNotFound, StoreBusy, TenantMismatch
from tenure.rules.claim import Claimed
from tenure.rules.gates import Limits
from tenure.rules.job import State, Unique, Until
from tenure.rules.lifecycle import Settlement, fail, release, retry, skip, snooze, succeed
from tenure.rules.ticks import ScheduleTiming
from tenure.store import NewSchedule, Store, open_store
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, ids_of, job, settle, take, take_one

ONE = Limits(max_running=1)
ONE_EACH = Limits(max_running=1, keyed=True)


@pytest.fixture(autouse=True)
def gates(store: Store, clock: Clock) -> None:
    """The gates of these tests."""
    declared = {
        "one": ONE,
        "two": Limits(max_running=2),
        "each": ONE_EACH,
        "rate": Limits(rate=2, per_seconds=1.0, burst=2),
        "fair": Limits(),
    }
    assert store.declare_gates(declared, now=clock.now) == sorted(declared)


def finish(store: Store, now: datetime, *jobs: Claimed, worker: str = "w1") -> None:
    answers = settle(store, now, *(succeed(claimed, None, 0.1) for claimed in jobs), worker=worker)
    assert all(answer.landed for answer in answers)


def by_key(store: Store, now: datetime, jobs: list[Claimed]) -> Counter[str | None]:
    return Counter(store.get(claimed.id, now=now).gate_key for claimed in jobs)


def test_who_only_settles_leaves_nothing_at_gates(
    store: Store, plain: Plain, clock: Clock, store_url: str
) -> None:
    """As a worker's settler does on PostgreSQL: its session has never claimed or declared."""
    add_many(store, clock.now, 2, gate="two")
    first, second = take(store, clock.now)
    with open_store(store_url) as other:
        other.settle("w1", [succeed(first)], done_leases=[first.lease_id], now=clock.now)
        assert plain.one("select count(*) from tenure.gate_hold") == 1, "its other job is live"
        other.settle("w1", [succeed(second)], done_leases=[second.lease_id], now=clock.now)
    with open_store(store_url) as other:
        other.settle("w1", [], done_leases=[first.lease_id, second.lease_id], now=clock.now)
    assert plain.one("select count(*) from tenure.gate_hold") == 0
    assert store.heal_gates(now=clock.now) == 0


def lacking(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """This part of a claim finds no connection."""

    async def busy(*_: object) -> None:
        raise StoreBusy("all connections are in use")

    monkeypatch.setattr(importlib.import_module("tenure.store.jobs.claim"), part, busy)


def test_a_claim_that_fails_behind_the_gates_answers_what_has_passed(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else these jobs would wait for the end of a lease that nobody knows of, and be charged."""
    add_many(store, clock.now, 2, gate="one")
    finish(store, clock.now, *take(store, clock.now))  # now it knows that somebody waits there
    plain_one = add(store, clock.now)
    with monkeypatch.context() as patch:
        lacking(patch, "_from_queues")
        [gated] = take(store, clock.now)
        with pytest.raises(StoreBusy):  # nothing was taken this time
            take(store, clock.now)
    assert store.get(gated.id, now=clock.now).gate == "one"
    assert ids_of(take(store, clock.now)) == [plain_one]


def test_a_claim_that_fails_at_the_gates_answers_who_stood_in_line(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (add(store, clock.now, gate=gate) for gate in (None, "one"))
    with monkeypatch.context() as patch:
        lacking(patch, "_at_gates")
        assert ids_of(take(store, clock.now)) == [first]
    assert ids_of(take(store, clock.now)) == [second]


# --- how many run ------------------------------------------------------------------------------


@rule("gate-counts-others", "gate-counts-live")
def test_no_more_run_than_the_limit_allows(store: Store, clock: Clock) -> None:
    """Seen failing with only the permits of the claiming worker counted: four ran where two may;
    and with finished jobs counted: the permit was lost until the lease went."""
    ids = add_many(store, clock.now, 5, gate="two")
    first = take(store, clock.now)
    assert ids_of(first) == ids[:2]
    assert take(store, clock.now, worker="w2") == []
    finish(store, clock.now, first[0])
    assert ids_of(take(store, clock.now, worker="w2")) == [ids[2]]
    assert take(store, clock.now) == []


def test_a_gate_is_one_for_all_queues(store: Store, clock: Clock) -> None:
    here = add(store, clock.now, gate="one", queue="a")
    there = add(store, clock.now, gate="one", queue="b")
    [claimed] = take(store, clock.now, queue="a")
    assert claimed.id == here
    assert take(store, clock.now, queue="b") == []
    finish(store, clock.now, claimed)
    assert ids_of(take(store, clock.now, queue="b")) == [there]


def test_one_key_may_wait_in_two_queues(store: Store, clock: Clock) -> None:
    """The end of a job writes a turn for its own queue; the other one has kept its own."""
    first = add(store, clock.now, gate="each", gate_key="k", queue="a")
    others = [add(store, clock.now, gate="each", gate_key="k", queue=queue) for queue in ("b", "a")]
    claimed = take_one(store, clock.now, queue="a")
    assert claimed.id == first
    assert take(store, clock.now, queue="b") == take(store, clock.now, queue="a") == []
    finish(store, clock.now, claimed)
    claimed = take_one(store, clock.now, queue="b")
    assert claimed.id == others[0]
    assert take(store, clock.now, queue="a") == []
    finish(store, clock.now, claimed)
    assert ids_of(take(store, clock.now, queue="a")) == others[1:]


def test_one_claim_from_two_queues_keeps_the_limit(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 3, gate="two", queue="a")
    add_many(store, clock.now, 3, gate="two", queue="b")
    leases = store.claim("w1", {"a": 10, "b": 10}, now=clock.now)
    assert sum(len(lease.jobs) for lease in leases) == 2


ENDS: dict[str, Any] = {
    "succeed": lambda claimed: succeed(claimed, None, 0.1),
    "fail": lambda claimed: fail(claimed, ERROR),
    "retry": lambda claimed: retry(claimed, ERROR, 60.0),
    "retry at once": lambda claimed: retry(claimed, ERROR, 0.0),
    "snooze": lambda claimed: snooze(claimed, 60.0),
    "release": release,
    "skip": skip,
}


@rule("gate-turn-at-end")
@pytest.mark.parametrize("how", ENDS)
def test_every_end_of_an_attempt_frees_its_permit(store: Store, clock: Clock, how: str) -> None:
    """Seen failing without the turn: the line was full when a claim looked at it last, and
    stood."""
    first, second = add_many(store, clock.now, 2, gate="each", gate_key="k")
    claimed = take_one(store, clock.now)
    assert claimed.id == first
    assert take(store, clock.now) == []
    end: Settlement = ENDS[how](claimed)
    assert settle(store, clock.now, end)[0].landed
    assert ids_of(take(store, clock.now)) == [second]


def test_a_stale_settlement_frees_nothing(store: Store, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2, gate="one")
    late = take_one(store, clock.now)
    clock.advance(60)
    store.sweep(now=clock.now)
    again = take_one(store, clock.now, worker="w2")
    assert again.id == second  # the first one stands at the end of the line now
    assert not settle(store, clock.now, succeed(late, None, 0.1))[0].landed
    assert take(store, clock.now, worker="w2") == []
    finish(store, clock.now, again, worker="w2")
    assert ids_of(take(store, clock.now, worker="w2")) == [first]


def test_a_dead_worker_gives_its_permits_back(store: Store, clock: Clock) -> None:
    """By lease: not before it has ended, and not later than the sweep."""
    ids = add_many(store, clock.now, 4, gate="two")
    take(store, clock.now)
    clock.advance(29)
    assert store.sweep(now=clock.now).requeued == 0
    assert take(store, clock.now, worker="w2") == []
    clock.advance(2)
    assert store.sweep(now=clock.now).requeued == 2
    assert ids_of(take(store, clock.now, worker="w2")) == ids[2:]
    assert take(store, clock.now, worker="w2") == []


def test_a_job_that_a_sweep_ends_gives_its_place_back(store: Store, clock: Clock) -> None:
    doomed, next_one = (add(store, clock.now, gate="one", max_attempts=1) for _ in range(2))
    assert take_one(store, clock.now).id == doomed
    clock.advance(60)
    assert store.sweep(now=clock.now).finished == 1
    assert ids_of(take(store, clock.now, worker="w2")) == [next_one]


def test_a_suspect_that_many_have_overtaken_comes_next(store: Store, clock: Clock) -> None:
    suspect = add(store, clock.now, gate="fair")
    take_one(store, clock.now)
    add_many(store, clock.now, 50, gate="fair")
    store.sweep(now=clock.advance(60))
    add_many(store, clock.now, 50, gate="fair")
    claimed = [take(store, clock.now, 64) for _ in range(3)]
    assert sum(map(len, claimed)) == 101
    assert suspect in [job.id for jobs in claimed for job in jobs]


def test_suspects_pass_one_at_a_time_and_alone(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 3, gate="fair")
    take(store, clock.now)
    clock.advance(60)
    store.sweep(now=clock.now)
    for expected in ids:
        [lease] = store.claim("w2", {"default": 10}, now=clock.now)
        assert [claimed.id for claimed in lease.jobs] == [expected]
        assert lease.jobs[0].crashes == 1


def test_a_claim_takes_one_suspect_from_gates_and_line_together(store: Store, clock: Clock) -> None:
    add(store, clock.now, gate="fair")
    add(store, clock.now)
    assert len(take(store, clock.now)) == 2
    clock.advance(60)
    store.sweep(now=clock.now)
    assert [len(take(store, clock.now, worker="w2")) for _ in range(3)] == [1, 1, 0]


def test_a_cancelled_job_frees_its_place_when_it_ends(store: Store, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2, gate="one")
    claimed = take_one(store, clock.now)
    assert store.cancel(first, now=clock.now) is State.RUNNING
    assert settle(store, clock.now, release(claimed))[0].landed
    assert store.get(first, now=clock.now).state is State.CANCELLED
    assert ids_of(take(store, clock.now)) == [second]


# --- order -------------------------------------------------------------------------------------


@rule("gate-order")
def test_a_key_with_one_at_a_time_keeps_its_order(store: Store, clock: Clock) -> None:
    """Seen failing with the last ticket taken first, in place of the head of the line."""
    ids = {key: [add(store, clock.now, gate="each", gate_key=key) for _ in range(3)]
           for key in ("a", "b", "c")}  # fmt: skip
    for n in range(3):
        claimed = take(store, clock.now)
        assert sorted(ids_of(claimed)) == sorted(line[n] for line in ids.values())
        assert take(store, clock.now) == []
        finish(store, clock.now, *claimed)
    assert take(store, clock.now) == []


def test_within_a_line_the_lower_priority_goes_first(store: Store, clock: Clock) -> None:
    late = add(store, clock.now, gate="one", priority=5)
    first = add(store, clock.now, gate="one", priority=-5)
    middle = add(store, clock.now, gate="one")
    seen = []
    while claimed := take(store, clock.now):
        seen += ids_of(claimed)
        finish(store, clock.now, *claimed)
    assert seen == [first, middle, late]


def test_of_lines_the_one_with_the_lower_priority_goes_first(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 3, gate="fair", gate_key="a", priority=5)
    urgent = add_many(store, clock.now, 2, gate="fair", gate_key="b", priority=-5)
    assert ids_of(take(store, clock.now, 2)) == urgent


def test_jobs_with_and_without_a_gate_come_in_the_order_of_their_positions(
    store: Store, clock: Clock
) -> None:
    """Whoever stands further ahead goes first, and the others get what is left."""
    a = add_many(store, clock.now, 4, gate="fair")
    b = add_many(store, clock.now, 4)
    c = add_many(store, clock.now, 4, gate="fair")
    take(store, clock.now, 1, queue="elsewhere")
    seen = []
    while claimed := take(store, clock.now, 4):
        seen.append(set(ids_of(claimed)))
    assert seen[-3:] == [set(a), set(b), set(c)] or seen == [set(b), set(a), set(c)]


def test_neither_jobs_with_nor_without_a_gate_starve(store: Store, clock: Clock) -> None:
    seen: Counter[bool] = Counter()
    for _ in range(20):
        add_many(store, clock.now, 4, gate="fair")
        add_many(store, clock.now, 4)
        for claimed in take(store, clock.now, 4):
            seen[store.get(claimed.id, now=clock.now).gate is None] += 1
    assert min(seen.values()) >= 36, seen


# --- whose turn it is --------------------------------------------------------------------------


@rule("gate-turns")
def test_a_long_line_does_not_delay_a_short_one(store: Store, clock: Clock) -> None:
    """Seen failing with a line that was served at the head of the turns again: the short lines got
    nothing."""
    add_many(store, clock.now, 300, gate="fair", gate_key="long")
    for key in ("b", "c"):
        add_many(store, clock.now, 10, gate="fair", gate_key=key)
    short: Counter[str | None] = Counter()
    for _ in range(5):
        claimed = take(store, clock.now, 9)
        assert len(claimed) == 9
        short += by_key(store, clock.now, claimed)
    assert short["\x1fb"] == short["\x1fc"] == 10
    assert short["\x1flong"] == 25


def test_the_line_with_the_first_turn_goes_first(store: Store, clock: Clock) -> None:
    """A line with an older turn of a higher priority number does not come before it."""
    add_many(store, clock.now, 1, gate="fair", gate_key="a")
    [first] = add_many(store, clock.now, 1, gate="fair", gate_key="b", priority=-1)
    [second] = add_many(store, clock.now, 1, gate="fair", gate_key="a", priority=-1)
    assert [job.id for job in take(store, clock.now, 1)] == [first]
    assert [job.id for job in take(store, clock.now, 1)] == [second]


def test_lines_take_turns_one_job_at_a_time(store: Store, clock: Clock) -> None:
    for key in ("a", "b", "c"):
        add_many(store, clock.now, 4, gate="one", gate_key=key)
    seen = []
    while claimed := take(store, clock.now, 1):
        seen += list(by_key(store, clock.now, claimed))
        finish(store, clock.now, *claimed)
    assert [len(set(seen[n : n + 3])) for n in range(0, 12, 3)] == [3, 3, 3, 3]


@rule("gate-tenant")
def test_tenants_do_not_share_keys_at_a_gate(store: Store, clock: Clock) -> None:
    """Seen failing with the tenant left out of the name of a line: one tenant kept the other
    waiting."""
    store.enqueue([job(gate="each", gate_key="k", tenant=t) for t in ("", "a", "b", "b")],
                  now=clock.now)  # fmt: skip
    assert len(take(store, clock.now)) == 3


def test_gates_concern_all_tenants(store: Store) -> None:
    mine = store.for_tenant("acme")
    for act in (mine.gates, mine.heal_gates):
        with pytest.raises(TenantMismatch):
            act()
    with pytest.raises(TenantMismatch):
        mine.set_gate("one", max_running=1)
    with pytest.raises(TenantMismatch):
        mine.declare_gates({"one": Limits(max_running=5)})


# --- how many start ----------------------------------------------------------------------------


@rule("gate-starts-used")
def test_a_rate_lets_so_many_start_and_no_more(store: Store, clock: Clock) -> None:
    """Seen failing with the bucket not written: each claim could start as many again."""
    ids = add_many(store, clock.now, 8, gate="rate")
    assert ids_of(take(store, clock.now)) == ids[:2]
    assert take(store, clock.now) == []
    clock.advance(0.49)
    assert take(store, clock.now) == []
    clock.advance(0.02)
    assert ids_of(take(store, clock.now)) == ids[2:3]
    clock.advance(100)
    assert ids_of(take(store, clock.now)) == ids[3:5]


def test_tokens_come_back_by_time_and_not_by_the_ends_of_jobs(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 8, gate="rate")
    finish(store, clock.now, *take(store, clock.now))
    assert take(store, clock.now) == []


def test_a_bulk_replay_is_paced_by_the_gate_and_holds_up_nobody(store: Store, clock: Clock) -> None:
    failed = add_many(store, clock.now, 30, gate="rate", max_attempts=1)
    store.set_gate("rate", rate=None, now=clock.now)
    settle(store, clock.now, *(fail(claimed, ERROR) for claimed in take(store, clock.now)))
    store.reset_gate("rate", now=clock.now)
    assert all(store.replay(id, now=clock.now) for id in failed)
    other = add(store, clock.now)
    first = take(store, clock.now)
    assert ids_of(first) == [*failed[:2], other]
    assert take(store, clock.now) == []
    assert ids_of(take(store, clock.advance(1.0))) == failed[2:4]


def test_new_jobs_do_not_get_past_a_rate(store: Store, plain: Plain, clock: Clock) -> None:
    """Nor do they leave turns behind, except one that waits for its next start."""
    for _ in range(5):
        add(store, clock.now, gate="rate")
        take(store, clock.now)
    assert plain.one("select count(*) from tenure.turn") == 1
    assert store.gates(name="rate", now=clock.now)[0].running == 2


def test_with_a_key_each_line_has_a_rate_of_its_own(store: Store, clock: Clock) -> None:
    store.declare_gates({"api": Limits(rate=1, keyed=True)}, now=clock.now)
    for key in ("a", "b"):
        add_many(store, clock.now, 3, gate="api", gate_key=key)
    assert set(by_key(store, clock.now, take(store, clock.now)).values()) == {1}
    clock.advance(1.01)
    assert set(by_key(store, clock.now, take(store, clock.now)).values()) == {1}


@rule("gate-clock-back")
def test_a_clock_that_went_back_adds_no_starts(store: Store, clock: Clock) -> None:
    """Seen failing with the difference of times taken as it was, without its sign."""
    add_many(store, clock.now, 5, gate="rate")
    assert len(take(store, clock.now)) == 2
    add(store, clock.advance(-3600), gate="rate")  # which gives its line a turn
    assert take(store, clock.now) == []


# --- what is done to jobs that wait ------------------------------------------------------------


def test_a_job_at_a_gate_is_queued_and_counted(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, gate="one")
    shown = store.get(id, now=clock.now)
    assert (shown.state, shown.gate, shown.gate_key) == (State.QUEUED, "one", "")
    assert [count.state for count in store.count_live(now=clock.now)] == [State.QUEUED]
    assert [j.id for j in store.list_jobs(states=[State.QUEUED], now=clock.now).jobs] == [id]
    take(store, clock.now)
    assert store.get(id, now=clock.now).state is State.RUNNING


def test_cancel_takes_the_ticket_at_the_gate(store: Store, plain: Plain, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2, gate="one")
    assert store.cancel(first, now=clock.now) is State.CANCELLED
    assert plain.one("select count(*) from tenure.gated") == 1
    assert ids_of(take(store, clock.now)) == [second]


def test_hold_and_unhold(store: Store, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2, gate="one")
    assert store.hold(first, now=clock.now)
    claimed = take_one(store, clock.now)
    assert claimed.id == second
    assert store.unhold(first, now=clock.now)
    assert take(store, clock.now) == []
    finish(store, clock.now, claimed)
    assert ids_of(take(store, clock.now)) == [first]


def test_a_held_running_job_frees_its_place_when_it_comes_back(store: Store, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2, gate="one")
    claimed = take_one(store, clock.now)
    store.hold(first, now=clock.now)
    settle(store, clock.now, release(claimed))
    assert ids_of(take(store, clock.now)) == [second]


def test_move_to_another_queue_and_priority(store: Store, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2, gate="fair")
    assert store.move(first, queue="b", now=clock.now)
    assert store.move(second, priority=3, now=clock.now)
    assert ids_of(take(store, clock.now, queue="b")) == [first]
    [claimed] = take(store, clock.now)
    assert (claimed.id, claimed.priority) == (second, 3)


def test_a_scheduled_job_stands_at_its_gate_when_it_is_due(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, gate="one", delay_seconds=10.0)
    assert store.get(id, now=clock.now).state is State.SCHEDULED
    assert take(store, clock.now) == []
    clock.advance(11)
    assert store.promote(now=clock.now) == 1
    assert ids_of(take(store, clock.now)) == [id]


def test_a_child_stands_at_its_gate_when_it_is_free(store: Store, clock: Clock) -> None:
    parent = add(store, clock.now, queue="parents")
    child = add(store, clock.now, gate="one", parents=(parent,))
    assert take(store, clock.now) == []
    finish(store, clock.now, take_one(store, clock.now, queue="parents"))
    assert ids_of(take(store, clock.now)) == [child]


def test_a_schedule_keeps_the_gate(store: Store, clock: Clock) -> None:
    minutely = NewSchedule(
        name="minutely", timing=ScheduleTiming(cron="* * * * *", catch_up="all"),
        job=job(gate="each", gate_key="k"),
    )  # fmt: skip
    store.add_schedule(minutely, now=clock.now)
    clock.advance(180)
    store.fire(now=clock.now)
    assert len(take(store, clock.now)) == 1
    assert store.gates(name="each", now=clock.now)[0].waiting == 2


def test_replay_keeps_the_gate(store: Store, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2, gate="each", gate_key="k")
    finish(store, clock.now, take_one(store, clock.now))
    assert store.get(first, now=clock.now).gate_key == "\x1fk"
    assert store.replay(first, now=clock.now)
    claimed = take_one(store, clock.now)
    assert claimed.id == second
    finish(store, clock.now, claimed)
    assert ids_of(take(store, clock.now)) == [first]


def test_a_paused_queue_lets_nobody_pass(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, gate="one")
    store.pause("default", now=clock.now)
    assert take(store, clock.now) == []
    store.resume("default", now=clock.now)
    assert ids_of(take(store, clock.now)) == [id]


def test_a_key_held_until_started_is_given_back(store: Store, clock: Clock) -> None:
    unique = Unique(key="u", until=Until.STARTED)
    add(store, clock.now, gate="fair", unique=unique)
    take_one(store, clock.now)
    add(store, clock.now, gate="fair", unique=unique)


def test_a_void_ticket_at_a_gate_is_dropped(store: Store, plain: Plain, clock: Clock) -> None:
    first, second = add_many(store, clock.now, 2, gate="each", gate_key="k")
    plain.rows(f"update tenure.gated set token = 7 where job_id = {first}")
    assert ids_of(take(store, clock.now)) == [second]
    assert plain.one("select count(*) from tenure.gated") == 0
    plain.rows(f"delete from tenure.job where id = {first}")


# --- what is allowed ---------------------------------------------------------------------------


def test_a_gate_that_nobody_declared_has_no_limits(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 5, gate="unheard-of", gate_key="k")
    assert len(take(store, clock.now) + take(store, clock.now)) == 5


def test_declaring_again_changes_nothing(store: Store, clock: Clock) -> None:
    assert store.declare_gates({"one": ONE, "each": ONE_EACH}, now=clock.now) == []
    assert store.declare_gates({"one": Limits(max_running=3)}, now=clock.now) == ["one"]


@pytest.mark.parametrize("keyed", [False, True])
def test_a_limit_can_be_raised_while_jobs_wait(store: Store, clock: Clock, keyed: bool) -> None:
    gate = "each" if keyed else "one"
    ids = add_many(store, clock.now, 4, gate=gate, gate_key="k")
    assert ids_of(take(store, clock.now)) == ids[:1]
    assert take(store, clock.now) == []
    store.set_gate(gate, max_running=3, now=clock.now)
    assert ids_of(take(store, clock.now)) == ids[1:3]
    assert store.gates(name=gate, now=clock.now)[0].limits.keyed is keyed


def test_a_limit_can_be_lowered_while_jobs_run(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 5, gate="two")
    running = take(store, clock.now)
    store.set_gate("two", max_running=1, now=clock.now)
    finish(store, clock.now, running[0])
    assert take(store, clock.now) == []
    finish(store, clock.now, running[1])
    assert ids_of(take(store, clock.now)) == ids[2:3]


def test_a_rate_can_be_lifted_while_jobs_wait(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 5, gate="rate")
    take(store, clock.now)
    assert take(store, clock.now) == []
    store.set_gate("rate", rate=None, now=clock.now)
    assert ids_of(take(store, clock.now)) == ids[2:]


def test_what_is_set_by_hand_wins_until_it_is_reset(store: Store, clock: Clock) -> None:
    store.set_gate("one", max_running=7, now=clock.now)
    store.declare_gates({"one": Limits(max_running=2)}, now=clock.now)
    [seen] = store.gates(name="one", now=clock.now)
    assert (seen.limits.max_running, seen.by_hand) == (7, True)
    assert seen.declared == Limits(max_running=2)
    assert store.reset_gate("one", now=clock.now)
    [seen] = store.gates(name="one", now=clock.now)
    assert (seen.limits.max_running, seen.by_hand) == (2, False)
    assert not store.reset_gate("one", now=clock.now)


def test_an_unknown_gate_is_refused(store: Store, clock: Clock) -> None:
    for act in (
        lambda: store.set_gate("nobody", max_running=1),
        lambda: store.reset_gate("nobody"),
    ):
        with pytest.raises(GateNotFound, match="there is no gate nobody"):
            act()
    assert store.gates(name="nobody", now=clock.now) == []


def test_a_gate_without_a_declaration_is_forgotten_by_reset(store: Store, clock: Clock) -> None:
    add(store, clock.now, gate="stray")
    claimed = take(store, clock.now) or take(store, clock.now)
    store.declare_gates({}, now=clock.now)
    if store.gates(name="stray", now=clock.now):
        store.reset_gate("stray", now=clock.now)
        assert store.gates(name="stray", now=clock.now)  # one runs there
        finish(store, clock.now, *claimed)
        store.reset_gate("stray", now=clock.now)
    assert store.gates(name="stray", now=clock.now) == []


def test_what_is_seen_of_a_gate(store: Store, clock: Clock) -> None:
    for key, count in (("a", 3), ("b", 2)):
        add_many(store, clock.now, count, gate="each", gate_key=key)
    take(store, clock.now)
    [seen] = store.gates(name="each", now=clock.now)
    assert (seen.running, seen.waiting, seen.lines) == (2, 3, 2)
    lines = store.gate_lines("each", now=clock.now)
    assert [(line.key, line.waiting, line.running) for line in lines] == [
        ("\x1fa", 2, 1), ("\x1fb", 1, 1),
    ]  # fmt: skip


def test_how_a_job_stands_at_its_gate(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 4, gate="one")
    take(store, clock.now)
    wait = store.gate_wait(ids[3], now=clock.now)
    assert wait is not None
    assert (wait.gate, wait.running, wait.limits, wait.before) == ("one", 1, ONE, 2)
    assert store.gate_wait(add(store, clock.now), now=clock.now) is None


def test_how_long_a_rate_makes_a_job_wait(store: Store, clock: Clock) -> None:
    ids = add_many(store, clock.now, 4, gate="rate")
    take(store, clock.now)
    clock.advance(0.2)
    wait = store.gate_wait(ids[2], now=clock.now)
    assert wait is not None
    assert wait.start_seconds == pytest.approx(0.3, abs=0.001)


# --- healing -----------------------------------------------------------------------------------


def test_lost_turns_are_found_again(store: Store, plain: Plain, clock: Clock) -> None:
    ids = add_many(store, clock.now, 2, gate="each", gate_key="k")
    add_many(store, clock.now, 2, gate="one")
    plain.rows("delete from tenure.turn")
    assert take(store, clock.now) == []
    assert store.heal_gates(now=clock.now) == 2
    assert store.heal_gates(now=clock.now) == 0
    claimed = take(store, clock.now)
    assert len(claimed) == 2
    assert ids[0] in ids_of(claimed)


def test_what_a_lease_that_is_gone_left_is_removed(
    store: Store, plain: Plain, clock: Clock
) -> None:
    _, second = add_many(store, clock.now, 2, gate="one")
    claimed = take_one(store, clock.now)
    assert store.heal_gates(now=clock.now) == 0
    plain.rows("update tenure.gate_hold set lease = lease + 1000")
    assert take(store, clock.now) == []  # it runs, whatever its lease is
    finish(store, clock.now, claimed)
    assert store.heal_gates(now=clock.now) == 1
    assert ids_of(take(store, clock.now)) == [second]


def test_a_store_learns_of_gates_that_others_declare(
    store: Store, store_url: str, plain: Plain, clock: Clock
) -> None:
    """With the next look: a worker whose code has no gates serves their jobs, too."""
    plain.rows("delete from tenure.gate")
    with open_store(store_url) as mine:
        assert mine.claim("w1", {"default": 10}, now=clock.now) == []
        assert mine.peek(["default"], now=clock.now).ready == frozenset()
        store.declare_gates({"one": ONE}, now=clock.now)
        id = add(store, clock.now, gate="one")
        assert mine.peek(["default"], now=clock.now).ready == {"default"}
        assert ids_of(take(mine, clock.now)) == [id]
