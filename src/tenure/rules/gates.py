"""Gates: how many jobs may run at once or start per period, and which line is next. Pure.

    Gate("audio", max_running=1)                                # one at a time, in all workers
    Gate("doc", max_running=1, key=lambda doc_id: doc_id)       # one per document, in order
    Gate("api", rate=10, per_seconds=1, burst=20)
    Gate("mail", fair_by="tenant")                              # tenants take turns

Jobs wait at a gate in lines, one line per key, and the lines take turns. With `key` the limits
apply to each line separately; otherwise all lines share them.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, Literal, NamedTuple

import msgspec

from tenure.errors import InvalidInput, OutOfRange
from tenure.rules.limits import check_int, check_name, check_seconds

MAX_RUNNING_LIMIT = 1_000_000
MAX_RATE = 1e6
MAX_BURST = 1_000_000
MAX_BEFORE = 1000
SPARE_TURNS = 8
"""How many turns of one line may stay although one is enough: to remove them costs a statement."""
SEPARATOR = "\x1f"
"""Stands between tenant and key. It is not printable, so neither can contain it."""

KeyOf = Callable[..., object] | Literal["tenant"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
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
        """How many starts may be saved up."""
        if self.rate is None:
            return math.inf
        return float(self.burst or max(1, math.ceil(self.rate)))

    def filled(self, tokens: float | None, age_seconds: float) -> float:
        """The starts that are saved up now, if there were `tokens` of them `age_seconds` ago.

        A negative age adds none: the clock was set back.
        """
        if self.rate is None or tokens is None:
            return self.capacity
        return min(self.capacity, tokens + max(0.0, age_seconds) * self.rate / self.per_seconds)

    def seconds_to_token(self, tokens: float) -> float:
        """How long until the next start is allowed."""
        assert self.rate is not None
        return max(0.0, (1.0 - tokens) * self.per_seconds / self.rate)


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
    ) -> None:
        check_name("gate", name)
        for what, given in (("key", key), ("fair_by", fair_by)):
            if not (given is None or given == "tenant" or callable(given)):
                raise InvalidInput(
                    f'{what} must be a function of the task\'s arguments or "tenant", '
                    f"not {given!r:.60}"
                )
        if key is not None and fair_by is not None:
            raise InvalidInput("give key or fair_by, not both: keys always take turns")
        self.name = name
        self.key, self.fair_by = key, fair_by
        self._wants = _parameters(name, key if key is not None else fair_by)
        self.limits = Limits(
            max_running=max_running, rate=rate, per_seconds=per_seconds, burst=burst,
            keyed=key is not None,
        )  # fmt: skip

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


class GateSeen(msgspec.Struct, frozen=True):
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


class LineSeen(msgspec.Struct, frozen=True):
    """One line at a gate."""

    queue: str
    key: str
    waiting: int
    running: int


class GateWait(msgspec.Struct, frozen=True):
    """What a job waits for at its gate."""

    gate: str
    running: int
    limits: Limits
    before: int
    """Jobs before it in its line, counted up to `MAX_BEFORE`."""
    token_seconds: float
    """Time until the rate of the gate allows another start."""


# --- which line is next --------------------------------------------------------------------------


Waiting = Sequence[int]
"""A ticket at a gate: its priority, its position, and whether its job is a suspect."""

Limited = tuple[str, str]
"""What a limit applies to: a gate and a key; the key is empty if all keys share the limit."""


def limited_by(gate: str, key: str, limits: Limits) -> Limited:
    """What the limits of a line apply to."""
    return gate, key if limits.keyed else ""


class Use(NamedTuple):
    """The permits in use under one limit."""

    others: int = 0
    """Permits of other workers."""
    mine: int = 0
    """Permits of this worker."""
    live: int = 0
    """Claimed jobs of this worker."""
    share: int | None = None
    """Its permits as stored in `gate_share`; None: each of its jobs has one."""

    def left(self, max_running: int, *, free: int, riders: float) -> int:
        """How many more jobs this worker may take, if it could run `free` more at once."""
        new = max(0, min(max_running - self.others - self.mine, free))
        return new + max(0, int(riders * (self.mine + new)) - (self.live - self.mine))


@dataclass(slots=True)
class Room:
    """What the limits still allow to one worker. Lines that share limits share one Room."""

    running: float = math.inf
    """Free permits."""
    mine: int = 0
    """Permits of this worker."""
    live: int = 0
    """Claimed jobs of this worker."""
    riders: float = 0.0
    """How many more jobs the worker may claim per permit, to run them one after the other."""
    share: int | None = None
    """Its permits as stored in `gate_share`; None: each of its jobs has one."""
    tokens: float = math.inf
    """Starts that the rate allows."""
    taken: int = 0
    stale: bool = False
    """The starts were stored with a time in the future: the clock was set back."""

    @property
    def rides(self) -> bool:
        """Does the worker have more jobs than permits?"""
        return self.running < math.inf and self.live > self.mine

    def lets_pass(self, most: int, free: int) -> tuple[int, int]:
        """Of `most` jobs, how many may pass, and how many new permits they take."""
        most = int(min(most, max(0.0, self.tokens)))
        own = int(max(0, min(most, self.running, free)))
        if self.running == math.inf:
            return most, 0
        places = self.mine + own
        ride = math.floor(places * (1 + self.riders)) - self.live - own
        return own + max(0, min(most - own, ride)), own

    def take(self, jobs: int, places: int) -> None:
        """Count the jobs that pass and the permits that they take."""
        self.tokens, self.taken, self.live = self.tokens - jobs, self.taken + jobs, self.live + jobs
        self.running, self.mine = self.running - places, self.mine + places


@dataclass(slots=True)
class Line:
    """The head of one line: the tickets that were read, and the turns that point to the line.

    The tickets that have passed are always the first of `tickets`.
    """

    queue: str
    gate: str
    key: str
    limits: Limits
    room: Room
    turns: Sequence[Sequence[int]]
    tickets: Sequence[Waiting]
    more: bool
    """There are more tickets behind these."""
    holders: bool
    """Jobs of this line run. When one ends, it writes a turn."""
    ahead: bool = False
    """There may be tickets before these: the line was not read from its start."""
    passed: list[Waiting] = field(default_factory=list)
    unseen: int = 0
    """How many more tickets may pass after `tickets`: no other line waits for a turn."""
    landed: list[int] = field(default_factory=list)
    """The jobs that have passed in the database: a ticket may be void or locked."""

    @property
    def is_empty(self) -> bool:
        """Does the line have no tickets?"""
        return not (self.tickets or self.more or self.ahead)

    @property
    def is_shut(self) -> bool:
        """Is the line empty, or at a limit of its own?"""
        full = self.limits.keyed and (self.room.running < 1 or self.room.tokens < 1)
        return self.is_empty or full

    @property
    def limited(self) -> Limited:
        """What its limits apply to."""
        return limited_by(self.gate, self.key, self.limits)


def admit(lines: Sequence[Line], most: dict[str, int], *, free: int) -> None:
    """Let tickets pass, one from each line in turn, while the limits allow it. Stores them in the
    lines.

    At most `most` tickets pass per queue. Jobs under a limit take at most `free` new permits
    together; further jobs share the permits that the worker has. Lower priorities go first. At most
    one suspect passes, with its own permit, and no ticket overtakes a suspect of its line.
    """
    suspects = True
    heads = [(line.tickets[0][0], 0, n) for n, line in enumerate(lines) if line.tickets]
    heapify(heads)
    while heads:
        _, first, n = heappop(heads)
        line = lines[n]
        ticket, queue = line.tickets[first], line.queue
        if ticket[2]:
            jobs, own = line.room.lets_pass(min(1, most[queue]), free)
            if not suspects or not jobs or (not own and line.limits.max_running is not None):
                continue
            suspects, last = False, first + 1
        else:
            last = first + 1 if heads else _next_suspect(line.tickets, first)
            jobs, own = line.room.lets_pass(min(last - first, most[queue]), free)
        line.room.take(jobs, own)
        free -= own
        most[queue] -= jobs
        line.passed += line.tickets[first : first + jobs]
        if first + jobs == last < len(line.tickets):
            heappush(heads, (line.tickets[last][0], last, n))
    if len(lines) == 1 and lines[0].more and len(lines[0].passed) == len(lines[0].tickets):
        [line] = lines
        line.unseen, own = line.room.lets_pass(most[line.queue], free)
        line.room.take(line.unseen, own)


def _next_suspect(tickets: Sequence[Waiting], first: int) -> int:
    """No other line is left: all tickets up to the next suspect may pass together."""
    return next((n for n in range(first, len(tickets)) if tickets[n][2]), len(tickets))


class Next(NamedTuple):
    """What happens to a line's turns. The turns in `gone` are deleted. `again`: a new turn is added
    at the end; with `wait_seconds` it counts after that time."""

    gone: Sequence[Sequence[int]]
    again: bool = False
    wait_seconds: float | None = None


def next_turn(line: Line, *, alone: bool) -> Next:
    """The turns of a line after this round. `alone`: no other line waits for a turn.

    A turn is deleted when its line is empty, or when a running job of the same line will write the
    next one at its end. In all other cases one turn stays.
    """
    landed = len(line.landed)
    all_landed = landed == len(line.passed) + line.unseen
    if all_landed and landed == len(line.tickets) and not line.more and not line.ahead:
        return Next(line.turns)
    runs = line.holders or landed > 0
    if line.room.running < 1 and line.limits.keyed and runs and all_landed:
        return Next(line.turns)
    if line.room.tokens < 1 and line.limits.rate is not None:
        wait = line.limits.seconds_to_token(line.room.tokens)
        return Next(line.turns, again=True, wait_seconds=wait)
    if line.passed and not alone:
        return Next(line.turns, again=True)
    enough = 1 if line.is_shut else SPARE_TURNS  # every claim would read the turns of a shut line
    return Next(line.turns[1:] if len(line.turns) > enough else [])
