"""Ticks against a brute-force search over every minute, in zones with every kind of clock change.

The oracle reads an expression by itself and asks of each UTC minute what the wall shows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st

from tenure.errors import InvalidCron, InvalidInput, OutOfRange, UnknownZone
from tenure.rules.ticks import (
    ALIASES,
    GRACE_SECONDS,
    FiredBy,
    ScheduleTiming,
    check_timing,
    due,
    due_at,
    fired_by,
    first_after,
    ticks,
    upcoming,
    words,
)

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

# Zone -> a moment near a change of its clock. Half hours, two hours, whole days, changes at
# midnight, southern summers, and one zone whose summer is the standard time.
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "Europe/London": ("2026-03-29", "2026-10-25"),
    "Europe/Dublin": ("2026-03-29", "2026-10-25"),
    "Europe/Lisbon": ("2026-03-29", "2026-10-25"),
    "Europe/Moscow": ("2011-03-27", "2014-10-26"),
    "Europe/Istanbul": ("2015-11-08", "2016-03-27"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "America/Los_Angeles": ("2026-03-08", "2026-11-01"),
    "America/St_Johns": ("2010-03-14", "2026-11-01"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "America/Santiago": ("2026-04-05", "2026-09-06"),
    "America/Asuncion": ("2023-03-26", "2023-10-01"),
    "America/Sao_Paulo": ("2018-02-18", "2018-11-04"),
    "America/Caracas": ("2007-12-09", "2016-05-01"),
    "America/Scoresbysund": ("2024-03-31", "2026-10-25"),
    "Africa/Cairo": ("2026-04-24", "2026-10-30"),
    "Africa/Casablanca": ("2026-02-15", "2026-03-22"),
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),
    "Asia/Gaza": ("2026-03-28", "2026-10-24"),
    "Asia/Tehran": ("2022-03-22", "2022-09-22"),
    "Asia/Pyongyang": ("2015-08-15", "2018-05-05"),
    "Asia/Kathmandu": ("1986-01-01", "2026-01-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
    "Australia/Sydney": ("2026-04-05", "2026-10-04"),
    "Pacific/Chatham": ("2026-04-05", "2026-09-27"),
    "Pacific/Apia": ("2011-12-30", "2012-04-01"),
    "Pacific/Kwajalein": ("1993-08-21", "2026-01-01"),
    "Pacific/Enderbury": ("1994-12-31", "2026-01-01"),
    "Antarctica/Troll": ("2026-03-29", "2026-10-25"),
    "UTC": ("2026-01-01", "2016-12-31"),
}
MOMENTS = [(zone, day) for zone, days in CHANGES.items() for day in days]
EXPRESSIONS = (
    "30 2 * * *", "30 1 * * *", "0 * * * *", "30 * * * *", "*/15 * * * *", "*/15 2 * * *",
    "*/20 1 * * *", "0 0 * * *", "59 23 * * *", "0,30 0-3 * * *", "15 */2 * * *", "0 3 * * 1-5",
    "5 4 1 * *", "*/3 0-3 * * *", "10-50/20 1,2,3 * * *", "0 0 31 12 *",
    "45 23 29,30 * 5", "0 12 * 1,7 0",
)  # fmt: skip


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- the oracle ----------------------------------------------------------------------------------

LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


@cache
def field(text: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = low if span == "*" else int(first)
        end = high if span == "*" or (step and not last) else int(last or first)
        found.update(range(begin, end + 1, int(step or 1)))
    return frozenset(found)


@cache
def fields(cron: str) -> tuple[list[frozenset[int]], bool]:
    """The numbers of each field, and whether the day must fit both the month and the week."""
    texts = cron.split()
    numbers = [field(text, low, high) for text, (low, high) in zip(texts, LIMITS, strict=True)]
    return numbers, texts[2].startswith("*") or texts[4].startswith("*")


def names(cron: str, wall: datetime) -> bool:
    """Does the expression name this time on the wall?"""
    (minutes, hours, days, months, weekdays), both = fields(cron)
    if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
        return False
    of_month = wall.day in days
    of_week = bool(weekdays & {wall.isoweekday(), wall.isoweekday() % 7})
    return (of_month and of_week) if both else (of_month or of_week)


@cache
def walls(zone: str, start: datetime, minutes: int) -> list[tuple[datetime, datetime, int]]:
    """Each minute, what the wall shows then, and whether for the second time."""
    info = ZoneInfo(zone)
    found = []
    for n in range(minutes):
        moment = start + n * MINUTE
        shown = moment.astimezone(info)
        found.append((moment, shown.replace(tzinfo=None, fold=0), shown.fold))
    return found


def searched(cron: str, zone: str, start: datetime, minutes: int) -> list[datetime]:
    """The ticks in the minutes after the first one, by asking each of them."""
    fixed = not any(text.startswith("*") for text in cron.split()[:2])
    found = []
    shown = walls(zone, start, minutes)
    for (_, before, _), (moment, wall, fold) in pairwise(shown):
        if not fixed:
            ticks_now = names(cron, wall)
        else:
            gap = int((wall - before) / MINUTE)
            left_out = [before + n * MINUTE for n in range(1, max(gap, 1))]
            ticks_now = (names(cron, wall) and not fold) or any(names(cron, w) for w in left_out)
        if ticks_now:
            found.append(moment)
    return found


def compare(cron: str, zone: str, start: datetime, days: int) -> None:
    minutes = days * 1440
    timing = ScheduleTiming(cron=cron, tz=zone)
    expected = searched(cron, zone, start, minutes)
    assert list(ticks(timing, start, start + (minutes - 1) * MINUTE)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("zone", "day"), MOMENTS)
def test_around_a_change_of_the_clock(zone: str, day: str) -> None:
    for cron in EXPRESSIONS:
        compare(cron, zone, at(day) - DAY, 3)


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    step = st.integers(1, max(2, (high - low) // 2))
    pairs = st.tuples(value, value).filter(lambda pair: pair[0] < pair[1])
    spans = pairs.map(lambda pair: f"{pair[0]}-{pair[1]}")
    return st.one_of(
        st.just("*"),
        step.map(lambda n: f"*/{n}"),
        value.map(str),
        spans,
        st.tuples(spans, step).map(lambda pair: f"{pair[0]}/{pair[1]}"),
        st.lists(value, min_size=2, max_size=4).map(lambda some: ",".join(map(str, some))),
    )


expressions = st.tuples(
    numbers(0, 59), numbers(0, 23), st.one_of(st.just("*"), numbers(1, 31)),
    st.one_of(st.just("*"), numbers(1, 12)), st.one_of(st.just("*"), numbers(0, 7)),
).map(" ".join)  # fmt: skip


@settings(
    max_examples=100,
    phases=[Phase.explicit, Phase.generate],  # to shrink would take minutes
    suppress_health_check=list(HealthCheck),
)
@given(expressions, st.sampled_from(MOMENTS))
def test_any_expression_around_any_change(cron: str, moment: tuple[str, str]) -> None:
    zone, day = moment
    try:
        check_timing(ScheduleTiming(cron=cron, tz=zone))
    except InvalidCron:
        assume(False)
    compare(cron, zone, at(day) - DAY, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("zone", "day"), MOMENTS)
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 1 * * *", "0 0 1 1 *", "*/7 3 * 2 1"])
def test_it_does_not_matter_from_where_one_looks(cron: str, zone: str, day: str) -> None:
    """From any moment, months before or in the middle of a change, the next tick is the same."""
    timing = ScheduleTiming(cron=cron, tz=zone)
    end = at(day) + 3 * DAY
    every = list(ticks(timing, at(day) - 3 * DAY, end))
    looks = [at(day) + n * timedelta(minutes=47, seconds=11) for n in range(-60, 60)]
    for look in [at(day) - 200 * DAY, at(day) - 40 * DAY, *looks]:
        later = [tick for tick in every if tick > max(look, at(day) - 3 * DAY)]
        found = first_after(timing, look)
        if look < at(day) - 3 * DAY:
            found = (
                first_after(timing, max(look, every[0] - timedelta(seconds=1))) if every else None
            )
        if later:
            assert found == later[0], look


def test_daily_in_the_hour_that_is_left_out_fires_once_at_its_end() -> None:
    timing = ScheduleTiming(cron="30 2 * * *", tz="Europe/Berlin")
    found = list(ticks(timing, at("2026-03-28T12:00"), at("2026-03-31T12:00")))
    assert found == [at("2026-03-29T01:00"), at("2026-03-30T00:30"), at("2026-03-31T00:30")]


def test_daily_in_the_hour_that_comes_twice_fires_once_hourly_at_both() -> None:
    night = (at("2026-10-24T22:00"), at("2026-10-25T03:00"))
    daily = ScheduleTiming(cron="30 1 * * *", tz="Europe/London")
    assert list(ticks(daily, *night)) == [at("2026-10-25T00:30")]
    with_seconds = ScheduleTiming(cron="0 30 1 * * *", tz="Europe/London")
    assert list(ticks(with_seconds, *night)) == [at("2026-10-25T00:30")]
    hourly = ScheduleTiming(cron="30 * * * *", tz="Europe/London")
    assert [tick.hour for tick in ticks(hourly, *night)] == [22, 23, 0, 1, 2]


def test_a_day_that_a_zone_left_out() -> None:  # there was no 30th of December 2011 in Apia
    timing = ScheduleTiming(cron="0 9 * * *", tz="Pacific/Apia")
    found = list(ticks(timing, at("2011-12-28T00:00"), at("2012-01-01T00:00")))
    assert found == [
        at("2011-12-28T19:00"), at("2011-12-29T19:00"), at("2011-12-30T10:00"),
        at("2011-12-30T19:00"), at("2011-12-31T19:00"),
    ]  # fmt: skip


@pytest.mark.parametrize("year", [2038, 2100, 2400])
def test_far_years(year: int) -> None:
    timing = ScheduleTiming(cron="14 3 19 1 *")
    assert first_after(timing, at(f"{year}-01-01")) == at(f"{year}-01-19T03:14")
    assert first_after(ScheduleTiming(every_seconds=60), at(f"{year}-01-19T03:14:08")) == at(
        f"{year}-01-19T03:15"
    )


def test_seconds_come_first() -> None:
    timing = ScheduleTiming(cron="*/20 5 12 * * *")
    assert upcoming(timing, NOON, 4) == [
        at("2026-03-01T12:05:00"), at("2026-03-01T12:05:20"), at("2026-03-01T12:05:40"),
        at("2026-03-02T12:05:00"),
    ]  # fmt: skip


@pytest.mark.parametrize("alias", ALIASES)
def test_aliases(alias: str) -> None:
    for spelt in (alias, alias.upper()):
        check_timing(ScheduleTiming(cron=spelt))
        assert upcoming(ScheduleTiming(cron=spelt), NOON, 3) == upcoming(
            ScheduleTiming(cron=ALIASES[alias]), NOON, 3
        )


@given(st.integers(1, 10**9), st.integers(0, 4 * 10**9))
@example(1, 0)
def test_intervals_count_from_1970(every: int, since: int) -> None:
    timing = ScheduleTiming(every_seconds=every)
    moment = datetime.fromtimestamp(since, UTC)
    tick = first_after(timing, moment)
    assert tick is not None
    assert 0 < (tick - moment).total_seconds() <= every
    assert tick.timestamp() % every == 0


def test_fractions_of_a_second() -> None:
    assert upcoming(ScheduleTiming(every_seconds=1.5), at("1970-01-01"), 3) == [
        at("1970-01-01T00:00:01.500"), at("1970-01-01T00:00:03"), at("1970-01-01T00:00:04.500"),
    ]  # fmt: skip


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cron",
    [
        "0 0 30 2 *", "0 0 31 4,6,9,11 *", "*/0 * * * *", "60 * * * *", "* 24 * * *", "",
        "   ", "* * * *",
        "* * * * * * *", "@reboot", "@never", "a b c d e", "5L/2 * * * *", "* * * * 5L/2",
        "* * * * 1#9",
        "1-0 * * * *", "-1 * * * *", "* " * 5000, "0" * 10_000, "² * * * *", "\x00 * * * *",
        "L * * * *",
    ],
)  # fmt: skip
def test_impossible_and_hostile_expressions_are_refused(cron: str) -> None:
    with pytest.raises(InvalidCron):
        check_timing(ScheduleTiming(cron=cron))


@settings(max_examples=300)
@given(st.text("0123456789*,-/LW#@ MONJAN?xX\t", max_size=30))
def test_whatever_is_written_is_read_or_refused(cron: str) -> None:
    try:
        check_timing(ScheduleTiming(cron=cron))
    except InvalidCron:
        return
    found = upcoming(ScheduleTiming(cron=cron), NOON, 2)
    assert found == sorted(found)
    assert words(ScheduleTiming(cron=cron))


@pytest.mark.parametrize(
    "tz", ["Mars/Base", "", "../etc/passwd", "Europe", "x" * 500, "\x00", "/etc"]
)
def test_an_unknown_zone_is_refused(tz: str) -> None:
    with pytest.raises(UnknownZone):
        check_timing(ScheduleTiming(cron="@daily", tz=tz))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, InvalidInput),
        ({"cron": "@daily", "every_seconds": 5}, InvalidInput),
        ({"every_seconds": 0.5}, OutOfRange),
        ({"every_seconds": float("nan")}, OutOfRange),
        ({"every_seconds": 5, "tz": "Europe/Berlin"}, InvalidInput),
        ({"cron": "@daily", "catch_up": "some"}, InvalidInput),
        ({"cron": "@daily", "catch_up_limit": 0}, OutOfRange),
        ({"cron": "@daily", "catch_up_limit": 1001}, OutOfRange),
        ({"cron": "@daily", "overlap": "never"}, InvalidInput),
        ({"cron": "@daily", "overlap": "skip", "catch_up": "all"}, InvalidInput),
        ({"cron": "@daily", "jitter_seconds": -1}, OutOfRange),
    ],
)
def test_wrong_timings_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ScheduleTiming(**options)


# --- missed ticks --------------------------------------------------------------------------------

TIMINGS = (
    {"cron": "*/5 * * * *"},
    {"cron": "30 2 * * *", "tz": "Europe/Berlin"},
    {"cron": "*/20 * * * * *"},
    {"cron": "0 9 * * 1-5", "tz": "America/New_York"},
    {"every_seconds": 90},
)


@settings(max_examples=200)
@given(
    st.sampled_from(TIMINGS),
    st.integers(0, 40 * 86_400),
    st.integers(1, 3 * 86_400),
    st.integers(1, 100),
)
def test_of_the_missed_ticks_what_the_policy_says(
    when: dict[str, Any], start: int, away: int, limit: int
) -> None:
    since = NOON + timedelta(seconds=start)
    until = since + timedelta(seconds=away)
    missed = list(ticks(ScheduleTiming(**when), since, until))

    def fired(policy: Any) -> list[datetime]:
        return due(ScheduleTiming(**when, catch_up=policy, catch_up_limit=limit), since, until)

    assert fired("all") == missed[-limit:]
    assert fired("latest") == missed[-1:]
    late = timedelta(seconds=GRACE_SECONDS)
    assert fired("skip") == [tick for tick in missed[-1:] if until - tick <= late]


def test_a_machine_that_was_off_for_years_does_bounded_work() -> None:
    timing = ScheduleTiming(cron="* * * * * *", catch_up="all", catch_up_limit=10)
    until = at("2026-03-01")
    assert due(timing, at("1990-01-01"), until) == [
        until - timedelta(seconds=n) for n in reversed(range(10))
    ]


# --- jitter, words, metadata ---------------------------------------------------------------------


def test_jitter_is_within_its_bound_and_the_same_for_a_tick() -> None:
    timing = ScheduleTiming(cron="* * * * *", jitter_seconds=30)
    some = upcoming(timing, NOON, 200)

    def delay(name: str, tick: datetime) -> float:
        due = due_at(timing, name, tick)
        assert due is not None
        return (due - tick).total_seconds()

    delays = [delay("a", tick) for tick in some]
    assert all(0 <= delay < 30 for delay in delays)
    assert min(delays) < 3
    assert max(delays) > 27
    assert delays == [delay("a", tick) for tick in some]
    assert delay("b", some[0]) != delays[0]
    assert due_at(ScheduleTiming(cron="* * * * *"), "a", some[0]) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cron": "0 3 * * *", "tz": "Europe/Berlin"}, "At 03:00 every day, Europe/Berlin"),
        ({"cron": "@hourly"}, "At the start of every hour, UTC"),
        ({"every_seconds": 90}, "Every 90 seconds"),
        ({"every_seconds": 1}, "Every second"),
        ({"every_seconds": 300}, "Every 5 minutes"),
        ({"every_seconds": 3600.0}, "Every hour"),
        ({"every_seconds": 172_800}, "Every 2 days"),
    ],
)
def test_in_words(options: dict[str, Any], expected: str) -> None:
    assert words(ScheduleTiming(**options)) == expected


def test_who_fired_a_job_is_read_from_its_metadata() -> None:
    text = '{"mine":1,"schedule":{"name":"nightly","tick":"2026-03-01T12:00:00Z"}}'
    assert fired_by(text) == FiredBy("nightly", NOON)
    assert str(fired_by(text)) == "schedule nightly, for the tick at 2026-03-01 12:00:00 UTC"
    for other in (None, "{}", '{"schedule":5}', '{"schedule":null}', '{"trace":"\\"schedule\\""}'):
        assert fired_by(other) is None
