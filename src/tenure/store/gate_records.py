"""What claims ask of gates, and the rows that they get."""

from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import msgspec

from tenure.rules.gates import Limits
from tenure.rules.permits import Turn, Use, WaitingTicket

GateName = tuple[str, str]
"""A gate of one queue: (queue, gate)."""

_BETWEEN = "\x1e"
"""Between the parts of a line's name. No part contains it: it is not printable."""


class OpenGate(NamedTuple):
    """A row of `open_gates`: a gate with waiting tickets, locked, and the head of its queue."""

    queue: str
    gate: str
    max_running: int | None
    rate: float | None
    per_seconds: float
    burst: int | None
    keyed: bool
    head_priority: int | None
    """Of the first ticket of the queue that needs no gate; None: there is none."""
    head_position: int | None
    now: Any
    """The time of all statements of this claim from here on."""

    @property
    def name(self) -> GateName:
        return self.queue, self.gate

    @property
    def limits(self) -> Limits:
        return Limits(
            max_running=self.max_running, rate=self.rate, per_seconds=self.per_seconds,
            burst=self.burst, keyed=bool(self.keyed),
        )  # fmt: skip


class GateQuestion(msgspec.Struct, frozen=True):
    """What a claim asks of one locked gate: a row of `look_at_gates`."""

    queue: str
    gate: str
    keyed: bool
    max_running: int | None
    rated: bool
    riders: float
    most: int
    """How many jobs the worker wants from the queue."""
    turns: int
    """How many turns to read,"""
    past_priority: int
    """behind this one."""
    past_n: int

    @property
    def name(self) -> GateName:
        return self.queue, self.gate


class LineFound(NamedTuple):
    """A line whose turn it is: how its permits are used, and its first tickets."""

    queue: str
    gate: str
    key: str
    use: Use
    running: int
    """How many jobs of this very line run."""
    starts: float | None
    """What its bucket held,"""
    age_seconds: float | None
    """and how long ago."""
    turns: Sequence[Turn]
    tickets: Sequence[WaitingTicket]
    more: bool
    """There are more tickets behind these."""
    ahead: bool
    """There may be tickets before these."""


class LinePicked(msgspec.Struct, frozen=True):
    """The tickets of one line that a claim takes: a row of `take_gated`."""

    queue: str
    gate: str
    key: str
    priority: int
    """Of the first one."""
    position: int
    last_priority: int
    """Of the last one."""
    last_position: int
    suspect: int | None
    """The position of the only suspect among them."""
    count: int


def line_of(queue: str, gate: str, key: str) -> str:
    """The name of a line at a gate as one text, as statements build it."""
    return _BETWEEN.join((queue, gate, key))


def lines_of(names: Set[str]) -> list[tuple[str, ...]]:
    """The lines (queue, gate, key) of these names."""
    return sorted(tuple(name.split(_BETWEEN)) for name in names)
