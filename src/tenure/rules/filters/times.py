"""Moments: `2h` (ago), `+2h` (from now), `now`, `today`, `yesterday`, `2026-01-31T08:00+01:00`."""

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from tenure.errors import InvalidInput
from tenure.rules.filters.terms import Moment, Span
from tenure.rules.limits import MAX_SECONDS, check_time

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LENGTH = re.compile(r"([+-]?)((?:\d{1,12}(?:\.\d{1,6})?[smhdw])+)")
_PART = re.compile(r"([\d.]+)([smhdw])")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d.*))?", re.ASCII)
HELP = "write 2h (ago), +2h (from now), today, 2026-01-31 or 2026-01-31T08:00+01:00"


def compared(op: str, text: str, zone: str) -> Span:
    """The times that are `= < <= > >=` a moment. A date stands for its whole day."""
    low, high = _ends(text, zone)
    whole = low != high
    match op:
        case "=":
            return Span(low, high, high_in=not whole)
        case ">":
            return Span(high, None, low_in=whole)
        case ">=":
            return Span(low, None)
        case "<":
            return Span(None, low, high_in=False)
    return Span(None, high, high_in=not whole)


def between(first: str, last: str, zone: str) -> Span:
    """From a moment to a moment, both included; an empty text is no end."""
    low = compared(">=", first, zone).low if first else None
    until = compared("<=", last, zone) if last else Span()
    return Span(low, until.high, high_in=until.high_in)


def _ends(text: str, zone: str) -> tuple[Moment | datetime, Moment | datetime]:
    """The start and the end of a moment: the same, or a day apart."""
    if text == "now":
        return Moment(), Moment()
    if text in ("today", "yesterday"):
        days = 0 if text == "today" else -1
        return Moment(days=days, zone=zone), Moment(days=days + 1, zone=zone)
    if length := _LENGTH.fullmatch(text):
        seconds = sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(length[2]))
        if seconds > MAX_SECONDS:
            raise InvalidInput(f"{text!r:.60} is more than a hundred years; {HELP}")
        moment = Moment(seconds if length[1] == "+" else -seconds)
        return moment, moment
    found = _DATE.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{text!r:.60} is not a time; {HELP}")
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            at = at.replace(tzinfo=ZoneInfo(zone))
        check_time(text, at)
        if found[2] is not None:
            return at, at
        after = at + timedelta(days=1)
        check_time(text, after)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{text!r:.60} is not a time ({error}); {HELP}") from error
    return at, after
