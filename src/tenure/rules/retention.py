"""How long finished jobs are kept, and whether the clock can be trusted to delete them.

A length of 0 means not at all, and `math.inf` for ever. The task's length comes first, then that of
the worker that ends the job, then the default of `prune`.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from tenure.errors import InvalidInput
from tenure.rules.limits import check_name, check_seconds, not_this, seconds_of

FOREVER_SECONDS = 3e11
"""How `math.inf` is stored: with this the end lies behind the year 9000, where times end."""

JUMP = timedelta(days=8)
"""A clock this far ahead of the last prune is doubted."""
PROBATION = timedelta(days=1)
"""A doubted clock is trusted after it has gone on for this long."""
PROBATION_ENDS = timedelta(days=60)
"""A clock that has moved by more than this since the doubt began has jumped again."""
HOPELESS = timedelta(days=365)
"""A clock this far ahead of the last prune is trusted only if an operator says so."""


def stored_keep(what: str, seconds: "float | timedelta | None") -> float | None:
    """A length as it is stored. Refuses what is none; `math.inf` is for ever."""
    if seconds is None:
        return None
    seconds = seconds_of(seconds)
    if seconds in (math.inf, FOREVER_SECONDS):
        return FOREVER_SECONDS
    check_seconds(what, seconds)
    return seconds


def take_keeps(record: msgspec.Struct) -> None:
    """For a new record with both lengths: check them, and bring them into the stored form."""
    for name in ("keep_succeeded_seconds", "keep_other_seconds"):
        msgspec.structs.force_setattr(record, name, stored_keep(name, getattr(record, name)))


class Keep(msgspec.Struct, frozen=True):
    """How long a worker keeps finished jobs that do not say it themselves. None: the default."""

    succeeded_seconds: float | None = None
    other_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("succeeded_seconds", "other_seconds"):
            value = stored_keep(f"keep: {name}", getattr(self, name))
            msgspec.structs.force_setattr(self, name, value)


def check_keep(keep: object) -> None:
    """Accept how long finished jobs of each queue are kept."""
    if not isinstance(keep, Mapping) or not all(isinstance(k, Keep) for k in keep.values()):
        raise InvalidInput(
            f"keep must map names of queues to Keep(succeeded_seconds=...), {not_this(keep)}"
        )
    for queue in keep:
        check_name("queue", queue)


class Verdict(StrEnum):
    """What `prune` does with the time that the clock shows."""

    TRUST = "trust"
    BEGIN_DOUBT = "begin doubt"
    DOUBT = "doubt"


def judge_clock(now: datetime, trusted_at: datetime, doubted_at: datetime | None) -> Verdict:
    """May jobs be deleted by this clock? `trusted_at` is the time of the last prune.

    A clock that is far ahead is doubted first. It may be wrong, or no prune has run for a while.
    After a day it is trusted, unless it is a year ahead: then an operator has to say so. A clock
    that is behind deletes too little, which harms nothing.
    """
    if now - trusted_at <= JUMP:
        return Verdict.TRUST
    if doubted_at is None or not doubted_at <= now <= doubted_at + PROBATION_ENDS:
        return Verdict.BEGIN_DOUBT
    if now - doubted_at < PROBATION or now - trusted_at > HOPELESS:
        return Verdict.DOUBT
    return Verdict.TRUST
