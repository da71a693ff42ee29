"""The machine: one story, told to the model and to the stores, answer by answer.

A story is a list of steps, and a step is a rule's name with a seed. What the step does is drawn
when its turn comes, from the state in which the model then is. A story is made from one number, so
that number replays it. When a store answers otherwise than the model, steps are dropped while the
story still fails; what is left is printed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from random import Random
from typing import Any, NamedTuple

import msgspec

from tests.model import rules
from tests.model.books import Held, JobId, LeaseId, Wish
from tests.model.rows import add_void_ticket, differences, expected_rows, stored_rows
from tests.model.rules import CLOCK, RULES, VOID, WEIGHTS, Scene
from tests.model.sides import Op, Side, comparable, perform_on_model
from tests.support.audit import check

STORY_LENGTH = 150
SHRINK_SECONDS = 60.0


class Step(NamedTuple):
    """One rule, and the seed from which it draws."""

    rule: str
    seed: int


class Differs(AssertionError):
    """A store does not do what the model does."""


class Story:
    """Runs steps on fresh tables and keeps an account of them."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self.sides = sides
        self.scene = Scene()
        self.lines: list[str] = []
        self.compared = 0
        for side in sides:
            side.start()

    def tell(self, steps: Sequence[Step]) -> None:
        """Run all steps, then compare all that is stored."""
        for step in steps:
            self._take(step)
        self._compare_rows()

    def _take(self, step: Step) -> None:
        rnd = Random(step.seed)
        if step.rule == CLOCK:
            self.scene.now = rules.later(self.scene, rnd)
            self.lines.append(f"the clock shows {_show(self.scene.now)}")
        elif step.rule == VOID:
            queue, priority, id, token = rules.stale_ticket(self.scene, rnd)
            self.lines.append(f"a void ticket: {queue} {priority}: job {id}, token {token}")
            self.scene.model.add_void_ticket((queue, priority), id, token)
            for side in self.sides:
                add_void_ticket(side, queue, priority, id, token)
        else:
            op = RULES[step.rule][1](self.scene, rnd)
            if op is not None:
                self._send(op)

    def _send(self, op: Op) -> None:
        expected = perform_on_model(self.scene.model, op)
        self.lines.append(f"{_show(op)}\n       = {_show(expected)}")
        for side in self.sides:
            answer = side.perform(op, expected)
            self.compared += 1
            if comparable(answer) != comparable(expected):
                raise _differs(side, comparable(answer), comparable(expected))
        self.scene.remember(op, expected)

    def _compare_rows(self) -> None:
        self._send(self.scene.op("list_jobs", limit=100))
        expected = expected_rows(self.scene.model)
        for side in self.sides:
            wrong = differences(expected, stored_rows(side))
            if wrong:
                raise Differs(
                    f"{side.style} has stored other rows\n      " + "\n      ".join(wrong)
                )
            try:
                check(side.plain)
            except AssertionError as error:
                raise Differs(f"{side.style}: {error}") from error


def steps_of(seed: int, length: int = STORY_LENGTH) -> list[Step]:
    """The story that belongs to a number."""
    rnd = Random(seed)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    return [Step(name, rnd.getrandbits(32)) for name in rnd.choices(names, weights, k=length)]


def run(seed: int, sides: Sequence[Side], length: int = STORY_LENGTH) -> int:
    """Tell one story. Answers how many answers were compared; raises `Differs` with a short one."""
    steps = steps_of(seed, length)
    story = Story(sides)
    try:
        story.tell(steps)
    except Differs:
        raise Differs(_report(seed, shrink(steps, sides), sides)) from None
    return story.compared


def fails(steps: Sequence[Step], sides: Sequence[Side]) -> bool:
    """Does this story still show a difference?"""
    try:
        Story(sides).tell(steps)
    except Differs:
        return True
    return False


def shrink(
    steps: list[Step], sides: Sequence[Side], limit_seconds: float = SHRINK_SECONDS
) -> list[Step]:
    """Drop steps, many at first and then one by one, while the story still fails."""
    deadline = time.monotonic() + limit_seconds
    size = len(steps) // 2
    while size >= 1:
        start, dropped = 0, False
        while start < len(steps) and time.monotonic() < deadline:
            shorter = steps[:start] + steps[start + size :]
            if fails(shorter, sides):
                steps, dropped = shorter, True
            else:
                start += size
        if time.monotonic() >= deadline:
            break
        size = size if dropped and size == 1 else size // 2
    return steps


def _report(seed: int, steps: Sequence[Step], sides: Sequence[Side]) -> str:
    story = Story(sides)
    try:
        story.tell(steps)
    except Differs as error:
        account = "\n".join(f"{n:3}  {line}" for n, line in enumerate(story.lines, 1))
        where = " + ".join(side.style for side in sides)
        head = f"seed {seed} on {where}, shrunk to {len(steps)} steps"
        return f"{head}\n{account}\n  !!  {error}"
    raise AssertionError(f"seed {seed} does not fail again when it is repeated")


def _differs(side: Side, answer: Any, expected: Any) -> Differs:
    """Of two lists of equal length, only what is not equal is shown."""
    if isinstance(answer, list) and isinstance(expected, list) and len(answer) == len(expected):
        pairs = [(a, e) for a, e in zip(answer, expected, strict=True) if a != e]
        answer, expected = [a for a, _ in pairs], [e for _, e in pairs]
    return Differs(
        f"{side.style} answers\n      {_show(answer)}\n      and not\n      {_show(expected)}"
    )


def _show(value: object) -> str:
    """Short and readable: times count from the start, and what is empty stays out."""
    match value:
        case datetime():
            return f"{(value - rules.START).total_seconds():+g}s"
        case Enum():
            return str(value.value)
        case Op():
            parts = [_show(part) for part in value.args]
            parts += [f"{name}={_show(part)}" for name, part in value.options.items()]
            notes = [value.lost.value] if value.lost.value else []
            notes += [f"as tenant {value.tenant}"] if value.tenant else []
            return f"{value.name}({', '.join(parts)}) {'; '.join(notes)}".rstrip()
        case Wish():
            parents = f" after {_show(value.parents)}" if value.parents else ""
            return _show(value.job) + parents
        case Held():
            return f"Held({int(value.id)}, token={value.token}, lease={int(value.lease_id)})"
        case JobId() | LeaseId():
            return str(int(value))
        case tuple() | list():
            return f"[{', '.join(_show(part) for part in value)}]"
        case dict():
            return f"{{{', '.join(f'{_show(k)}: {_show(v)}' for k, v in value.items())}}}"
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            told = [f"{name}={_show(part)}" for name, part in fields.items() if part]
            return f"{type(value).__name__}({', '.join(told)})"
    return repr(value)
