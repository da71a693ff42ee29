"""Schedules in a worker: it declares those of its code, then fires whatever is due, for ever.

Every worker does so. Between two ticks it sleeps, but wakes up now and then: schedules can be added
and edited, and the clock that counts is the database's.
"""

import asyncio
import logging
from collections.abc import Callable

from tenure.client import Client
from tenure.errors import TenureError
from tenure.store import AsyncStore, Fired
from tenure.worker.environment import World
from tenure.worker.settings import WorkerSettings

LEAST_SECONDS = 0.001
log = logging.getLogger("tenure.worker")


class Ticker:
    """The loop of one worker process that fires schedules."""

    def __init__(
        self,
        store: AsyncStore,
        app: Client,
        settings: WorkerSettings,
        world: World,
        *,
        ring: Callable[[], None],
    ) -> None:
        self._store = store
        self._app = app
        self._settings = settings
        self._world = world
        self._ring = ring
        self._declared = False
        self._refused: dict[str, str] = {}

    async def run(self) -> None:
        """Declare, then fire. An outage is waited for, and what was missed is caught up with."""
        failing = False
        while True:
            wait = self._settings.schedule_seconds
            try:
                if not self._declared:
                    await self._declare()
                fired = await self._fire()
                if fired.wait_seconds is not None:
                    wait = min(wait, max(LEAST_SECONDS, fired.wait_seconds))
                failing = False
            except TenureError as error:
                if not failing:  # said once: an outage must not fill the disk
                    log.warning("firing schedules failed, trying again: %s", error)
                failing = True
            await asyncio.sleep(wait)

    async def _fire(self) -> Fired:
        self._world.crash_point("before fire")
        fired = await self._store.fire()
        self._world.crash_point("after fire")
        if fired.jobs:
            self._ring()
        for name, why in fired.refused.items():
            if self._refused.get(name) != why:
                log.warning("schedule %s cannot tick here: %s", name, why)
        self._refused = fired.refused
        return fired

    async def _declare(self) -> None:
        schedules = self._app.declared_schedules()
        tasks = [task.name for task in self._app]
        said = await self._store.declare_schedules(schedules, tasks=tasks)
        self._declared = True
        for name in said.added + said.changed:
            log.info("schedule %s is as this code declares it now", name)
        for name in said.differs:
            log.warning(
                "schedule %s is not as this code declares it: it was edited, or newer code has "
                "declared it otherwise, and that stays", name,
            )  # fmt: skip
        for name in said.left_over:
            log.warning(
                "schedule %s is not declared by this code any more, and goes on until it is "
                "removed", name,
            )  # fmt: skip
