"""The ways in which a worker may claim jobs at gates, each as a patch of the worker process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from tenure.job import Lease
from tenure.store import claim, gates
from tenure.store.session import Row, Scope, Tx, Wanted
from tenure.worker.claimer import Claimer

WITH, WITHOUT, AT_ONCE = "with riders", "without riders", "answered at once"
POLL_SECONDS = 0.05
MILLISECONDS = (0, 1, 5, 20)
"""How long the jobs sleep."""


def task_name(milliseconds: int) -> str:
    """The name of the task that sleeps for so many milliseconds."""
    return f"sleep.{milliseconds}ms"


def _as_it_is() -> None:
    """Change nothing."""


def _no_riders() -> None:
    """The worker claims no more jobs at a gate than it may run there."""
    Claimer._riders = lambda *_: 0.0  # type: ignore[method-assign]


def _answered_at_once() -> None:
    """No riders, and two needless waits are gone.

    A claim that saw no job without a gate (`open_gates` reads the head of that queue anyway) does
    not look for one before it returns. A worker polls every 50 ms, not every 5 ms: its own
    settlements and the bell wake it.
    """
    _no_riders()
    bare: set[str] = set()
    """Queues without a job outside gates, as the last claim saw them."""

    async def look(tx: Tx, wanted: Wanted, **options: Any) -> gates.Passed:
        open_gates = tx.open_gates

        async def noted(queues: Collection[str]) -> list[Row]:
            rows = await open_gates(queues)
            bare.clear()
            bare.update(row[0] for row in rows if row[7] is None)
            return rows

        tx.open_gates = noted  # type: ignore[method-assign]
        return await gates.pass_gates(tx, wanted, **options)

    async def past_gates(scope: Scope, wanted: Wanted, now: datetime | None) -> list[Lease]:
        bare.clear()
        passed = await claim._pass(scope, wanted, now, first=True)
        rest = claim._rest(wanted, passed.leases)
        if not rest.queues or bare.issuperset(rest.queues):
            return passed.leases
        behind = claim._behind(scope, rest, passed.looked_at, now)
        return await claim._with_more(passed.leases, behind)

    look_at = Claimer._look_at

    def later(self: Claimer) -> float:
        self._pause = max(self._pause, POLL_SECONDS)
        return look_at(self)

    vars(claim).update(pass_gates=look, _past_gates=past_gates)
    Claimer._look_at = later  # type: ignore[method-assign]


SIDES: dict[str, Callable[[], None]] = {
    WITH: _as_it_is,
    WITHOUT: _no_riders,
    AT_ONCE: _answered_at_once,
}
