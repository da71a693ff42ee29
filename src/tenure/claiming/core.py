"""What both claimers do, in one body: claim, settle, keep house, and let go at the end."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from tenure.claiming.heartbeats import Heartbeats
from tenure.claiming.housekeeping import Chores, Housework, do_chores
from tenure.claiming.jobs import HeldHere
from tenure.client import Client
from tenure.errors import InvalidInput, LeaseLost, StoreBusy, StoreError, ValueRefused
from tenure.rules import lifecycle
from tenure.rules.claim import Claimed, Lease
from tenure.rules.job import Feature
from tenure.rules.lifecycle import Settlement
from tenure.rules.limits import check_int, check_name, check_seconds, not_this
from tenure.rules.retention import Keep
from tenure.store.api import Runner, rest_on, run_on
from tenure.store.jobs.claim import MAX_BLOCK, claim
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
        check_name("worker", self.worker)
        self.queues = _names("queues", [queues] if isinstance(queues, str) else queues)
        self.tasks = None if tasks is None else _names("tasks", tasks)
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
        self._claimed_at: dict[tuple[int, int], float] = {}

    def start(self) -> None:
        """Start the heartbeats."""
        if self._heartbeats is not None:
            raise InvalidInput("this claimer is open already")
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

    def seconds_of(self, job: HeldHere) -> float:
        """How long ago the job was claimed."""
        began = self._claimed_at.get((job.id, job.token))
        return 0.0 if began is None else time.monotonic() - began

    async def claim(
        self, runner: Runner, make: Callable[[Claimed], HeldHere], most: int, wait_seconds: float
    ) -> list[HeldHere]:
        """Claim at most `most` jobs. If there are none, look again until this time is over."""
        check_int("most", most, 1, MAX_BLOCK)
        check_seconds("wait_seconds", wait_seconds)
        heartbeats = self.heartbeats
        until = time.monotonic() + wait_seconds
        while True:
            if self._keeps_house:
                await self.housekeeping(runner, everything=False)
            before = time.monotonic()
            jobs: list[HeldHere] = []
            for lease in await self._claim(runner, most):
                held = [make(job) for job in lease.jobs if await self._may_start(runner, job)]
                if held:
                    heartbeats.add(lease.id, held, before)
                self._claimed_at.update({(job.id, job.token): before for job in held})
                jobs += held
            left = until - time.monotonic()
            if jobs or left <= 0:
                return jobs
            await rest_on(runner, min(left, POLL_SECONDS))

    async def _claim(self, runner: Runner, most: int) -> Sequence[Lease]:
        seconds = self._lease_seconds
        if self.tasks is not None or self._in_order:
            asks = dict.fromkeys(self.queues, most)
            return await run_on(
                runner, claim, self.worker, asks, lease_seconds=seconds, tasks=self.tasks,
                most=most, keep=self._keep,
            )  # fmt: skip
        leases: list[Lease] = []
        for queue in self.queues:
            left = most - sum(len(lease.jobs) for lease in leases)
            if left > 0:
                leases += await run_on(
                    runner, claim, self.worker, {queue: left}, lease_seconds=seconds,
                    keep=self._keep,
                )  # fmt: skip
        return leases

    async def _may_start(self, runner: Runner, job: Claimed) -> bool:
        """Is it still held? A job that starts at most once starts here: no one gets it again."""
        if not job.features & Feature.ONCE:
            return True
        return (await run_on(runner, start_once, self.worker, job)).landed

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
        if answer.landed:
            job.is_ended = True
        if on is None:  # otherwise its transaction may still be rolled back
            heartbeats.settled(job)
            self._claimed_at.pop((job.id, job.token), None)
        if not answer.landed:
            job.lost.set()
            raise LeaseLost(
                f"job {job.id} is no longer held under token {job.token}: its lease was lost, or "
                "it was ended in another way before. Nothing was written"
            )

    async def housekeeping(self, runner: Runner, *, everything: bool) -> Housework:
        """Do the chores that are due."""
        chores = self._chores.take(everything=everything)
        return await do_chores(runner, chores, self._keep) if chores else Housework()

    async def close(self, runner: Runner) -> None:
        """Put back what is still held, and end the heartbeats."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is None:
            return
        try:
            left = [lifecycle.release(job, "shutdown") for job in heartbeats.held()]
            if left:
                with suppress(StoreError):  # then the leases run out
                    await run_on(runner, settle, self.worker, left, keep=self._keep)
        finally:
            heartbeats.stop()


def new_name() -> str:
    """A name that no other claimer has, with the host's name for people to read."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in "-.")[:30]
    return f"{host.lstrip('-.') or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"


def _names(what: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Collection) or not given:
        raise InvalidInput(f"{what} must be a list of names, {not_this(given)}")
    names = [each.name if isinstance(each, Task) else each for each in given]
    for name in names:
        check_name(what, name)
    return names
