"""Claim and settle jobs in a loop of your own, blocking or on an event loop.

with Claimer(app, ["audio", "video"]) as claimer:
    while job := claimer.claim_one(wait_seconds=60):
        job.succeed(transcode(**job.args))
"""

import asyncio
from collections.abc import Collection
from types import TracebackType
from typing import Any, Self, cast

from tenure.claiming.core import Core
from tenure.claiming.housekeeping import Housework
from tenure.claiming.jobs import AsyncClaimedJob, ClaimedJob
from tenure.client import Client
from tenure.rules.claim import Claimed
from tenure.rules.retention import Keep
from tenure.store.session import drive
from tenure.tasks import Task


class _Claimer:
    """What both claimers share.

    It claims from these queues, from the first one first. With `tasks`, it claims only jobs of
    tasks with these names. With `in_order`, priorities count across all queues. With either, jobs
    at gates are passed over.

    A thread renews the leases every `heartbeat_seconds`: a third of `lease_seconds`, unless given.
    With `housekeeping`, each claim also does the chores that are due. `keep_succeeded_seconds` and
    `keep_other_seconds` are those of a worker: how long jobs that end here are kept.
    """

    def __init__(
        self,
        app: Client,
        queues: str | Collection[str] = "default",
        *,
        tasks: Collection[str | Task[..., Any]] | None = None,
        in_order: bool = False,
        worker: str | None = None,
        lease_seconds: float = 30.0,
        heartbeat_seconds: float | None = None,
        housekeeping: bool = True,
        keep_succeeded_seconds: float | None = None,
        keep_other_seconds: float | None = None,
    ) -> None:
        self._app = app
        self._core = Core(
            app, queues, tasks=tasks, in_order=in_order, worker=worker,
            lease_seconds=lease_seconds, heartbeat_seconds=heartbeat_seconds,
            housekeeping=housekeeping, keep=Keep(keep_succeeded_seconds, keep_other_seconds),
        )  # fmt: skip

    @property
    def worker(self) -> str:
        """The name under which it holds jobs: `store.held(name)` lists them."""
        return self._core.worker


class Claimer(_Claimer):
    """Claims jobs for a loop of your own, and keeps their leases alive. Use it in a `with` block.

    At the end of the block, jobs that were not ended go back to their queues, uncharged. Safe to
    share between threads.
    """

    def claim(self, most: int = 1, *, wait_seconds: float = 0.0) -> list[ClaimedJob]:
        """Up to `most` jobs. If there are none, it looks again until `wait_seconds` are over."""
        jobs = drive(self._core.claim(self._app.whole_store, self._made, most, wait_seconds))
        return cast(list[ClaimedJob], jobs)

    def claim_one(self, *, wait_seconds: float = 0.0) -> ClaimedJob | None:
        """One job; None if there is none."""
        return next(iter(self.claim(1, wait_seconds=wait_seconds)), None)

    def held(self) -> list[ClaimedJob]:
        """The jobs that this claimer holds. One that you ended with `on=` is listed until the next
        heartbeat has seen that your transaction was committed.
        """
        return cast(list[ClaimedJob], self._core.heartbeats.held())

    def housekeeping(self, *, everything: bool = False) -> Housework:
        """Do what each worker does for all: promote, sweep, expire, fire, heal, prune.

        Only what is due, or `everything`.
        """
        return drive(self._core.housekeeping(self._app.whole_store, everything=everything))

    def _made(self, claimed: Claimed) -> ClaimedJob:
        return ClaimedJob(claimed, self._core, lambda: self._app.whole_store)

    def __enter__(self) -> Self:
        self._core.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        drive(self._core.close(self._app.whole_store))


class AsyncClaimer(_Claimer):
    """`Claimer` for an event loop. Use it in an `async with` block, and await its methods."""

    async def claim(self, most: int = 1, *, wait_seconds: float = 0.0) -> list[AsyncClaimedJob]:
        """Up to `most` jobs. If there are none, it looks again until `wait_seconds` are over."""
        store = self._app.whole_async_store
        jobs = await self._core.claim(store, self._made, most, wait_seconds)
        return cast(list[AsyncClaimedJob], jobs)

    async def claim_one(self, *, wait_seconds: float = 0.0) -> AsyncClaimedJob | None:
        """One job; None if there is none."""
        return next(iter(await self.claim(1, wait_seconds=wait_seconds)), None)

    def held(self) -> list[AsyncClaimedJob]:
        """The jobs that this claimer holds. One that you ended with `on=` is listed until the next
        heartbeat has seen that your transaction was committed.
        """
        return cast(list[AsyncClaimedJob], self._core.heartbeats.held())

    async def housekeeping(self, *, everything: bool = False) -> Housework:
        """Do what each worker does for all: promote, sweep, expire, fire, heal, prune.

        Only what is due, or `everything`.
        """
        store = self._app.whole_async_store
        return await self._core.housekeeping(store, everything=everything)

    def _made(self, claimed: Claimed) -> AsyncClaimedJob:
        return AsyncClaimedJob(claimed, self._core, lambda: self._app.whole_async_store)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._core.start)  # it opens the database
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._core.close(self._app.whole_async_store)
