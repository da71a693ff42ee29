"""When a schedule ticks: a pure function of the schedule and the time. No clock, no database.

    first_after(timing, at)          the next tick; what everything else here is made of
    due(timing, since, until)        the ticks that are to fire now, by the policy for missed ones

Ticks are moments in UTC. A cron expression means the wall clock of its time zone, and `cronsim`
says which wall-clock times it names. Where clocks change (the rule of Debian's cron):

- An expression with a fixed hour and minute ticks once per time it names: in an hour that is left
  out, at the end of that hour; in one that comes twice, the first time.
- One whose minute or hour begins with * follows the clock: nothing in an hour that is left out,
  twice in one that comes twice.

Intervals count from 1970-01-01 00:00 UTC, so every 3600 s is on the hour for everybody.
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
from tenure.rules.limits import LONG_AGO, check_int, check_seconds

CatchUp = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip"]

MAX_CRON_LENGTH = 200
MAX_CATCH_UP = 1000
LEAST_SECONDS = 1.0
GRACE_SECONDS = 60.0
"""With catch_up="skip": a tick that is later than this counts as missed."""

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
"""Longer than any clock was ever set forward or back."""
_STEP = timedelta(hours=3)


class ScheduleTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule ticks, and what becomes of ticks that were missed or come too soon.

    `check_timing` looks whether the expression and the zone are known here. A stored one is read
    without: a machine that lacks a zone can still show it.
    """

    cron: str | None = None
    every_seconds: float | None = None
    tz: str = "UTC"
    catch_up: CatchUp = "latest"
    """Of the ticks that nobody fired in time: none, the latest, or all up to the limit."""
    catch_up_limit: int = 64
    overlap: Overlap = "allow"
    """While a job of this schedule is not finished: fire all the same, or skip the tick."""
    jitter_seconds: float = 0.0
    """Each job is due up to so much after its tick, by chance, but always the same for a tick."""

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every_seconds is None):
            raise InvalidInput("a schedule has a cron expression or every_seconds: give one")
        for name in ("cron", "tz"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidInput(f"{name} is a text, not {getattr(self, name)!r:.60}")
        if self.every_seconds is not None:
            check_seconds("every_seconds", self.every_seconds, least=LEAST_SECONDS)
            if self.tz != "UTC":
                raise InvalidInput("tz goes with a cron expression; intervals have no use for it")
        if self.catch_up not in get_args(CatchUp):
            raise InvalidInput(
                f'catch_up must be "skip", "latest" or "all", not {self.catch_up!r:.60}'
            )
        check_int("catch_up_limit", self.catch_up_limit, 1, MAX_CATCH_UP)
        if self.overlap not in get_args(Overlap):
            raise InvalidInput(f'overlap must be "allow" or "skip", not {self.overlap!r:.60}')
        if self.overlap == "skip" and self.catch_up == "all":
            raise InvalidInput(
                'catch_up="all" starts jobs side by side, which overlap="skip" forbids; '
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
    """Read it back; None for a job that no schedule has enqueued."""
    if metadata is None or '"schedule"' not in metadata:
        return None
    try:
        return _metadata_reader.decode(metadata).schedule
    except msgspec.MsgspecError:  # somebody's own metadata of that name
        return None


def check_timing(timing: ScheduleTiming) -> None:
    """Refuse what could never tick: a bad expression, an unknown zone, the 30th of February."""
    if timing.cron is None:
        return
    _zone(timing.tz)
    _expression(timing.cron)
    if first_after(timing, datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise InvalidCron(f"{timing.cron!r} names a day that never comes; give one that does")


def words(timing: ScheduleTiming) -> str:
    """The times in plain English: `At 03:00 every day, Europe/Berlin`."""
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
    """The first tick later than `at`. None: there is none within fifty years."""
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
    """Which ticks later than `since` are to fire at `until`: at most `catch_up_limit`, in order.

    When several have come, all but the last were missed; the last one was missed as well when it is
    a minute old. What happens to missed ones is the policy. The work is bounded by the limit,
    however long nobody looked.
    """
    found = _latest(timing, since, until, timing.catch_up_limit if timing.catch_up == "all" else 1)
    if timing.catch_up == "skip":
        return [tick for tick in found if until - tick <= timedelta(seconds=GRACE_SECONDS)]
    return found


def _latest(timing: ScheduleTiming, since: datetime, until: datetime, count: int) -> list[datetime]:
    """The last so many ticks: looked for further and further back."""
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
    """When the job of a tick is due: after the tick by a part of the jitter that never changes.

    None: at once, because there is no jitter.
    """
    if not timing.jitter_seconds:
        return None
    told = hashlib.sha256(f"{name}/{tick.isoformat()}".encode()).digest()
    part = int.from_bytes(told[:6]) / 2**48
    return tick + timedelta(seconds=part * timing.jitter_seconds)


class _Expression(msgspec.Struct, frozen=True):
    """A cron expression, read. `fixed`: it names hours and minutes, and no clock to follow."""

    sim: CronSim
    fixed: bool

    def first_from(self, wall: datetime, *, also: bool) -> datetime | None:
        """The first time it names after a time on the wall, or also at it."""
        sim = CronSim.__new__(CronSim)  # as `copy` does, in a tenth of the time
        sim.__dict__ = self.sim.__dict__ | {"dt": wall.replace(microsecond=0)}
        if also and not wall.microsecond:
            sim.dt -= timedelta(seconds=1)
        return next(sim, None)


@lru_cache(maxsize=1024)
def _expression(cron: str) -> _Expression:
    if len(cron) > MAX_CRON_LENGTH:
        raise InvalidCron(f"the cron expression has {len(cron)} characters, not {MAX_CRON_LENGTH}")
    text = ALIASES.get(cron.strip().lower(), cron)
    if text.strip().startswith("@"):
        raise InvalidCron(f"{cron!r} is not known; there are {', '.join(ALIASES)}")
    try:
        sim = CronSim(text, datetime(2024, 1, 1))  # noqa: DTZ001 - a wall clock has no zone
    except (CronSimError, AssertionError, TypeError, ValueError) as error:
        raise InvalidCron(
            f"{cron!r} is not a cron expression ({str(error) or 'it cannot be read'}); it has 5 "
            "fields, minute hour day month weekday, or 6 with seconds first"
        ) from error
    minute, hour = sim.parts[1], sim.parts[2]
    return _Expression(sim, not minute.startswith("*") and not hour.startswith("*"))


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    if len(name) > 100:
        raise UnknownZone(f"a time zone is named like Europe/Berlin, not {name!r:.60}")
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise UnknownZone(
            f"there is no time zone {name!r} on this machine; use a name such as Europe/Berlin, "
            "or install tzdata if the machine has no zones at all"
        ) from error


def _wall(zone: ZoneInfo, at: datetime) -> datetime:
    return at.astimezone(zone).replace(tzinfo=None)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return _wall(zone, at) - at.replace(tzinfo=None)


def _first_fixed(expression: _Expression, zone: ZoneInfo, at: datetime) -> datetime | None:
    """Each time that it names comes once, and their order on the wall is their order."""
    wall = _wall(zone, at)
    while (named := expression.first_from(wall, also=False)) is not None:
        moment = _moment(zone, named)
        if moment > at:
            return moment
        wall = named  # it has come already: this hour is there for the second time
    return None


def _moment(zone: ZoneInfo, named: datetime) -> datetime:
    """When the wall shows this: the first time if twice, the end of the gap if never."""
    moment = named.replace(tzinfo=zone).astimezone(UTC)
    if _wall(zone, moment) == named:
        return moment
    before = named.replace(tzinfo=zone, fold=1).astimezone(UTC)  # by the clock after the change
    return _change(zone, min(before, moment), max(before, moment))


def _first_by_the_clock(expression: _Expression, zone: ZoneInfo, at: datetime) -> datetime | None:
    """The first moment at which the wall shows what it names.

    Looked for from one change of the clock to the next, in stretches. Where a stretch has nothing,
    the wall cannot show the next named time before it is near, so all up to there is passed over.
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
            also = True  # a clock may be changed to just what is named
        named = expression.first_from(_wall(zone, end), also=True)
        if named is None:
            return None
        near = (named - _offset(zone, end)).replace(tzinfo=UTC) - _STRETCH
        start = max(end, near)


def _even(
    zone: ZoneInfo, start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, timedelta]]:
    """The stretch in parts of a few hours in which the clock is not changed."""
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
    """The second in which the clock is changed, between these two."""
    old = _offset(zone, before)
    low, high = int(before.timestamp()), int(after.timestamp()) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, datetime.fromtimestamp(middle, UTC)) == old:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)
