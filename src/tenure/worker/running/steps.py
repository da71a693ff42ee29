"""The steps of a running job: a step whose result is recorded does not run again.

A step is found by its name. The handler always gets the recorded result: encoded, then decoded
against the return annotation of the function, on the first attempt as on any other.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tenure.control import Control
from tenure.errors import InvalidInput, StepConflict, TooManySteps
from tenure.rules.codec import decode, encode
from tenure.rules.job import Json, NewStep, Step
from tenure.rules.limits import MAX_NAME_LENGTH, MAX_STEPS, check_step_name
from tenure.signature import result_type_of


class Steps:
    """The steps of one job in one attempt."""

    def __init__(self, *, known: bool) -> None:
        self.known = known
        """Whether the steps of earlier attempts have been read, or there are none."""
        self._recorded: dict[str, Step] = {}
        self._taken: set[str] = set()

    def know(self, recorded: Iterable[Step]) -> None:
        """Keep the steps that earlier attempts have recorded."""
        self._recorded = {step.name: step for step in recorded}
        self.known = True

    @contextmanager
    def taking(self, name: str, fn: Callable[..., object]) -> Iterator["Taken"]:
        """Take one step. After an error its name may be used again."""
        taken = self._find(name, fn)
        self._taken.add(name)
        try:
            yield taken
        except BaseException:
            self._taken.discard(name)
            raise

    def _find(self, name: str, fn: Callable[..., object]) -> "Taken":
        check_step_name(name)
        if name in self._taken:
            raise StepConflict(
                f"this attempt has taken a step {name!r} already, and would get the same result "
                f'again; give each step a name of its own, in a loop such as f"{name[:60]} {{n}}"'
            )
        taken = Taken(name, fn)
        if name in self._recorded:
            taken.found(self._recorded[name])
        elif len(self._recorded) + len(self._taken - self._recorded.keys()) >= MAX_STEPS:
            raise TooManySteps(
                f"step {name!r} was not run: a job has at most {MAX_STEPS:,} steps; use larger "
                "steps, or jobs of their own"
            )
        return taken


class Taken:
    """One step of this attempt. Once it is recorded, `value` is its result."""

    def __init__(self, name: str, fn: Callable[..., object]) -> None:
        self._name = name
        self._function = _name_of(fn)
        self._type: Any = result_type_of(f"step {name!r}", fn)
        self.recorded = False
        self.value: Any = None

    def found(self, step: Step) -> None:
        """An earlier attempt has recorded this step."""
        if step.function != self._function:
            raise StepConflict(
                f"step {self._name!r} was recorded by {step.function}, and this is "
                f"{self._function}; give the new one another name, or replay the job afresh"
            )
        self.recorded = True
        self.value = decode(step.result_json, self._type)

    def ran(self, result: object) -> NewStep:
        """The step has run in this attempt. Returns the record to write."""
        if isinstance(result, Control):
            raise result
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidInput(
                f"step {self._name!r} is async: use `await job.step_async({self._name!r}, ...)`"
            )
        data: Json = encode(result, what=f"the result of step {self._name!r}")
        self.value = decode(data, self._type)
        return NewStep(self._name, self._function, data)


def _name_of(fn: Callable[..., object]) -> str:
    """The function's name without its module: a script's module has another name in a child."""
    while isinstance(fn, partial):
        fn = fn.func
    name: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    return name[:MAX_NAME_LENGTH]
