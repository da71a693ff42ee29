"""Schedules: each worker declares the schedules of its code, then fires those that are due.

Between two ticks the loop sleeps. It wakes up regularly, because schedules can be added and edited,
and because the database's clock decides when they are due.
"""

import asyncio
import logging
from collections.abc import Callable

from tenure.client import Client
from tenure.errors import TenureError
from tenure.store import AsyncStore, Fired
from tenure.worker.environment import Environment
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
        environment: Environment,
        *,
        ring: Callable[[], None],
    ) -> None:
        self._store = store
        self._app = app
        self._settings = settings
        self._environment = environment
        self._ring = ring
        self._declared = False
        self._refused: dict[str, str] = {}

    async def run(self) -> None:
        """Declare, then fire for ever. After an outage, missed ticks are fired late."""
        failing = False
        while True:
            wait = self._settings.schedule_seconds
            try:
                if not self._declared:
                    await self._declare()
                fired = await self._fire()
                if fired.wait_seconds is not None:
                    wait = min(wait, max(LEAST_SECONDS, fired.wait_seconds))
                if failing:
                    log.info("firing schedules works again")
                failing = False
            except TenureError as error:
                if not failing:  # logged once: an outage must not fill the disk
                    log.warning("firing schedules failed, trying again: %s", error)
                failing = True
            await asyncio.sleep(wait)

    async def _fire(self) -> Fired:
        self._environment.crash_point("before fire")
        fired = await self._store.fire()
        self._environment.crash_point("after fire")
        if fired.jobs:
            self._ring()
        for name, why in fired.refused.items():
            if self._refused.get(name) != why:
                log.warning("schedule %s cannot be fired by this worker: %s", name, why)
        self._refused = fired.refused
        return fired

    async def _declare(self) -> None:
        schedules = self._app.declared_schedules()
        tasks = [task.name for task in self._app]
        declared = await self._store.declare_schedules(schedules, tasks=tasks)
        self._declared = True
        for name in declared.added + declared.changed:
            log.info("schedule %s was set as this code declares it", name)
        for name in declared.differs:
            log.warning(
                "schedule %s differs from its declaration in this code, because it was edited or "
                "newer code declares it; it stays as it is", name,
            )  # fmt: skip
        for name in declared.left_over:
            log.warning(
                "schedule %s is no longer declared by this code; it ticks until it is removed",
                name,
            )  # fmt: skip
