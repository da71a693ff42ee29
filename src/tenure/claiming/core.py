"""What both claimers do, in one body: claim, settle, keep house, and let go at the end."""

import asyncio
import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from tenure.claiming.counting import EndCounter
from tenure.claiming.heartbeats import Heartbeats
from tenure.claiming.housekeeping import Chores, Housework, do_chores
from tenure.claiming.jobs import HeldHere
from tenure.client import Client
from tenure.errors import InvalidInput, LeaseLost, StoreBusy, StoreError, ValueRefused
from tenure.rules import lifecycle
from tenure.rules.claim import Claimed, Lease
from tenure.rules.lifecycle import HeldJob, Settlement
from tenure.rules.limits import check_int, check_name, check_seconds, not_this
from tenure.rules.retention import Keep
from tenure.store.api import AsyncRunner, Runner, rest_on, run_on
from tenure.store.jobs.claim import MAX_BLOCK, claim, held
from tenure.store.jobs.notes import start_once
from tenure.store.jobs.settle import settle
from tenure.tasks import Task

POLL_SECONDS = 0.2
"""How often a claimer that waits looks for jobs."""


class Core:
    """One worker by hand."""

    def __init__(
        self,
        app: Client,
        queues: str | Collection[str],
        *,
        tasks: "Collection[str | Task[..., object]] | None",
        in_order: bool,
        worker: str | None,
        lease_seconds: float,
        heartbeat_seconds: float | None,
        housekeeping: bool,
        keep: Keep,
    ) -> None:
        self.app = app
        self.worker = new_name() if worker is None else worker
        self._has_own_name = worker is None
        check_name("worker", self.worker)
        self.queues = _names("queues", [queues] if isinstance(queues, str) else queues)
        self.tasks = None if tasks is None else _names("tasks", tasks)
        if type(in_order) is not bool:
            raise InvalidInput(f"in_order must be True or False, {not_this(in_order)}")
        self._in_order = in_order
        check_seconds("lease_seconds", lease_seconds, least=0.1)
        self._lease_seconds = lease_seconds
        beat = lease_seconds / 3 if heartbeat_seconds is None else heartbeat_seconds
        check_seconds("heartbeat_seconds", beat, least=0.01)
        if beat > lease_seconds / 2:
            raise InvalidInput(
                f"heartbeat_seconds must be at most half of lease_seconds, not {beat:g} of "
                f"{lease_seconds:g}"
            )
        self._heartbeat_seconds = beat
        self._keeps_house = housekeeping
        self._keep = None if keep == Keep() else dict.fromkeys(self.queues, keep)
        self._chores = Chores(time.monotonic)
        self._heartbeats: Heartbeats | None = None
        self._counter = EndCounter(new_name())
        self._later: deque[HeldHere] = deque()
        """Jobs that are held here, and that no caller has got yet."""
        self._claiming: set[asyncio.Future[list[HeldHere]]] = set()
        """Claims whose callers were cancelled."""

    def start(self) -> None:
        """Store the failure hooks of the code, as a worker does, and start the heartbeats."""
        if self._heartbeats is not None:
            raise InvalidInput("this claimer is open already")
        hooks = self.app.declared_hooks()
        if hooks:
            self.app.whole_store.declare_hooks(hooks, tasks=[task.name for task in self.app])
        self._heartbeats = Heartbeats(
            self.app.whole_store, self.worker, self._lease_seconds, self._heartbeat_seconds
        )
        self._heartbeats.start()

    @property
    def heartbeats(self) -> Heartbeats:
        """Those of an open claimer."""
        if self._heartbeats is None:
            raise InvalidInput("this claimer is not open; use it in its `with` block")
        return self._heartbeats

    async def claim(
        self, runner: Runner, make: Callable[[Claimed], HeldHere], most: int, wait_seconds: float
    ) -> list[HeldHere]:
        """Claim at most `most` jobs. If there are none, look again until this time is over."""
        check_int("most", most, 1, MAX_BLOCK)
        check_seconds("wait_seconds", wait_seconds)
        _ = self.heartbeats  # it is open
        until = time.monotonic() + wait_seconds
        while True:
            if self._keeps_house:
                await self.housekeeping(runner, everything=False)
            elif self._counter.is_due():
                await self._write_statistics(runner)
            jobs = await self._to_its_end(runner, self._claim(runner, make, most))
            left = until - time.monotonic()
            if jobs or left <= 0:
                return jobs
            await rest_on(runner, min(left, POLL_SECONDS))

    async def _to_its_end(
        self, runner: Runner, claiming: Coroutine[Any, Any, list[HeldHere]]
    ) -> list[HeldHere]:
        """On an event loop a claim goes on if its caller is cancelled. The next has its jobs."""
        if not isinstance(runner, AsyncRunner):
            return await claiming
        task = asyncio.ensure_future(claiming)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._claiming.add(task)
            task.add_done_callback(self._keep_for_later)
            raise

    def _keep_for_later(self, task: asyncio.Future[list[HeldHere]]) -> None:
        self._claiming.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._later.extend(task.result())

    async def _claim(
        self, runner: Runner, make: Callable[[Claimed], HeldHere], most: int
    ) -> list[HeldHere]:
        """Return what is taken even if taking more fails. What cannot start yet is for later."""
        ready: list[HeldHere] = []
        taken = self._earlier(most)
        try:
            if not taken:
                await self._take(runner, make, most, taken)
        except StoreError:
            if not taken:
                raise
        try:
            while taken:
                if await self._may_start(runner, taken[0]):
                    ready.append(taken[0])
                del taken[0]
        except StoreError:
            if not ready:
                raise
        finally:
            self._later.extend(taken)
        return ready

    def _earlier(self, most: int) -> list[HeldHere]:
        """Jobs of earlier claims that no caller has got."""
        jobs: list[HeldHere] = []
        with suppress(IndexError):  # other threads may take them, too
            while len(jobs) < most:
                job = self._later.popleft()
                if not job.lost:
                    jobs.append(job)
        return jobs

    async def _take(
        self, runner: Runner, make: Callable[[Claimed], HeldHere], most: int, taken: list[HeldHere]
    ) -> None:
        """Claim from all queues in one order, or from one after the other."""
        seconds = self._lease_seconds
        if self.tasks is not None or self._in_order:
            asks = dict.fromkeys(self.queues, most)
            before = time.monotonic()
            leases = await run_on(
                runner, claim, self.worker, asks, lease_seconds=seconds, tasks=self.tasks,
                most=most, keep=self._keep,
            )  # fmt: skip
            taken += self._hold(make, leases, before)
            return
        for queue in self.queues:
            left = most - len(taken)
            if left > 0:
                before = time.monotonic()
                leases = await run_on(
                    runner, claim, self.worker, {queue: left}, lease_seconds=seconds,
                    keep=self._keep,
                )  # fmt: skip
                taken += self._hold(make, leases, before)

    def _hold(
        self, make: Callable[[Claimed], HeldHere], leases: Iterable[Lease], before: float
    ) -> list[HeldHere]:
        """Renew these leases from now on."""
        jobs: list[HeldHere] = []
        for lease in leases:
            block = [make(job) for job in lease.jobs]
            self._counter.claimed(lease.claimed_at, before)
            for job, claimed in zip(block, lease.jobs, strict=True):
                waited = lease.claimed_at - (claimed.queued_at or claimed.created_at)
                job.claimed_from = before
                job.waited_seconds = max(0.0, waited.total_seconds())
            self.heartbeats.add(lease.id, block, before)
            jobs += block
        return jobs

    async def _may_start(self, runner: Runner, job: HeldHere) -> bool:
        """Is it still held? A job that starts at most once starts here: no one gets it again."""
        if not job.starts_once or (await run_on(runner, start_once, self.worker, job)).landed:
            return True
        job.lost.set()
        self.heartbeats.settled(job)
        return False

    async def end(
        self, runner: Runner, job: HeldHere, settlement: Settlement, on: object | None
    ) -> None:
        """Write how a job has ended. Raises `LeaseLost` if it is not held any more."""
        heartbeats = self.heartbeats
        try:
            [answer] = await run_on(
                runner, settle, self.worker, [settlement], on=on, keep=self._keep
            )
        except LeaseLost:
            job.lost.set()
            raise
        if answer.busy:
            raise StoreBusy(f"another transaction has locked job {job.id}; try again")
        if answer.error is not None:
            raise ValueRefused(answer.error)
        if on is None:
            if answer.landed and not job.is_ended:
                job.is_ended = True
                self._counter.ended(job, settlement, answer)
            heartbeats.settled(job)
        elif answer.landed:  # its transaction may still be rolled back
            job.may_be_ended = True
        if not answer.landed:
            job.lost.set()
            raise LeaseLost(
                f"job {job.id} is no longer held under token {job.token}: its lease was lost, or "
                "it was ended in another way before. Nothing was written"
            )

    async def housekeeping(self, runner: Runner, *, everything: bool) -> Housework:
        """Do the chores that are due."""
        if everything or self._counter.is_due():
            await self._write_statistics(runner)
        chores = self._chores.take(everything=everything)
        return await do_chores(runner, chores, self._keep) if chores else Housework()

    async def _write_statistics(self, runner: Runner) -> None:
        with suppress(StoreError):  # they are kept, and written later
            await self._counter.write(runner)

    async def close(self, runner: Runner) -> None:
        """Put back what is still held, and end the heartbeats."""
        heartbeats = self._heartbeats
        if heartbeats is None:
            return
        try:
            if self._claiming:
                await asyncio.wait(self._claiming)
            self._heartbeats = None
            await self._release(runner, heartbeats.held())
            await self._write_statistics(runner)
        finally:
            self._heartbeats = None
            heartbeats.stop()

    async def _release(self, runner: Runner, known: list[HeldHere]) -> None:
        left = {(job.id, job.token): job for job in await self._untold(runner)}
        left |= {(job.id, job.token): job for job in known}
        releases = [lifecycle.release(job, "shutdown") for job in left.values()]
        if not releases:
            return
        with suppress(StoreError):  # then the leases run out
            answers = await run_on(runner, settle, self.worker, releases, keep=self._keep)
            for job, release, answer in zip(left.values(), releases, answers, strict=True):
                if answer.landed and isinstance(job, HeldHere):
                    self._counter.ended(job, release, answer)

    async def _untold(self, runner: Runner) -> list[HeldJob]:
        """All that the store has under this name, also of a claim that got no reply.

        A name that was given may be that of other claimers, too: their jobs stay theirs.
        """
        if self._has_own_name:
            with suppress(StoreError):
                leases = await run_on(runner, held, self.worker)
                return [job for lease in leases for job in lease.jobs]
        return []


def new_name() -> str:
    """A name that no other claimer has, with the host's name for people to read."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in "-.")[:30]
    return f"{host.lstrip('-.') or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"


def _names(what: str, given: object) -> list[str]:
    if isinstance(given, str | Mapping) or not isinstance(given, Collection) or not given:
        raise InvalidInput(f"{what} must be a list of names, {not_this(given)}")
    names = [each.name if isinstance(each, Task) else each for each in given]
    for name in names:
        check_name(what, name)
    return names
