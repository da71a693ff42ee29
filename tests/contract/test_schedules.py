"""Schedules: one job per tick, whoever fires it; what was missed; what people do to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.errors import (
    InvalidCron,
    InvalidInput,
    InvalidName,
    ScheduleExists,
    ScheduleNotFound,
    TenantMismatch,
    UnknownZone,
)
from tenure.rules.codec import encode
from tenure.rules.job import Job, NewJob, State, Unique
from tenure.rules.lifecycle import succeed
from tenure.rules.ticks import ScheduleTiming, fired_by
from tenure.store import Declared, Fired, NewSchedule, ScheduleInfo, Store
from tenure.store.schedules import change
from tests.support.plain import Plain
from tests.support.stores import START, Clock
from tests.support.work import TASK, job, run, take_one

MINUTELY = ScheduleTiming(cron="* * * * *")
HOUR = 3600


def new(name: str = "s", timing: ScheduleTiming = MINUTELY, **options: Any) -> NewSchedule:
    return NewSchedule(name=name, timing=timing, job=job(**options))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def jobs(store: Store) -> list[Job]:
    """All jobs, in the order in which they were made."""
    return list(reversed(store.list_jobs(limit=1000).jobs))


def ticks(store: Store) -> list[datetime]:
    """For which ticks there are jobs, in the order in which they were made."""
    found = [fired_by(each.metadata_json) for each in jobs(store)]
    return [by.tick for by in found if by is not None]


def test_a_tick_enqueues_the_job(store: Store, clock: Clock) -> None:
    options: dict[str, Any] = {
        "args": encode({"to": "me"}), "queue": "mail", "priority": -3, "max_attempts": 2,
        "timeout_seconds": 5.0, "metadata": encode({"mine": 1}),
    }  # fmt: skip
    added = store.add_schedule(new(**options), now=clock.now)
    assert added.next_at == clock.now + timedelta(minutes=1)
    assert store.fire(now=clock.advance(59.9)).jobs == ()
    fired = store.fire(now=clock.advance(0.2))
    [made] = jobs(store)
    assert fired.jobs == (made.id,)
    assert fired.wait_seconds == pytest.approx(59.9)
    assert (made.task, made.args_json, made.queue, made.priority) == (
        TASK,
        '{"to":"me"}',
        "mail",
        -3,
    )
    assert (made.state, made.max_attempts, made.timeout_seconds) == (State.QUEUED, 2, 5.0)
    tick = START + timedelta(minutes=1)
    assert made.metadata == {
        "mine": 1, "schedule": {"name": "s", "tick": "2026-03-01T12:01:00Z"},
    }  # fmt: skip
    seen = store.get_schedule("s", now=clock.now)
    assert (seen.last_at, seen.last_job_id) == (tick, made.id)
    assert seen.next_at == tick + timedelta(minutes=1)


def test_nothing_is_due_twice(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    clock.advance(61)
    assert [len(store.fire(now=clock.now).jobs) for _ in range(3)] == [1, 0, 0]
    assert len(jobs(store)) == 1


def test_a_tick_that_has_its_row_is_not_fired_again(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """Not even when the schedule itself says that the tick is still to be fired."""
    store.add_schedule(new(), now=clock.now)
    store.fire(now=clock.advance(60))
    plain.rows("update tenure.schedule set done_until = created_at, next_at = created_at")
    assert store.fire(now=clock.now).jobs == ()
    assert len(jobs(store)) == 1


def test_fire_says_in_how_many_seconds_to_look_again(store: Store, clock: Clock) -> None:
    assert store.fire(now=clock.now) == Fired()
    store.add_schedule(new("a", ScheduleTiming(cron="0 13 * * *")), now=clock.now)
    assert store.fire(now=clock.now).wait_seconds == HOUR
    store.add_schedule(new("b", ScheduleTiming(every_seconds=90)), now=clock.now)
    assert store.fire(now=clock.now).wait_seconds == 90
    store.pause_schedule("b", now=clock.now)
    assert store.fire(now=clock.now).wait_seconds == HOUR


def test_the_databases_clock_is_the_clock(store: Store) -> None:
    added = store.add_schedule(new(timing=ScheduleTiming(every_seconds=HOUR)))
    wait = store.fire().wait_seconds
    assert added.next_at is not None
    assert wait is not None
    assert 0 <= wait <= HOUR
    left = (added.next_at - store.about().now).total_seconds()
    assert abs(wait - left) < 30


def test_the_story_of_the_job_names_schedule_and_tick(store: Store, clock: Clock) -> None:
    store.add_schedule(new("nightly"), now=clock.now)
    [id] = store.fire(now=clock.advance(60)).jobs
    [enqueued] = store.timeline(id, now=clock.now)
    assert enqueued.kind == "enqueued"
    assert enqueued.detail == "by schedule nightly, for the tick at 2026-03-01 12:01:00 UTC"


# --- changes of the clock ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "zone", "since", "expected"),
    [
        # the hour from two to three is left out on the 29th of March; once, at its end
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00",
         ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]),
        # the hour from two to three comes twice on the 25th of October; daily once
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00",
         ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]),
        # and hourly at both real hours
        ("30 * * * *", "Europe/Berlin", "2026-10-24T23:00",
         ["2026-10-24T23:30", "2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T02:30"]),
        # half an hour is left out on the 4th of October
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T12:00",
         ["2026-10-02T15:45", "2026-10-03T15:30", "2026-10-04T15:15"]),
        # there was no 30th of December 2011
        ("0 0 * * *", "Pacific/Apia", "2011-12-28T12:00",
         ["2011-12-29T10:00", "2011-12-30T10:00", "2011-12-31T10:00"]),
    ],
)  # fmt: skip
def test_each_tick_has_one_job_when_clocks_change(
    store: Store, cron: str, zone: str, since: str, expected: list[str]
) -> None:
    """Looked at every quarter of an hour, as a worker would, by the clock of the world."""
    now, last = at(since), at(expected[-1])
    store.add_schedule(new(timing=ScheduleTiming(cron=cron, tz=zone)), now=now)
    while now <= last:
        store.fire(now=now)
        now += timedelta(minutes=15)
    assert ticks(store) == [at(text) for text in expected]


def test_a_schedule_ticks_after_the_end_of_32_bits(store: Store) -> None:
    now = at("2038-01-19T03:13:30")
    store.add_schedule(new(), now=now)
    for _ in range(3):
        now += timedelta(minutes=1)
        store.fire(now=now)
    assert ticks(store) == [at(f"2038-01-19T03:{minute}") for minute in (14, 15, 16)]


# --- missed ticks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("skip", []), ("latest", [12 * 60]), ("all", [12 * 60 - 120, 12 * 60 - 60, 12 * 60])],
)
def test_a_machine_that_was_off_for_a_week(
    store: Store, clock: Clock, policy: Any, expected: list[int]
) -> None:
    timing = ScheduleTiming(cron="0 * * * *", catch_up=policy, catch_up_limit=3)
    store.add_schedule(new(timing=timing), now=clock.now)
    clock.advance(7 * 86_400 + 1800)
    store.fire(now=clock.now)
    day = at("2026-03-08T00:00")
    assert ticks(store) == [day + timedelta(minutes=minutes) for minutes in expected]
    assert store.fire(now=clock.now).wait_seconds == 1800
    store.fire(now=clock.advance(1800))
    assert ticks(store)[-1] == day + timedelta(hours=13), "it goes on as if nothing had been"


def test_late_within_a_minute_is_not_missed(store: Store, clock: Clock) -> None:
    timing = ScheduleTiming(cron="0 13 * * *", catch_up="skip")
    store.add_schedule(new(timing=timing), now=clock.now)
    store.fire(now=clock.advance(HOUR + 60))
    assert len(jobs(store)) == 1
    store.fire(now=clock.advance(86_400 + 1))
    assert len(jobs(store)) == 1


# --- the clock is changed ------------------------------------------------------------------------


def test_a_clock_that_is_set_back_fires_no_tick_again(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    for _ in range(5):
        store.fire(now=clock.advance(60))
    assert len(jobs(store)) == 5
    clock.advance(-150)
    for _ in range(10):
        store.fire(now=clock.advance(30))
    assert ticks(store) == [START + timedelta(minutes=n) for n in range(1, 8)]


def test_a_clock_that_was_a_year_ahead_stops_nothing_for_a_year(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    store.fire(now=clock.advance(60))
    store.fire(now=clock.now + timedelta(days=365))
    ahead = ticks(store)[1:]
    store.fire(now=clock.advance(1))
    for _ in range(3):
        store.fire(now=clock.advance(60))
    assert ahead == [START + timedelta(days=365, minutes=1)]
    assert [tick for tick in ticks(store) if tick not in ahead] == [
        START + timedelta(minutes=n) for n in range(1, 5)
    ]


def test_when_to_look_is_a_hint_and_when_it_ticks_is_worked_out_anew(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """New rules of a zone move a tick that was stored under the old ones."""
    store.add_schedule(new(timing=ScheduleTiming(cron="0 13 * * *")), now=clock.now)
    plain.rows("update tenure.schedule set next_at = done_until")
    assert store.fire(now=clock.advance(60)).jobs == ()
    assert store.get_schedule("s").next_at == at("2026-03-01T13:00")


def test_a_paused_schedule_stays_paused_when_the_clock_is_set_back(
    store: Store, clock: Clock
) -> None:
    store.add_schedule(new(), now=clock.now)
    store.pause_schedule("s", now=clock.now)
    clock.advance(-HOUR)
    assert store.fire(now=clock.now) == Fired()
    assert store.fire(now=clock.advance(600)) == Fired()
    assert jobs(store) == []


# --- overlap and jitter --------------------------------------------------------------------------


def test_a_tick_is_skipped_while_the_last_job_is_not_finished(store: Store, clock: Clock) -> None:
    store.add_schedule(new(timing=ScheduleTiming(cron="* * * * *", overlap="skip")), now=clock.now)
    [first] = store.fire(now=clock.advance(60)).jobs
    for _ in range(2):
        assert store.fire(now=clock.advance(60)).jobs == ()
    claimed = take_one(store, clock.now)
    assert store.fire(now=clock.advance(60)).jobs == ()
    [answer] = store.settle("w1", [succeed(claimed, encode(None), 1.0)], now=clock.now)
    assert answer.landed
    [second] = store.fire(now=clock.advance(60)).jobs
    runs = store.schedule_runs("s", now=clock.now)
    assert [each.job_id for each in runs] == [second, None, None, None, first]
    assert [each.state for each in runs][::4] == [State.QUEUED, State.SUCCEEDED]


def test_a_triggered_job_counts_as_well(store: Store, clock: Clock) -> None:
    store.add_schedule(new(timing=ScheduleTiming(cron="* * * * *", overlap="skip")), now=clock.now)
    first = store.trigger_schedule("s", now=clock.advance(1))
    second = store.trigger_schedule("s", now=clock.now)
    assert store.fire(now=clock.advance(60)).jobs == ()
    store.cancel(second, now=clock.now)
    assert store.fire(now=clock.advance(60)).jobs == (), "the first one is still there"
    store.cancel(first, now=clock.now)
    assert len(store.fire(now=clock.advance(60)).jobs) == 1


def test_a_job_that_outlasts_the_retention_is_not_overlapped(store: Store, clock: Clock) -> None:
    timing = ScheduleTiming(every_seconds=86_400, overlap="skip")
    store.add_schedule(new(timing=timing), now=clock.now)
    [first] = store.fire(now=clock.advance(86_400)).jobs
    for _ in range(9):
        assert store.fire(now=clock.advance(86_400)).jobs == ()
        store.prune(now=clock.now)
    store.cancel(first, now=clock.now)
    assert len(store.fire(now=clock.advance(86_400)).jobs) == 1
    store.prune(now=clock.advance(1))
    assert first not in [each.job_id for each in store.schedule_runs("s", limit=100)]


def test_ticks_whose_jobs_are_not_finished_do_not_keep_prune_from_others(
    store: Store, plain: Plain, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.prune.PRUNE_BATCH", 2)
    store.add_schedule(new(timing=ScheduleTiming(cron="* * * * *")), now=clock.now)
    made = [store.fire(now=clock.advance(60)).jobs[0] for _ in range(12)]
    for id in made[1::2]:
        store.cancel(id, now=clock.now)
    store.prune(now=clock.advance(8 * 86_400))
    rows = plain.rows("select job_id from tenure.tick order by job_id")
    assert [row[0] for row in rows] == made[::2]


def test_a_long_job_is_seen_behind_many_skipped_ticks(store: Store, clock: Clock) -> None:
    store.add_schedule(new(timing=ScheduleTiming(every_seconds=1, overlap="skip")), now=clock.now)
    store.fire(now=clock.advance(1))
    for _ in range(120):
        store.fire(now=clock.advance(1))
    assert len(jobs(store)) == 1


def test_jitter_moves_the_job_and_not_the_tick(store: Store, clock: Clock) -> None:
    timing = ScheduleTiming(cron="* * * * *", jitter_seconds=50)
    store.add_schedule(new(timing=timing), now=clock.now)
    store.add_schedule(new("t", timing), now=clock.now)
    store.fire(now=clock.advance(60))
    made = jobs(store)
    assert ticks(store) == [clock.now, clock.now]
    assert {each.state for each in made} == {State.SCHEDULED}
    due = [each.due_at for each in made if each.due_at is not None]
    assert due[0] != due[1]
    for moment in due:
        assert clock.now < moment < clock.now + timedelta(seconds=50)
    store.promote(now=clock.advance(50))
    assert {each.state for each in jobs(store)} == {State.QUEUED}


def test_a_unique_key_is_kept(store: Store, clock: Clock) -> None:
    store.add_schedule(new(unique=Unique(key="one")), now=clock.now)
    [first] = store.fire(now=clock.advance(60)).jobs
    assert store.fire(now=clock.advance(60)).jobs == (first,)
    assert len(jobs(store)) == 1
    assert [each.job_id for each in store.schedule_runs("s", now=clock.now)] == [first, first]


# --- many ----------------------------------------------------------------------------------------


def test_more_than_a_page_is_fired_at_once(store: Store, clock: Clock) -> None:
    for n in range(120):
        store.add_schedule(new(f"s{n}"), now=clock.now)
    fired = store.fire(now=clock.advance(60))
    assert len(set(fired.jobs)) == 120
    assert fired.wait_seconds == 60
    assert store.fire(now=clock.now).jobs == ()


def test_one_that_cannot_tick_here_holds_up_no_other(
    store: Store, plain: Plain, clock: Clock
) -> None:
    for n in range(60):
        store.add_schedule(new(f"bad{n:02}", ScheduleTiming(cron="* * * * *")), now=clock.now)
    plain.rows("update tenure.schedule set timing = ?", '{"cron":"* * * * *","tz":"Mars/Base"}')
    store.add_schedule(new("good"), now=clock.now)
    fired = store.fire(now=clock.advance(60))
    assert len(fired.jobs) == 1
    assert len(fired.refused) == 60
    assert "Mars/Base" in fired.refused["bad00"]
    assert fired.wait_seconds == 1.0, "another worker may know the zone"
    assert store.get_schedule("bad00").timing.tz == "Mars/Base", "the name of the zone is kept"


@pytest.mark.parametrize("column", ["timing", "job"])
def test_one_that_another_version_has_written_holds_up_no_other(
    store: Store, plain: Plain, clock: Clock, column: str
) -> None:
    store.add_schedule(new("bad"), now=clock.now)
    plain.rows(f"update tenure.schedule set {column} = ?", '{"later": 5}')
    store.add_schedule(new("good"), now=clock.now)
    fired = store.fire(now=clock.advance(60))
    assert len(fired.jobs) == 1
    assert set(fired.refused) == {"bad"}


# --- what people do ------------------------------------------------------------------------------


def test_a_schedule_is_seen_as_it_was_added(store: Store, clock: Clock) -> None:
    timing = ScheduleTiming(cron="0 3 * * *", tz="Europe/Berlin", catch_up="skip", jitter_seconds=5)
    added = store.add_schedule(new("nightly", timing, args=encode({"a": 1})), now=clock.now)
    assert added == ScheduleInfo(
        name="nightly", tenant="", timing=timing, task=TASK, args_json='{"a":1}',
        queue="default", priority=0, next_at=at("2026-03-02T02:00"), last_at=None,
        last_job_id=None, paused_at=None, reason=None, declared=False,
        created_at=clock.now, changed_at=clock.now,
    )  # fmt: skip
    assert store.get_schedule("nightly", now=clock.now) == added
    assert store.list_schedules(now=clock.now) == [added]
    assert added.upcoming(2) == [at("2026-03-02T02:00"), at("2026-03-03T02:00")]


def test_a_name_is_taken_once(store: Store, clock: Clock) -> None:
    added = store.add_schedule(new(), now=clock.now)
    with pytest.raises(ScheduleExists):
        store.add_schedule(new(timing=ScheduleTiming(every_seconds=5)), now=clock.now)
    assert store.get_schedule("s", now=clock.now) == added


def test_edits_count_from_now_on(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    clock.advance(90)
    edited = store.edit_schedule("s", timing={"cron": "*/10 * * * *"}, now=clock.now)
    assert edited.next_at == at("2026-03-01T12:10")
    assert store.fire(now=clock.now).jobs == (), "what has passed has passed"
    edited = store.edit_schedule("s", timing={"every_seconds": 60.0}, now=clock.now)
    assert (edited.timing.cron, edited.timing.every_seconds) == (None, 60.0)
    edited = store.edit_schedule("s", timing={"cron": "@daily", "tz": "Asia/Tokyo"}, now=clock.now)
    assert edited.timing == ScheduleTiming(cron="@daily", tz="Asia/Tokyo")
    edited = store.edit_schedule("s", job=job(task="app.other"), now=clock.now)
    assert (edited.task, edited.timing.cron) == ("app.other", "@daily")
    [id] = store.fire(now=clock.advance(86_400)).jobs
    assert store.get(id).task == "app.other"


def test_pause_and_resume(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    paused = store.pause_schedule("s", reason="wait for Eve", now=clock.now)
    assert (paused.paused_at, paused.reason, paused.next_at) == (clock.now, "wait for Eve", None)
    assert paused.upcoming() == []
    since = clock.now
    assert store.fire(now=clock.advance(HOUR)) == Fired()
    assert store.pause_schedule("s", now=clock.now).paused_at == since
    resumed = store.resume_schedule("s", now=clock.now)
    assert (resumed.paused_at, resumed.reason) == (None, None)
    assert store.resume_schedule("s", now=clock.now) == resumed
    assert store.fire(now=clock.now).jobs == (), "what was missed in a pause is not caught up with"
    assert len(store.fire(now=clock.advance(60)).jobs) == 1


OFF_FOR_AN_HOUR = {"latest": ["04:00"], "all": ["01:00", "02:00", "03:00", "04:00"], "skip": []}


@pytest.mark.parametrize("change", ["edit", "edit the job", "declare", "pause"])
@pytest.mark.parametrize("policy", ["latest", "all", "skip"])
def test_ticks_due_before_a_change_fire_by_the_policy_of_that_time(
    store: Store, change: str, policy: Any
) -> None:
    """Seen failing with changes that fire nothing: the ticks of the hours before were lost."""
    midnight = at("2026-03-02 00:00")
    timing = ScheduleTiming(cron="0 * * * *", catch_up=policy)
    store.declare_schedules([new(timing=timing)], now=midnight)
    noticed = midnight + timedelta(hours=4, minutes=30)
    daily = {"cron": "0 12 * * *", "catch_up": "latest"}
    match change:
        case "edit":
            store.edit_schedule("s", timing=daily, now=noticed)
        case "edit the job":
            store.edit_schedule("s", job=job(task="app.other"), now=noticed)
        case "declare":
            changed = new(timing=ScheduleTiming(cron="0 12 * * *"))
            assert store.declare_schedules([changed], now=noticed).changed == ("s",)
        case _:
            store.pause_schedule("s", now=noticed)
            store.resume_schedule("s", now=noticed + timedelta(minutes=10))
    wanted = [at(f"2026-03-02 {hour}") for hour in OFF_FOR_AN_HOUR[policy]]
    assert ticks(store) == wanted
    assert {each.task for each in jobs(store)} <= {TASK}  # the job of that time
    assert [each.tick_at for each in store.schedule_runs("s")] == wanted[::-1]
    assert store.get_schedule("s").last_at == (wanted[-1] if wanted else None)
    store.fire(now=at("2026-03-02 12:00:01"))
    hourly = change in ("edit the job", "pause")
    missed = 8 if hourly and policy == "all" else 1
    assert len(ticks(store)) == len(wanted) + missed
    assert ticks(store)[-1] == at("2026-03-02 12:00")


def test_a_change_fires_nothing_twice(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    store.fire(now=clock.advance(61))
    store.edit_schedule("s", timing={"cron": "*/2 * * * *"}, now=clock.now)
    store.pause_schedule("s", now=clock.now)
    store.pause_schedule("s", reason="twice", now=clock.advance(300))
    store.edit_schedule("s", timing={"cron": "* * * * *"}, now=clock.advance(300))
    store.resume_schedule("s", now=clock.advance(300))
    assert len(jobs(store)) == 1


def test_a_change_skips_what_overlaps(store: Store, clock: Clock) -> None:
    store.add_schedule(new(timing=ScheduleTiming(cron="* * * * *", overlap="skip")), now=clock.now)
    store.trigger_schedule("s", now=clock.advance(1))
    store.pause_schedule("s", now=clock.advance(60))
    assert len(jobs(store)) == 1
    assert [each.job_id for each in store.schedule_runs("s")].count(None) == 1


def test_a_change_is_possible_where_the_old_zone_is_unknown(
    store: Store, plain: Plain, clock: Clock
) -> None:
    store.add_schedule(new(), now=clock.now)
    plain.rows("update tenure.schedule set timing = ?", '{"cron":"* * * * *","tz":"Mars/Base"}')
    edited = store.edit_schedule("s", timing={"tz": "UTC"}, now=clock.advance(120))
    assert edited.next_at is not None
    assert jobs(store) == []


@pytest.mark.parametrize(
    ("column", "text"),
    [("timing", '{"cron":"H H * * *"}'), ("job", '{"task":"app.send","args":{},"metadata":[1]}')],
)
def test_a_schedule_that_cannot_tick_can_be_paused_and_repaired(
    store: Store, plain: Plain, clock: Clock, column: str, text: str
) -> None:
    """Other code has stored it."""
    store.add_schedule(new(), now=clock.now)
    plain.rows(f"update tenure.schedule set {column} = ?", text)
    assert set(store.fire(now=clock.advance(120)).refused) == {"s"}
    assert store.pause_schedule("s", now=clock.now).paused_at == clock.now
    store.edit_schedule("s", timing={"cron": "* * * * *"}, job=job(), now=clock.now)
    store.resume_schedule("s", now=clock.now)
    assert len(store.fire(now=clock.advance(60)).jobs) == 1


def test_trigger_makes_a_job_now_and_changes_no_tick(store: Store, clock: Clock) -> None:
    added = store.add_schedule(new(), now=clock.now)
    store.pause_schedule("s", now=clock.now)
    first = store.trigger_schedule("s", now=clock.now)
    second = store.trigger_schedule("s", now=clock.now)
    store.resume_schedule("s", now=clock.now)
    assert store.get_schedule("s", now=clock.now).next_at == added.next_at
    [third] = store.fire(now=clock.advance(60)).jobs
    fourth = store.trigger_schedule("s", now=clock.now)
    runs = store.schedule_runs("s", now=clock.now)
    assert [(each.job_id, each.triggered) for each in runs] == [
        (fourth, True), (third, False), (second, True), (first, True),
    ]  # fmt: skip
    by = fired_by(store.get(first).metadata_json)
    assert by is not None
    assert by.triggered
    assert store.timeline(first)[0].detail == f"by {by}"


def test_a_trigger_just_before_its_tick_does_not_take_its_place(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    clock.advance(60)
    store.trigger_schedule("s", now=clock.now)
    assert len(store.fire(now=clock.now).jobs) == 1


def test_a_removed_schedule_ticks_no_more_and_its_jobs_stay(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    [id] = store.fire(now=clock.advance(60)).jobs
    store.remove_schedule("s", now=clock.now)
    assert store.fire(now=clock.advance(60)) == Fired()
    assert store.get(id).state is State.QUEUED
    with pytest.raises(ScheduleNotFound):
        store.get_schedule("s")
    store.add_schedule(new(), now=clock.now)
    assert len(store.fire(now=clock.advance(60)).jobs) == 1


def test_a_schedule_that_does_not_exist_is_not_found(store: Store, clock: Clock) -> None:
    for call in (
        lambda: store.get_schedule("none", now=clock.now),
        lambda: store.edit_schedule("none", timing={"cron": "@daily"}, now=clock.now),
        lambda: store.pause_schedule("none", now=clock.now),
        lambda: store.resume_schedule("none", now=clock.now),
        lambda: store.trigger_schedule("none", now=clock.now),
        lambda: store.remove_schedule("none", now=clock.now),
        lambda: store.schedule_runs("none", now=clock.now),
    ):
        with pytest.raises(ScheduleNotFound, match="no schedule none"):
            call()


def test_wrong_schedules_are_refused_and_nothing_is_written(store: Store, clock: Clock) -> None:
    wrong: Any = "s"
    for error, make in (
        (InvalidCron, lambda: new(timing=ScheduleTiming(cron="0 0 30 2 *"))),
        (UnknownZone, lambda: new(timing=ScheduleTiming(cron="@daily", tz="Mars/Base"))),
        (InvalidName, lambda: new("no spaces")),
        (InvalidInput, lambda: new(delay_seconds=5)),
        (InvalidInput, lambda: new(due_at=clock.now)),
        (InvalidInput, lambda: new(parents=(1,))),
        (InvalidInput, lambda: new(metadata=encode([1, 2]))),
        (InvalidInput, lambda: wrong),
    ):
        with pytest.raises(error):
            store.add_schedule(make(), now=clock.now)
    assert store.list_schedules(now=clock.now) == []
    added = store.add_schedule(new(), now=clock.now)
    for changes in ({"cron": "x"}, {"tz": "Mars/Base"}, {"catch_up": "some"}, {"crno": "x"}):
        with pytest.raises(InvalidInput):
            store.edit_schedule("s", timing=changes, now=clock.now)
    assert store.get_schedule("s", now=clock.now) == added


def test_pages_of_the_list(store: Store, clock: Clock) -> None:
    for name in ("c", "a", "b"):
        store.add_schedule(new(name), now=clock.now)
    first = store.list_schedules(limit=2, now=clock.now)
    rest = store.list_schedules(limit=2, after=first[-1], now=clock.now)
    assert [each.name for each in first + rest] == ["a", "b", "c"]


# --- what code declares --------------------------------------------------------------------------


def test_a_declaration_counts_the_first_time_that_it_is_seen(store: Store, clock: Clock) -> None:
    """Old code that starts again beside new code, or after an edit, changes nothing."""
    old, newer = (
        [new(timing=ScheduleTiming(cron="0 3 * * *"))],
        [new(timing=ScheduleTiming(cron="0 4 * * *"))],
    )

    def declare(schedules: list[NewSchedule]) -> Declared:
        return store.declare_schedules(schedules, tasks=[TASK], now=clock.now)

    assert declare(old) == Declared(added=("s",))
    assert store.get_schedule("s").declared
    assert declare(old) == Declared()
    assert declare(newer) == Declared(changed=("s",))
    assert declare(old) == Declared(differs=("s",))
    assert store.get_schedule("s").timing.cron == "0 4 * * *"
    assert declare(newer) == Declared()
    store.edit_schedule("s", timing={"cron": "0 5 * * *"}, now=clock.now)
    assert declare(newer) == declare(old) == Declared(differs=("s",))
    assert store.get_schedule("s").timing.cron == "0 5 * * *"
    newest = [new(timing=ScheduleTiming(cron="0 6 * * *"))]
    assert declare(newest) == Declared(changed=("s",))
    assert store.get_schedule("s").timing.cron == "0 6 * * *"


def test_a_declaration_changes_neither_a_pause_nor_what_is_due(store: Store, clock: Clock) -> None:
    store.declare_schedules([new()], now=clock.now)
    store.declare_schedules([new()], now=clock.advance(61))
    assert len(store.fire(now=clock.now).jobs) == 1, "a worker that starts late catches up"
    store.pause_schedule("s", reason="no", now=clock.now)
    store.declare_schedules([new(timing=ScheduleTiming(cron="*/2 * * * *"))], now=clock.now)
    seen = store.get_schedule("s")
    assert (seen.reason, seen.next_at) == ("no", None)


def test_what_was_added_at_run_time_can_move_into_the_code(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    clock.advance(61)
    assert store.declare_schedules([new()], now=clock.now) == Declared()
    assert store.get_schedule("s").declared
    assert len(store.fire(now=clock.now).jobs) == 1


@pytest.mark.parametrize("page", [1000, 2, 1])
def test_what_code_does_not_declare_any_more_is_told(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(change, "MAX_LIST", page)
    names = ["a", "b", "d"]
    store.declare_schedules([*map(new, names), new("c", task="x.y")], now=clock.now)
    store.add_schedule(new("mine"), now=clock.now)
    said = store.declare_schedules([new("b")], tasks=[TASK], now=clock.now)
    assert said == Declared(left_over=("a", "d"))


# --- tenants -------------------------------------------------------------------------------------


def test_tenants_have_schedules_of_their_own(store: Store, clock: Clock) -> None:
    acme, other = store.for_tenant("acme"), store.for_tenant("other")
    store.add_schedule(new("shared"), now=clock.now)
    acme.add_schedule(new("s"), now=clock.now)
    other.add_schedule(new("s", ScheduleTiming(cron="*/2 * * * *")), now=clock.now)
    assert [(each.tenant, each.name) for each in acme.list_schedules(now=clock.now)] == [
        ("", "shared"), ("acme", "s"),
    ]  # fmt: skip
    assert len(store.list_schedules(now=clock.now)) == 3
    with pytest.raises(ScheduleNotFound):
        store.get_schedule("s")
    assert acme.get_schedule("shared").tenant == ""
    with pytest.raises(ScheduleNotFound):
        acme.pause_schedule("shared", now=clock.now)
    with pytest.raises(TenantMismatch):
        acme.add_schedule(new("t", tenant="other"), now=clock.now)
    store.fire(now=clock.advance(60))
    assert sorted((each.tenant, each.task) for each in jobs(store)) == [("", TASK), ("acme", TASK)]
    triggered = other.trigger_schedule("s", now=clock.now)
    assert store.get(triggered).tenant == "other"
    assert [each.job_id for each in acme.schedule_runs("s")] != [triggered]
    for call in (lambda: acme.fire(now=clock.now), lambda: acme.declare_schedules([])):
        with pytest.raises(TenantMismatch, match="concerns all tenants"):
            call()


# --- retention and others ------------------------------------------------------------------------


def test_prune_bounds_the_ticks(store: Store, plain: Plain, clock: Clock) -> None:
    store.add_schedule(new(timing=ScheduleTiming(cron="0 * * * *")), now=clock.now)
    for _ in range(48):
        for id in store.fire(now=clock.advance(HOUR)).jobs:
            store.cancel(id, now=clock.now)
    assert plain.one("select count(*) from tenure.tick") == 48
    store.prune(succeeded_seconds=0, now=clock.now)
    assert plain.one("select count(*) from tenure.tick") == 25, "a day is kept in any case"
    store.prune(now=clock.advance(7 * 86_400 + 1))
    assert plain.one("select count(*) from tenure.tick") == 0
    seen = store.get_schedule("s")
    assert seen.last_at is not None, "the schedule itself remembers its last one"


def test_the_job_of_a_tick_is_a_job_like_any_other(store: Store, clock: Clock) -> None:
    store.add_schedule(new(), now=clock.now)
    store.fire(now=clock.advance(60))
    done = run(store, clock.now, lambda claimed: succeed(claimed, encode("ok"), 0.1))
    assert done.state is State.SUCCEEDED
    [seen] = store.schedule_runs("s")
    assert (seen.job_id, seen.state) == (done.id, State.SUCCEEDED)
    store.delete(done.id)
    [seen] = store.schedule_runs("s")
    assert (seen.job_id, seen.state) == (done.id, None)


def test_plain_jobs_are_not_touched(store: Store, clock: Clock) -> None:
    [added] = store.enqueue([NewJob(task="a.b")], now=clock.now)
    assert store.fire(now=clock.now) == Fired()
    assert store.timeline(added.id)[0].detail is None
