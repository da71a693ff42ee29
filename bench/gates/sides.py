"""A worker that claims riders at gates, and one that does not."""

from __future__ import annotations

from collections.abc import Callable

from tenure.worker.claiming.claimer import Claimer

WITH, WITHOUT = "with riders", "without riders"
MILLISECONDS = (0, 1, 5, 20)
"""How long the jobs sleep."""


def task_name(milliseconds: int) -> str:
    """The name of the task that sleeps for this long."""
    return f"sleep.{milliseconds}ms"


def _as_it_is() -> None:
    """Change nothing."""


def _no_riders() -> None:
    """The worker claims no more jobs at a gate than it may run there."""
    Claimer._riders = lambda *_: 0.0  # type: ignore[method-assign]


SIDES: dict[str, Callable[[], None]] = {WITH: _as_it_is, WITHOUT: _no_riders}
