"""Gates: how many jobs may run at once, how many in a time, and whose turn it is. Pure.

    Gate("audio", max_running=1)                                # one at a time, everywhere
    Gate("doc", max_running=1, key=lambda doc_id: doc_id)       # for each document one, in order
    Gate("api", rate=10, per_seconds=1, burst=20)
    Gate("mail", fair_by="tenant")                              # tenants take turns

Jobs wait at a gate in lines, one per key, and lines take turns. With `key` each line has limits of
its own; otherwise all lines share them.
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
"""So many turns of one line may stay when one would do: to remove them takes a statement."""
SEPARATOR = "\x1f"
"""Between tenant and key. Neither can have it: it is not printable."""

KeyOf = Callable[..., object] | Literal["tenant"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate allows. None: as much as there is."""

    max_running: int | None = None
    """So many jobs at once."""
    rate: float | None = None
    """So many jobs may start in `per_seconds`."""
    per_seconds: float = 1.0
    burst: int | None = None
    """So many may start at once after a quiet time. None: as many as in `per_seconds`."""
    keyed: bool = False
    """Each key has these limits for itself."""

    def __post_init__(self) -> None:
        if self.max_running is not None:
            check_int("max_running", self.max_running, 1, MAX_RUNNING_LIMIT)
        if self.rate is not None:
            _check_rate(self.rate)
        check_seconds("per_seconds", self.per_seconds, least=0.001)
        if self.burst is not None:
            check_int("burst", self.burst, 1, MAX_BURST)
            if self.rate is None:
                raise InvalidInput("burst goes with a rate; for jobs at once give max_running")

    @property
    def capacity(self) -> float:
        """How many tokens its bucket holds."""
        if self.rate is None:
            return math.inf
        return float(self.burst or max(1, math.ceil(self.rate)))

    def filled(self, tokens: float | None, age_seconds: float) -> float:
        """A bucket that had so many tokens so long ago. A clock that went back adds none."""
        if self.rate is None or tokens is None:
            return self.capacity
        return min(self.capacity, tokens + max(0.0, age_seconds) * self.rate / self.per_seconds)

    def seconds_to_token(self, tokens: float) -> float:
        """How long until the bucket has a whole one."""
        assert self.rate is not None
        return max(0.0, (1.0 - tokens) * self.per_seconds / self.rate)


def _check_rate(rate: object) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= MAX_RATE:
        raise OutOfRange(f"rate must be above 0 and at most {MAX_RATE:g}, not {rate!r:.60}")


