"""When a schedule ticks: a pure function of the schedule and the time. No clock, no database.

    first_after(timing, at)          the next tick; all other functions use it
    due(timing, since, until)        the ticks to fire now, after the policy for missed ticks

Ticks are moments in UTC. A cron expression refers to the wall clock of its time zone, and `cronsim`
finds the wall-clock times that it names. When clocks change (the rule of Debian's cron):

- An expression with a fixed hour and minute ticks once for each time that it names. In an hour that
  is skipped, it ticks at the end of that hour; in an hour that repeats, the first time only.
- An expression whose minute or hour begins with * follows the clock: no tick in an hour that is
  skipped, two in an hour that repeats.

Intervals count from 1970-01-01 00:00 UTC, so every worker ticks on the hour with 3600 s.
"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from tenure.errors import InvalidCron, InvalidInput, UnknownZone
from tenure.rules.limits import LONG_AGO, check_int, check_seconds, take_lengths
from tenure.rules.record import Record

CatchUp = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip"]

MAX_CRON_LENGTH = 200
MAX_CATCH_UP = 1000
LEAST_SECONDS = 1.0
GRACE_SECONDS = 60.0
"""With catch_up="skip": a tick that is older than this counts as missed."""

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_MICROSECOND = timedelta(microseconds=1)
_STRETCH = timedelta(hours=30)
"""Longer than any known change of a clock."""
_STEP = timedelta(hours=3)


class ScheduleTiming(Record, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule ticks, and what happens to ticks that are missed or overlap.

    `check_timing` checks the expression and the zone. A stored timing is read without that check,
    so that a machine without the zone can still show it.
    """

    cron: str | None = None
    every_seconds: float | None = None
    tz: str = "UTC"
    catch_up: CatchUp = "latest"
    """Which missed ticks to fire: none, the latest, or all up to the limit."""
    catch_up_limit: int = 64
    overlap: Overlap = "allow"
    """While a job of this schedule is not finished: fire the next tick anyway, or skip it."""
    jitter_seconds: float = 0.0
    """Each job is due up to this time after its tick; the delay of a tick never changes."""

    def __post_init__(self) -> None:
        take_lengths(self, "every_seconds", "jitter_seconds")
        if (self.cron is None) == (self.every_seconds is None):
            raise InvalidInput("a schedule needs cron or every_seconds: give exactly one")
        for name in ("cron", "tz"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidInput(f"{name} must be a string, not {getattr(self, name)!r:.60}")
        if self.every_seconds is not None:
            check_seconds("every_seconds", self.every_seconds, least=LEAST_SECONDS)
            if self.tz != "UTC":
                raise InvalidInput("tz needs a cron expression; leave it out for intervals")
        if self.catch_up not in get_args(CatchUp):
            raise InvalidInput(
                f'catch_up must be "skip", "latest" or "all", not {self.catch_up!r:.60}'
            )
        check_int("catch_up_limit", self.catch_up_limit, 1, MAX_CATCH_UP)
        if self.overlap not in get_args(Overlap):
            raise InvalidInput(f'overlap must be "allow" or "skip", not {self.overlap!r:.60}')
        if self.overlap == "skip" and self.catch_up == "all":
            raise InvalidInput(
                'catch_up="all" starts jobs at the same time, which overlap="skip" forbids; '
                'use catch_up="latest"'
            )
        check_seconds("jitter_seconds", self.jitter_seconds)


class FiredBy(msgspec.Struct, frozen=True):
    """Which schedule enqueued a job, and for which tick; in the job's metadata as `schedule`."""

    name: str
    tick: datetime
    triggered: bool = False

    def __str__(self) -> str:
        how = "triggered" if self.triggered else "for the tick"
        return f"schedule {self.name}, {how} at {self.tick:%Y-%m-%d %H:%M:%S} UTC"


class _Metadata(msgspec.Struct):
    schedule: FiredBy | None = None


_metadata_reader = msgspec.json.Decoder(_Metadata)


def fired_by(metadata: str | None) -> FiredBy | None:
    """Read it from a job's metadata; None for a job that no schedule enqueued."""
    if metadata is None or '"schedule"' not in metadata:
        return None
    try:
        return _metadata_reader.decode(metadata).schedule
    except msgspec.MsgspecError:  # the user's own metadata with that name
        return None


def check_timing(timing: ScheduleTiming) -> None:
    """Refuse timings that can never tick: a bad expression, an unknown zone, 30 February."""
    if timing.cron is None:
        return
    _zone(timing.tz)
    _expression(timing.cron)
    if first_after(timing, datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise InvalidCron(f"{timing.cron!r} names a date that does not exist; give another")


def words(timing: ScheduleTiming) -> str:
    """The timing in plain English: `At 03:00 every day, Europe/Berlin`."""
    if timing.every_seconds is not None:
        return f"Every {_length(timing.every_seconds)}"
    assert timing.cron is not None
    return f"{_expression(timing.cron).sim.explain()}, {timing.tz}"


def _length(seconds: float) -> str:
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            count = int(seconds // size)
            return unit if count == 1 else f"{count} {unit}s"
    return "second" if seconds == 1 else f"{seconds:g} seconds"


def first_after(timing: ScheduleTiming, at: datetime) -> datetime | None:
    """The first tick later than `at`; None if there is none within fifty years."""
    if timing.every_seconds is not None:
        every = round(timing.every_seconds * 1e6)
        passed = (at - LONG_AGO) // _MICROSECOND
        return LONG_AGO + timedelta(microseconds=(passed // every + 1) * every)
    assert timing.cron is not None
    expression, zone = _expression(timing.cron), _zone(timing.tz)
    at = at.astimezone(UTC)
    if expression.fixed:
        return _first_fixed(expression, zone, at)
    return _first_by_the_clock(expression, zone, at)


def ticks(timing: ScheduleTiming, after: datetime, until: datetime) -> Iterator[datetime]:
    """All ticks later than `after` and not later than `until`, in order."""
    tick = first_after(timing, after)
    while tick is not None and tick <= until:
        yield tick
        tick = first_after(timing, tick)


def upcoming(timing: ScheduleTiming, after: datetime, count: int) -> list[datetime]:
    """The next ticks."""
    found: list[datetime] = []
    tick = first_after(timing, after)
    while tick is not None and len(found) < count:
        found.append(tick)
        tick = first_after(timing, tick)
    return found


def due(timing: ScheduleTiming, since: datetime, until: datetime) -> list[datetime]:
    """The ticks later than `since` that fire at `until`: at most `catch_up_limit`, in order.

    If several ticks have passed, all but the last were missed; the last one was missed too if it is
    more than a minute old. The policy decides about missed ticks. The limit bounds the work, no
    matter how long ago `since` is.
    """
    found = _latest(timing, since, until, timing.catch_up_limit if timing.catch_up == "all" else 1)
    if timing.catch_up == "skip":
        return [tick for tick in found if until - tick <= timedelta(seconds=GRACE_SECONDS)]
    return found


def _latest(timing: ScheduleTiming, since: datetime, until: datetime, count: int) -> list[datetime]:
    """The last `count` ticks, searched in growing steps back from `until`."""
    first = first_after(timing, since)
    if first is None or first > until:
        return []
    second = first_after(timing, first)
    if second is None or second > until:
        return [first]
    back = second - first
    while True:
        start = max(since, until - back) if back < until - since else since
        found = list(ticks(timing, start, until))
        if len(found) >= count or start == since:
            return found[-count:]
        back *= 2


def due_at(timing: ScheduleTiming, name: str, tick: datetime) -> datetime | None:
    """When the job of a tick is due: the tick plus a part of the jitter that is fixed per tick.

    None without jitter: the job is due at once.
    """
    if not timing.jitter_seconds:
        return None
    told = hashlib.sha256(f"{name}/{tick.isoformat()}".encode()).digest()
    part = int.from_bytes(told[:6]) / 2**48
    return tick + timedelta(seconds=part * timing.jitter_seconds)


_FIELDS = "write 5 fields, minute hour day month weekday, or 6 with seconds first"
_RANGES = (
    "its fields are minute 0-59, hour 0-23, day 1-31, month 1-12 and weekday 0-7 (0 and 7 are "
    "Sunday); a sixth one, before them, is seconds 0-59"
)


class _Expression(msgspec.Struct, frozen=True):
    """A parsed cron expression. `fixed`: it names hours and minutes, without a leading *."""

    sim: CronSim
    fixed: bool

    def first_from(self, wall: datetime, *, also: bool) -> datetime | None:
        """The first named time after a wall-clock time; with `also`, that time itself counts."""
        sim = CronSim.__new__(CronSim)  # as `copy` does, in a tenth of the time
        sim.__dict__ = self.sim.__dict__ | {"dt": wall.replace(microsecond=0)}
        if also and not wall.microsecond:
            sim.dt -= timedelta(seconds=1)
        return next(sim, None)


@lru_cache(maxsize=1024)
def _expression(cron: str) -> _Expression:
    if len(cron) > MAX_CRON_LENGTH:
        raise InvalidCron(
            f"the cron expression is {len(cron)} characters long; the maximum is {MAX_CRON_LENGTH}"
        )
    text = ALIASES.get(cron.strip().lower(), cron)
    if text.strip().startswith("@"):
        raise InvalidCron(f"unknown alias {cron!r}; known aliases: {', '.join(ALIASES)}")
    try:
        sim = CronSim(text, datetime(2024, 1, 1))  # noqa: DTZ001 - a wall clock has no zone
    except (CronSimError, AssertionError, TypeError, ValueError) as error:
        raise InvalidCron(
            f"{cron!r} is not a cron expression ({str(error) or 'it cannot be read'}); "
            + (_RANGES if len(cron.split()) in (5, 6) else _FIELDS)
        ) from error
    minute, hour = sim.parts[1], sim.parts[2]
    return _Expression(sim, not minute.startswith("*") and not hour.startswith("*"))


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    if len(name) > 100:
        raise UnknownZone(f"tz must be a name such as Europe/Berlin, not {name!r:.60}")
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise UnknownZone(
            f"there is no time zone {name!r} on this machine; use a name such as Europe/Berlin, "
            "or install tzdata if the machine has no time zones"
        ) from error


def _wall(zone: ZoneInfo, at: datetime) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return _wall(zone, at) - at.replace(tzinfo=None)


def _first_fixed(expression: _Expression, zone: ZoneInfo, at: datetime) -> datetime | None:
    """Each named time ticks once, and ticks have the order of the wall-clock times."""
    wall = _wall(zone, at)
    while (named := expression.first_from(wall, also=False)) is not None:
        moment = _moment(zone, named)
        if moment > at:
            return moment
        wall = named  # this tick has passed already: the hour repeats
    return None


def _moment(zone: ZoneInfo, named: datetime) -> datetime:
    """The moment of a wall-clock time: the first if it repeats, the end of the gap if skipped."""
    moment = named.replace(tzinfo=zone).astimezone(UTC)
    if _wall(zone, moment) == named:
        return moment
    before = named.replace(tzinfo=zone, fold=1).astimezone(UTC)  # by the clock after the change
    return _change(zone, min(before, moment), max(before, moment))


def _first_by_the_clock(expression: _Expression, zone: ZoneInfo, at: datetime) -> datetime | None:
    """The first moment at which the wall clock shows a named time.

    The search goes stretch by stretch, and within a stretch from one change of the clock to the
    next. If a stretch has no tick, the search jumps to just before the next named time.
    """
    start, also = at, False
    while True:
        end = start + _STRETCH
        for begin, stop, offset in _even(zone, start, end):
            wall = begin.replace(tzinfo=None) + offset
            named = expression.first_from(wall, also=also)
            if named is None:
                return None
            moment = (named - offset).replace(tzinfo=UTC)
            if moment < stop:
                return moment
            also = True  # a change may set the clock to exactly a named time
        named = expression.first_from(_wall(zone, end), also=True)
        if named is None:
            return None
        near = (named - _offset(zone, end)).replace(tzinfo=UTC) - _STRETCH
        start = max(end, near)


def _even(
    zone: ZoneInfo, start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, timedelta]]:
    """The stretch in parts of a few hours in which the clock does not change."""
    begin = start
    offset = _offset(zone, start)
    while begin < end:
        ahead = min(end, begin + _STEP)
        later = _offset(zone, ahead)
        if later != offset:
            ahead = _change(zone, begin, ahead)
        yield begin, ahead, offset
        begin, offset = ahead, later


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The second at which the clock changes, between these two."""
    old = _offset(zone, before)
    low, high = int(before.timestamp()), int(after.timestamp()) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, datetime.fromtimestamp(middle, UTC)) == old:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)
