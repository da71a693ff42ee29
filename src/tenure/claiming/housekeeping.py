"""The work that each worker does for all, when it is due: see `Housework`."""

import logging
from collections.abc import Callable, Collection, Mapping

import msgspec

from tenure.errors import ClockDoubted
from tenure.rules.retention import Keep
from tenure.store.api import Runner, run_on
from tenure.store.gates.limits import heal_gates
from tenure.store.jobs.expire import expire
from tenure.store.jobs.sweep import promote, sweep
from tenure.store.prune import prune
from tenure.store.schedules.fire import fire
from tenure.store.statistics.depth import sample_depth
from tenure.store.workflows.stop import heal_workflows

PAGE = 1000
SECONDS = {
    "promote": 1.0, "sweep": 5.0, "expire": 5.0, "fire": 1.0, "heal": 60.0, "prune": 3600.0,
    "sample": 10.0,
}  # fmt: skip
"""How often each chore is done."""
FIRST_PRUNE_SECONDS = 60.0
log = logging.getLogger("tenure.claiming")


class Housework(msgspec.Struct):
    """What one call of `housekeeping` has done."""

    promoted: int = 0
    """Scheduled jobs that were due, and are in their queues now."""
    requeued: int = 0
    """Jobs of expired leases that are in their queues again."""
    finished: int = 0
    """Jobs of expired leases that have failed or were cancelled."""
    expired: int = 0
    """Jobs that were not started in time, and are skipped now."""
    fired: int = 0
    """Jobs that schedules have enqueued."""
    healed: int = 0
    """Inconsistent rows of gates and workflows that were repaired; should always be 0."""
    pruned: int = 0
    """Finished jobs that were removed, because they were kept long enough."""


class Chores:
    """When which chore is due."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        began = now()
        self._due_at = dict.fromkeys(SECONDS, began)
        self._due_at["prune"] = began + FIRST_PRUNE_SECONDS
        self._due_at["heal"] = began + SECONDS["heal"]

    def take(self, *, everything: bool) -> list[str]:
        """The chores to do now, each due again later."""
        now = self._now()
        due = [name for name, at in self._due_at.items() if everything or at <= now]
        for name in due:
            self._due_at[name] = now + SECONDS[name]
        return due


async def do_chores(
    runner: Runner, chores: Collection[str], keep: Mapping[str, Keep] | None
) -> Housework:
    """Do these chores. Other workers may do them at the same time."""
    done = Housework()
    if "promote" in chores:
        promoted = PAGE
        while promoted == PAGE:
            promoted = await run_on(runner, promote, most=PAGE)
            done.promoted += promoted
    if "sweep" in chores:
        more = True
        while more:
            swept = await run_on(runner, sweep, keep=keep)
            done.requeued += swept.requeued
            done.finished += swept.finished
            more = swept.more
    if "expire" in chores:
        done.expired = await run_on(runner, expire, keep=keep)
    if "fire" in chores:
        done.fired = len((await run_on(runner, fire)).jobs)
    if "heal" in chores:
        done.healed = await run_on(runner, heal_gates) + await run_on(runner, heal_workflows)
    if "sample" in chores:
        await run_on(runner, sample_depth)
    if "prune" in chores:
        try:
            done.pruned = await run_on(runner, prune)
        except ClockDoubted as error:
            log.warning("%s failed, trying again: %s", "pruning", error)
    return done