class Gate:
    """What a task says of its gate. `key` and `fair_by` see the arguments of each call.

    `key` and `fair_by` are functions of the task's arguments, or `"tenant"`. What they answer is
    turned into text. Tasks that name the same gate share it, and so must say the same of it.
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
                    f'{what} is a function of the task\'s arguments, or "tenant", not {given!r:.60}'
                )
        if key is not None and fair_by is not None:
            raise InvalidInput("give key or fair_by, not both: keys take turns anyway")
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
        """The key of a call, without its tenant; None where all calls stand in one line.

        The function gets those of the arguments that it has parameters for.
        """
        by = self.key if self.key is not None else self.fair_by
        if by is None or by == "tenant":
            return None if by is None else ""
        try:
            key = by(**{name: arguments[name] for name in self._wants})
        except KeyError as error:
            raise InvalidInput(
                f"the key of gate {self.name} wants {error}, which the call does not have; its "
                f"arguments are {', '.join(arguments) or 'none'}"
            ) from None
        return key if isinstance(key, str) else str(key)


def _parameters(gate: str, by: KeyOf | None) -> tuple[str, ...]:
    if by is None or isinstance(by, str):
        return ()
    params = inspect.signature(by).parameters.values()
    if any(p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in params):
        raise InvalidInput(
            f"the key of gate {gate} must name the arguments that it wants: lambda doc_id: doc_id"
        )
    return tuple(p.name for p in params)


def line_name(tenant: str, key: str | None) -> str:
    """A line as it is stored: every key contains the tenant."""
    return "" if key is None else f"{tenant}{SEPARATOR}{key}"


def shown(key: str) -> str:
    """The same as people read it."""
    tenant, _, own = key.partition(SEPARATOR)
    return f"{tenant}/{own}" if tenant and own else tenant or own


# --- what people see of it -----------------------------------------------------------------------


class GateSeen(msgspec.Struct, frozen=True):
    """A gate as anybody may see it."""

    name: str
    limits: Limits
    declared: Limits | None
    """What the code says; None: no code has said anything."""
    by_hand: bool
    """Somebody has set the limits: what code says does not count until `reset_gate`."""
    running: int
    """Places in use: a worker has one for each job that it may run at once. More jobs may be in its
    hands, which wait for one of them to end."""
    waiting: int
    lines: int
    """With how many keys somebody waits."""


class LineSeen(msgspec.Struct, frozen=True):
    """One line at a gate."""

    queue: str
    key: str
    waiting: int
    running: int


class GateWait(msgspec.Struct, frozen=True):
    """How a job stands at its gate."""

    gate: str
    running: int
    limits: Limits
    before: int
    """Jobs before it in its line, counted up to `MAX_BEFORE`."""
    token_seconds: float
    """Until the gate lets another one start, as far as its rate goes."""


# --- whose turn it is --------------------------------------------------------------------------


Waiting = Sequence[int]
"""A ticket at a gate: its priority, its place, and whether its job is a suspect."""

Limited = tuple[str, str]
"""Where a limit counts: a gate, and the key, or nothing where all keys share it."""


def limited_by(gate: str, key: str, limits: Limits) -> Limited:
    """Where the limits of a line count."""
    return gate, key if limits.keyed else ""


class Use(NamedTuple):
    """How places are used where a limit counts."""

    others: int = 0
    """Places that other workers use."""
    mine: int = 0
    """Places that this worker uses,"""
    live: int = 0
    """and its jobs there."""
    share: int | None = None
    """Its places as they are written down; None: each of its jobs has one."""

    def left(self, max_running: int, *, free: int, riders: float) -> int:
        """How many more jobs this worker may take, if it could run `free` more at once."""
        new = max(0, min(max_running - self.others - self.mine, free))
        return new + max(0, int(riders * (self.mine + new)) - (self.live - self.mine))


@dataclass(slots=True)
class Room:
    """What limits still allow to one worker; shared by the lines that share the limits."""

    running: float = math.inf
    """Places that nobody has."""
    mine: int = 0
    """Places of this worker,"""
    live: int = 0
    """its jobs that have passed,"""
    riders: float = 0.0
    """and how many of these may come along with each place."""
    share: int | None = None
    """What is written down of its places; None: each of its jobs has one."""
    tokens: float = math.inf
    taken: int = 0
    stale: bool = False
    """Its tokens are from a time to come: the clock was set back."""

    @property
    def rides(self) -> bool:
        """Do some of its jobs have no place of their own?"""
        return self.running < math.inf and self.live > self.mine

    def lets_pass(self, most: int, free: int) -> tuple[int, int]:
        """Of so many jobs, how many may pass, and how many of these get a place of their own."""
        most = int(min(most, max(0.0, self.tokens)))
        own = int(max(0, min(most, self.running, free)))
        if self.running == math.inf:
            return most, 0
        places = self.mine + own
        ride = math.floor(places * (1 + self.riders)) - self.live - own
        return own + max(0, min(most - own, ride)), own

    def take(self, jobs: int, places: int) -> None:
        """So many jobs pass."""
        self.tokens, self.taken, self.live = self.tokens - jobs, self.taken + jobs, self.live + jobs
        self.running, self.mine = self.running - places, self.mine + places


@dataclass(slots=True)
class Line:
    """The head of one line: its tickets as far as they were read, and the turns that named it.

    What has passed is always the head of `tickets`.
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
    """Jobs of this line run; the end of each writes a turn."""
    ahead: bool = False
    """There may be tickets before these: it was not read from its start."""
    passed: list[Waiting] = field(default_factory=list)
    unseen: int = 0
    """So many more may pass behind those that were read: nobody else wants a turn."""
    landed: list[int] = field(default_factory=list)
    """The jobs that have truly passed: a ticket may be void, or locked by somebody."""

    @property
    def is_empty(self) -> bool:
        """Does nobody wait in it?"""
        return not (self.tickets or self.more or self.ahead)

    @property
    def is_shut(self) -> bool:
        """Is it empty or full, or without a token, which says nothing of other lines?"""
        full = self.limits.keyed and (self.room.running < 1 or self.room.tokens < 1)
        return self.is_empty or full

    @property
    def limited(self) -> Limited:
        """Where its limits count."""
        return limited_by(self.gate, self.key, self.limits)


def admit(lines: Sequence[Line], most: dict[str, int], *, free: int) -> None:
    """Let tickets pass, one of each line in turn, as far as there is room. Notes them on the lines.

    `most` of each queue. Where a limit counts, `free` jobs in all get a place of their own; others
    come along with places that the worker has. A lower priority goes first. At most one suspect
    passes, with a place of its own, and nobody overtakes one in its line.
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
    """Nobody else is left to take turns with: as far as there are no suspects."""
    return next((n for n in range(first, len(tickets)) if tickets[n][2]), len(tickets))


class Next(NamedTuple):
    """What becomes of a line's turns: those in `gone` are used up. `again`: one at the end, which
    counts after `wait_seconds`, if these are given."""

    gone: Sequence[Sequence[int]]
    again: bool = False
    wait_seconds: float | None = None


def next_turn(line: Line, *, alone: bool) -> Next:
    """What comes after this round. `alone`: nobody else waits for a turn.

    A turn is used up when its line is empty, or when the end of a job of the same line will write
    the next one. In all other cases one stays.
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
    enough = 1 if line.is_shut else SPARE_TURNS  # of a shut one, every claim would meet them
    return Next(line.turns[1:] if len(line.turns) > enough else [])
