"""The running job that handlers get."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from inspect import isawaitable
from typing import Any, ParamSpec, TypeVar, cast

from tenure.client import Client
from tenure.control import Cancel
from tenure.errors import InvalidInput, LeaseLost, StoreUnavailable
from tenure.rules import lifecycle
from tenure.rules.codec import decode, encode, error_json
from tenure.rules.graph import GrowingNode, ParentEnd
from tenure.rules.job import Feature, Json, State
from tenure.rules.limits import check_progress
from tenure.rules.notes import NoteValue, checked
from tenure.running import Flag, Running
from tenure.store.workflows.grow import grow_workflow
from tenure.store.workflows.look import parent_ends
from tenure.tasks import Task
from tenure.worker.leases import LeasedJob
from tenure.worker.running.attempt import Attempt, StoreAway
from tenure.worker.running.steps import Steps
from tenure.workflow import Growth

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

AWAY_SECONDS = 0.5
"""How often a call of the store is tried again while the database is away."""
_STEPS = Feature.STEPS


class RunningHere(Running):
    """A job whose handler runs in this process."""

    __slots__ = ("_app", "_job", "_leased", "_steps", "_worker")
    _growth: Growth | None = None

    def __init__(self, leased: LeasedJob, app: Client, worker: str) -> None:
        self._leased = leased
        self._job = leased.job
        self._app = app
        self._steps: Steps | None = None
        self._worker = worker

    # fmt: off
    @property
    def worker(self) -> str: return self._worker
    @property
    def id(self) -> int: return self._job.id
    @property
    def token(self) -> int: return self._job.token
    @property
    def attempt(self) -> int: return self._job.attempts + 1
    @property
    def max_attempts(self) -> int: return self._job.max_attempts
    @property
    def crashes(self) -> int: return self._job.crashes
    @property
    def task(self) -> str: return self._job.task
    @property
    def queue(self) -> str: return self._job.queue
    @property
    def tenant(self) -> str: return self._job.tenant
    @property
    def created_at(self) -> datetime: return self._job.created_at
    @property
    def cancelled(self) -> Flag: return self._leased.cancelled
    @property
    def lost(self) -> Flag: return self._leased.lost
    @property
    def stopping(self) -> Flag: return self._leased.stopping()
    # fmt: on

    @property
    def metadata(self) -> Mapping[str, object]:
        return decode(self._job.metadata, dict[str, object]) if self._job.metadata else {}

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        check_progress(fraction, message)
        self._leased.report(fraction, message)

    def _wait_begins(self, id: int) -> None:
        self._leased.wait_begins(id, time.monotonic())

    def _wait_ends(self, id: int) -> None:
        self._leased.wait_ends(id)

    def annotate(
        self,
        notes: Mapping[str, NoteValue] | None = None,
        /,
        *,
        now: bool = False,
        **more: NoteValue,
    ) -> None:
        told = self._told(notes, more)
        if now:
            [answer] = self._patiently(
                self._app.whole_store.annotate, self.worker, [(self._job, told)]
            )
            self._saved(answer.landed)

    async def annotate_async(
        self,
        notes: Mapping[str, NoteValue] | None = None,
        /,
        *,
        now: bool = False,
        **more: NoteValue,
    ) -> None:
        told = self._told(notes, more)
        if now:
            [answer] = await self._patiently_async(
                self._app.whole_async_store.annotate, self.worker, [(self._job, told)]
            )
            self._saved(answer.landed)

    def _told(
        self, notes: Mapping[str, NoteValue] | None, more: dict[str, NoteValue]
    ) -> dict[str, NoteValue]:
        """Keep these for the next heartbeat. Returns all notes of this attempt."""
        self._refuse_if_lost()
        return self._leased.annotate((checked(notes) if notes is not None else {}) | checked(more))

    def start_once(self) -> None:
        """Record that the handler of a job with `at_most_once` starts. Raises `LeaseLost`."""
        start = self._app.whole_store.start_once
        self._saved(self._patiently(start, self.worker, self._job).landed)

    async def start_once_async(self) -> None:
        """`start_once` for async handlers."""
        start = self._app.whole_async_store.start_once
        self._saved((await self._patiently_async(start, self.worker, self._job)).landed)

    def save(self, state: object) -> None:
        data, store = self._checkpoint(state), self._app.whole_store
        self._saved(self._patiently(store.save_checkpoint, self.worker, self._job, data).landed)

    async def save_async(self, state: object) -> None:
        data = self._checkpoint(state)
        save = self._app.whole_async_store.save_checkpoint
        self._saved((await self._patiently_async(save, self.worker, self._job, data)).landed)

    def _checkpoint(self, state: object) -> Json:
        self._refuse_if_lost()
        return encode(state, what=f"the checkpoint of job {self.id}")

    def _saved(self, landed: bool) -> None:
        if not landed:
            self.lost.set()
            self._refuse_if_lost()

    def load(self, type: type[T]) -> T | None:
        progress = self._patiently(self._app.whole_store.progress, self.id)
        return _decoded(progress.checkpoint_json, type)

    async def load_async(self, type: type[T]) -> T | None:
        progress = await self._patiently_async(self._app.whole_async_store.progress, self.id)
        return _decoded(progress.checkpoint_json, type)

    @property
    def workflow(self) -> Growth:
        if self._growth is None:
            self._growth = Growth(self.id, self._grow, self._grow_async)
        return self._growth

    def _grow(self, nodes: Sequence[GrowingNode]) -> list[int]:
        self._refuse_if_lost()
        return self._grown(self._app.whole_store.run(grow_workflow, self.worker, self._job, nodes))

    async def _grow_async(self, nodes: Sequence[GrowingNode]) -> list[int]:
        self._refuse_if_lost()
        run = self._app.whole_async_store.run
        return self._grown(await run(grow_workflow, self.worker, self._job, nodes))

    def _grown(self, ids: list[int] | None) -> list[int]:
        if ids is None:
            self.cancelled.set()
            raise Cancel("cancelled")
        return ids

    def parents(self) -> list[ParentEnd]:
        return self._app.whole_store.run(parent_ends, self.id)

    async def parents_async(self) -> list[ParentEnd]:
        return await self._app.whole_async_store.run(parent_ends, self.id)

    def results(self, task: Task[..., R]) -> list[R]:
        return _results(task, self._app.whole_store.run(parent_ends, self.id, task=task.name))

    async def results_async(self, task: Task[..., R]) -> list[R]:
        run = self._app.whole_async_store.run
        return _results(task, await run(parent_ends, self.id, task=task.name))

    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        steps, store = self._my_steps(), self._app.whole_store
        if not steps.known:
            steps.know(self._patiently(store.steps, self.id))
        with steps.taking(name, fn) as step:
            if not step.recorded:
                new = step.ran(fn(*args, **kwargs))
                self._refuse_if_lost()
                record = store.record_step
                self._saved(self._patiently(record, self.worker, self._job, new).landed)
        return cast(R, step.value)

    async def step_async(
        self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        steps, store = self._my_steps(), self._app.whole_async_store
        if not steps.known:
            steps.know(await self._patiently_async(store.steps, self.id))
        with steps.taking(name, fn) as step:
            if not step.recorded:
                result = fn(*args, **kwargs)
                new = step.ran(await result if isawaitable(result) else result)
                self._refuse_if_lost()
                record = store.record_step
                answer = await self._patiently_async(record, self.worker, self._job, new)
                self._saved(answer.landed)
        return step.value

    def _my_steps(self) -> Steps:
        """The steps of earlier attempts are read once, if the job's row says there are any."""
        self._refuse_if_lost()
        if self._steps is None:
            self._steps = Steps(known=not self._job.features & _STEPS)
        return self._steps

    # --- ends in the caller's own transaction -----------------------------------------------------

    def complete(self, result: object = None, *, on: object) -> None:
        self._end(self._success(result), on)

    async def complete_async(self, result: object = None, *, on: object) -> None:
        await self._end_async(self._success(result), on)

    def fail(self, error: BaseException | str, *, on: object, reason: str = "error") -> None:
        self._end(lifecycle.fail(self._job, error_json(error), reason), on)

    async def fail_async(
        self, error: BaseException | str, *, on: object, reason: str = "error"
    ) -> None:
        await self._end_async(lifecycle.fail(self._job, error_json(error), reason), on)

    def retry(
        self, error: BaseException | str, *, on: object, after_seconds: float | None = None
    ) -> None:
        self._end(self._retry(error, after_seconds), on)

    async def retry_async(
        self, error: BaseException | str, *, on: object, after_seconds: float | None = None
    ) -> None:
        await self._end_async(self._retry(error, after_seconds), on)

    def snooze(self, seconds: float, *, on: object, reason: str = "snoozed") -> None:
        self._end(lifecycle.snooze(self._job, seconds, reason), on)

    async def snooze_async(self, seconds: float, *, on: object, reason: str = "snoozed") -> None:
        await self._end_async(lifecycle.snooze(self._job, seconds, reason), on)

    def skip(self, reason: str = "skipped", *, on: object) -> None:
        self._end(lifecycle.skip(self._job, reason), on)

    async def skip_async(self, reason: str = "skipped", *, on: object) -> None:
        await self._end_async(lifecycle.skip(self._job, reason), on)

    def cancel(self, reason: str = "cancelled by its handler", *, on: object) -> None:
        self._end(lifecycle.abort(self._job, reason), on)

    async def cancel_async(self, reason: str = "cancelled by its handler", *, on: object) -> None:
        await self._end_async(lifecycle.abort(self._job, reason), on)

    def _end(self, settlement: lifecycle.Settlement, on: object) -> None:
        self._check_end(on)
        told = self._leased.with_unsent(settlement)
        try:
            self._app.whole_store.settle(
                self.worker, [told], done_leases=(), on=on, keep=self._app.keep
            )
        except StoreUnavailable as error:
            raise StoreAway(str(error)) from error
        self._leased.completed = True

    async def _end_async(self, settlement: lifecycle.Settlement, on: object) -> None:
        self._check_end(on)
        told = self._leased.with_unsent(settlement)
        store = self._app.whole_async_store
        try:
            await store.settle(self.worker, [told], done_leases=(), on=on, keep=self._app.keep)
        except StoreUnavailable as error:
            raise StoreAway(str(error)) from error
        self._leased.completed = True

    def _check_end(self, on: object) -> None:
        if on is None:
            raise InvalidInput(
                "this needs on=, your open connection, session or transaction; without one, return "
                "a result, or return or raise Retry, Snooze, Skip, Cancel or an error"
            )
        self._refuse_if_lost()

    def _success(self, result: object) -> lifecycle.Settlement:
        data = None if result is None else encode(result, what=f"the result of job {self.id}")
        return lifecycle.succeed(self._job, data)

    def _retry(
        self, error: BaseException | str, after_seconds: float | None
    ) -> lifecycle.Settlement:
        delay = after_seconds
        if delay is None:
            delay = Attempt.of(self._leased, random.random).delay_seconds()
        return lifecycle.retry(self._job, error_json(error), delay)

    # --- while our own database is away ----------------------------------------------------------

    def _patiently(self, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the store until it can be reached or the lease is lost.

        An outage of our own database is not the handler's fault. If it lasts longer than the lease,
        `LeaseLost` is raised, and the worker puts the job back, uncharged.
        """
        while True:
            try:
                return call(*args, **kwargs)
            except StoreUnavailable:
                self.lost.wait(AWAY_SECONDS)
                self._refuse_if_lost()

    async def _patiently_async(
        self, call: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        while True:
            try:
                return await call(*args, **kwargs)
            except StoreUnavailable:
                await asyncio.sleep(AWAY_SECONDS)
                self._refuse_if_lost()

    def _refuse_if_lost(self) -> None:
        if self.lost:
            raise LeaseLost(f"job {self.id} is no longer ours; roll back and stop")


def _results(task: Task[..., R], ends: list[ParentEnd]) -> list[R]:
    kind = cast(type[R], task.signature.result_type)
    return [decode(end.result_json or "null", kind) for end in ends if end.state is State.SUCCEEDED]


def _decoded(checkpoint: str | None, type: type[T]) -> T | None:
    return None if checkpoint is None else decode(checkpoint, type)
