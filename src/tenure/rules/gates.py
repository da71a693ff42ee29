"""Gates: how many jobs may run at once, and how many may start per period. Pure.

    Gate("audio", max_running=1)                                # one at a time, in all workers
    Gate("doc", max_running=1, key=lambda doc_id: doc_id)       # one per document, in order
    Gate("api", rate=10, per_seconds=1, burst=20)
    Gate("mail", fair_by="tenant")                              # tenants take turns

Jobs wait at a gate in lines, one line per key, and the lines take turns. With `key` the limits
apply to each line separately; otherwise all lines share them.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Never

import msgspec

from tenure.errors import InvalidInput, OutOfRange
from tenure.rules.limits import check_int, check_name, check_seconds
from tenure.rules.record import Record

MAX_RUNNING_LIMIT = 1_000_000
MAX_RATE = 1e6
MAX_BURST = 1_000_000
MAX_BEFORE = 1000
SEPARATOR = "\x1f"
"""Stands between tenant and key. It is not printable, so neither can contain it."""

KeyOf = Callable[..., object] | Literal["tenant"]


class Limits(Record, msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a gate. None: no limit."""

    max_running: int | None = None
    """How many jobs may run at once."""
    rate: float | None = None
    """How many jobs may start per `per_seconds`."""
    per_seconds: float = 1.0
    burst: int | None = None
    """How many jobs may start at once after a quiet period. None: as many as per `per_seconds`."""
    keyed: bool = False
    """The limits apply to each key separately."""

    def __post_init__(self) -> None:
        if self.max_running is not None:
            check_int("max_running", self.max_running, 1, MAX_RUNNING_LIMIT)
        if self.rate is not None:
            _check_rate(self.rate)
        check_seconds("per_seconds", self.per_seconds, least=0.001)
        if self.burst is not None:
            check_int("burst", self.burst, 1, MAX_BURST)
            if self.rate is None:
                raise InvalidInput("burst needs a rate; to limit running jobs give max_running")

    @property
    def capacity(self) -> float:
        """How many jobs may start at once after a quiet time."""
        if self.rate is None:
            return math.inf
        return float(self.burst or max(1, math.ceil(self.rate)))

    def filled(self, starts: float | None, age_seconds: float) -> float:
        """How many jobs may start by the rate, if it was `starts` this long ago.

        A clock that was set back adds none.
        """
        if self.rate is None or starts is None:
            return self.capacity
        return min(self.capacity, starts + max(0.0, age_seconds) * self.rate / self.per_seconds)

    def seconds_to_start(self, starts: float) -> float:
        """How long until one more job may start."""
        assert self.rate is not None
        return max(0.0, (1.0 - starts) * self.per_seconds / self.rate)


def _check_rate(rate: object) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= MAX_RATE:
        raise OutOfRange(f"rate must be above 0 and at most {MAX_RATE:g}, not {rate!r:.60}")


class Gate:
    """A gate as a task declares it.

    `key` and `fair_by` are functions of the arguments of each call, or `"tenant"`. Their results
    are converted to text. Tasks that name the same gate share it and must declare the same limits.
    """

    __slots__ = ("_wants", "fair_by", "key", "limits", "name")

    def __init__(
        self,
        name: str,
        *,
        max_running: int | None = None,
        rate: float | None = None,
        per_seconds: float = 1.0,
        burst: int | None = None,
        key: KeyOf | None = None,
        fair_by: KeyOf | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise InvalidInput(
                f"a gate has no option {min(unknown)!r}; its options are max_running, rate, "
                "per_seconds, burst, key and fair_by"
            )
        check_name("gate", name)
        for what, given in (("key", key), ("fair_by", fair_by)):
            if not (given is None or given == "tenant" or callable(given)):
                raise InvalidInput(
                    f'{what} must be a function of the task\'s arguments or "tenant", '
                    f"not {given!r:.60}"
                )
        if key is not None and fair_by is not None:
            raise InvalidInput("give key or fair_by, not both: keys always take turns")
        if per_seconds != 1.0 and rate is None:
            raise InvalidInput("per_seconds needs a rate: rate=10, per_seconds=60")
        self.name = name
        self.key, self.fair_by = key, fair_by
        self._wants = _parameters(name, key if key is not None else fair_by)
        self.limits = Limits(
            max_running=max_running, rate=rate, per_seconds=per_seconds, burst=burst,
            keyed=key is not None,
        )  # fmt: skip
        if max_running is None and rate is None and fair_by is None:
            turns = "" if key is None else ", or fair_by instead of key to let the lines take turns"
            raise InvalidInput(f"gate {name} limits nothing: give max_running or rate{turns}")

    def __repr__(self) -> str:
        return f"<Gate {self.name}>"

    def line_of(self, arguments: Mapping[str, Any]) -> str | None:
        """The key of a call, without its tenant; None if all calls share one line.

        The key function receives the arguments that it has parameters for.
        """
        by = self.key if self.key is not None else self.fair_by
        if by is None or by == "tenant":
            return None if by is None else ""
        try:
            key = by(**{name: arguments[name] for name in self._wants})
        except KeyError as error:
            raise InvalidInput(
                f"the key of gate {self.name} needs the argument {error}, which the call does not "
                f"have; the arguments of the call: {', '.join(arguments) or 'none'}"
            ) from None
        return key if isinstance(key, str) else str(key)


def _parameters(gate: str, by: KeyOf | None) -> tuple[str, ...]:
    if by is None or isinstance(by, str):
        return ()
    params = inspect.signature(by).parameters.values()
    if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in params):
        raise InvalidInput(
            f"the key of gate {gate} must name its parameters, as in lambda doc_id: doc_id"
        )
    return tuple(p.name for p in params)


def line_name(tenant: str, key: str | None) -> str:
    """The stored name of a line: the key with its tenant."""
    return "" if key is None else f"{tenant}{SEPARATOR}{key}"


def shown(key: str) -> str:
    """The stored name of a line in readable form."""
    tenant, _, own = key.partition(SEPARATOR)
    return f"{tenant}/{own}" if tenant and own else tenant or own


# --- what clients read ---------------------------------------------------------------------------


class GateSeen(Record, msgspec.Struct, frozen=True):
    """A gate as read from the store."""

    name: str
    limits: Limits
    declared: Limits | None
    """The limits that code declares; None: no code declares this gate."""
    by_hand: bool
    """An operator has set the limits: they override the declared limits until `reset_gate`."""
    running: int
    """Permits in use: a worker has one for each job that it may run at once. It may have claimed
    more jobs, which wait in the worker for a permit."""
    waiting: int
    lines: int
    """How many lines have waiting jobs."""


class LineSeen(Record, msgspec.Struct, frozen=True):
    """One line at a gate."""

    queue: str
    key: str
    waiting: int
    running: int


class GateWait(Record, msgspec.Struct, frozen=True):
    """What a job waits for at its gate."""

    gate: str
    running: int
    limits: Limits
    before: int
    """Jobs before it in its line, counted up to `MAX_BEFORE`."""
    start_seconds: float
    """Until the gate lets another one start, as far as its rate goes."""
