"""One call of a batch handler: each item is settled on its own.

A cancellation, a timeout or a lost lease of one item is told to that item, and the others go on.
The handler itself is interrupted when all of its items have to stop.
"""

from collections.abc import Callable
from typing import Any

from tenure.batches import Item, checked_results
from tenure.errors import PayloadInvalid
from tenure.rules.job import Feature
from tenure.rules.lifecycle import Settlement
from tenure.worker.leases import LeasedJob
from tenure.worker.running.context import RunningHere
from tenure.worker.running.run import AttemptRunner

Ended = tuple[LeasedJob, Settlement | None]


def stop_when_all_must(members: list[LeasedJob], stop_now: Callable[[], object]) -> None:
    """Interrupt the handler when each of its items was told to stop."""

    def stop_one() -> None:
        if all(leased.stop is not None for leased in members if not leased.end_taken):
            stop_now()

    for leased in members:
        leased.stop_now = stop_one


async def run_batch(
    runner: AttemptRunner,
    members: list[LeasedJob],
    *,
    app: Any,
    worker: str,
    monotonic: Callable[[], float],
) -> list[Ended]:
    """Run the handler for these jobs of one task. Returns the settlement of each."""
    ended: list[Ended] = []
    items: list[Item[Any]] = []
    running: list[LeasedJob] = []
    started = monotonic()
    for leased in members:
        try:
            [value], _ = leased.task.signature.unpack(leased.job.args)
            here = RunningHere(leased, app, worker)
            if leased.job.features & Feature.ONCE and leased.stop_reason() is None:
                await runner.start_once(here)
        except PayloadInvalid as error:
            ended.append((leased, runner.undecodable(leased, error)))
            continue
        except BaseException as error:  # noqa: BLE001 - as if its handler had raised it
            ended.append((leased, runner.raised(leased, error, 0.0)))
            continue
        if (stop := leased.stop_reason()) is not None:
            ended.append((leased, runner.attempt(leased).stopped(stop, 0.0)))
            continue
        leased.started_at = started
        running.append(leased)
        items.append(Item(value, here))
    if not items:
        return ended
    try:
        returned = members[0].task.fn(items)
        if runner.awaits:
            returned = await returned
        results = checked_results(returned, len(items))
    except BaseException as error:  # noqa: BLE001 - any exception of a handler is its failure
        seconds = monotonic() - started
        return ended + [(leased, runner.raised(leased, error, seconds)) for leased in running]
    seconds = monotonic() - started
    for leased, result in zip(running, results, strict=True):
        ended.append((leased, _settlement(runner, leased, result, seconds)))
    return ended


def _settlement(
    runner: AttemptRunner, leased: LeasedJob, result: object, seconds: float
) -> Settlement | None:
    if isinstance(result, BaseException):
        return runner.raised(leased, result, seconds)
    return runner.attempt(leased).returned(result, seconds)
