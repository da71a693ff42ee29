"""Who uses the queue: producers that enqueue all kinds of jobs, and operators that interfere.

They use the real client, from coroutines or from threads. What gets no answer is left alone: it is
there, or it is not, and the checker allows for both.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tenure.client import Client
from tenure.errors import JobNotFound, StoreUnavailable, TenureError
from tenure.handle import Handle
from tenure.rules.claim import ALL_NEEDS
from tenure.rules.job import NewJob, Unique, Until
from tenure.tasks import Call, Task
from tenure.workflow import WorkflowRun
from tests.simulation import graphs, handlers

if TYPE_CHECKING:
    from tests.simulation.environment import VirtualEnvironment
    from tests.simulation.stage import Stage

KEYS = 8
RECENT = 20
LARGEST_KB = 6


class Users:
    """Those of one run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._plan = stage.plan
        self._random = stage.random
        self.ids: list[int] = []
        """The jobs that they know of."""
        self.flows: list[int] = []
        """The workflows."""

    @property
    def are_done(self) -> bool:
        """Have all producers enqueued what they wanted, or died?"""
        return all(process.ended or process.dead for process in self._stage.producers)

    async def enqueue(self, app: Client, calls: list[Call[Any]]) -> None:
        """A client that enqueues and ends."""
        self.ids += [handle.id for handle in await app.enqueue_many_async(calls)]

    async def produce(self, app: Client, _: VirtualEnvironment) -> None:
        """The life of a producer."""
        in_threads = self._random.random() < 0.3
        for _number in range(self._plan.calls):
            await asyncio.sleep(self._plan.call_seconds * 2 * self._random.random())
            try:
                if self._random.random() < self._plan.flow_share:
                    await self._enqueue_flow(app, in_threads)
                    continue
                if self._random.random() < 0.1:
                    await self._enqueue_by_name(app)
                    continue
                calls = [self._call() for _ in range(1 + int(4 * self._random.random() ** 2))]
                self.ids += [handle.id for handle in await _enqueue(app, calls, in_threads)]
            except (StoreUnavailable, JobNotFound):  # a parent may be of another tenant
                continue

    async def _enqueue_flow(self, app: Client, in_threads: bool) -> None:
        flow = graphs.build(app, self._random)
        run = await (asyncio.to_thread(flow.enqueue) if in_threads else flow.enqueue_async())
        self.flows.append(run.id)
        self.ids += [node.id for node in await run.nodes_async()]

    async def _enqueue_by_name(self, app: Client) -> None:
        """Without the task: the kind of slot is not known, or it is the one of older code."""
        tasks = (handlers.quick, handlers.ticked)
        new = [
            NewJob(task=self._random.choice(tasks).name, needs=self._random.choice(ALL_NEEDS))
            for _ in range(1 + int(3 * self._random.random()))
        ]
        self.ids += [added.id for added in await app.async_store.enqueue(new)]

    def _call(self) -> Call[Any]:
        draw, lease = self._random.random, self._plan.lease_seconds
        choices: list[tuple[Task[..., Any], tuple[Any, ...], int]] = [
            (handlers.quick, (), 5),
            (handlers.long, (2 * lease * draw() ** 2,), 2),
            (handlers.deaf, (lease * draw(),), 1),
            (handlers.timed, (0.6 * draw(),), 2),
            (handlers.blocking, (1.5 * lease * draw() ** 3,), 1),
            (handlers.in_thread, (lease * draw() ** 2,), 2),
            (handlers.deaf_thread, (2 * draw() ** 2,), 1),
            (handlers.heavy, ("x" * int(1024 * LARGEST_KB * draw()),), 2),
            (handlers.parent, (1 + int(3 * draw()),), 1),
            (handlers.stepping, (1 + int(3 * draw()),), 1),
            (handlers.stepping_thread, (1 + int(3 * draw()),), 1),
            (handlers.transactional, (0.3 * draw(),), 1),
            (handlers.once, (lease * draw(),), 1),
            (handlers.once_in_thread, (lease * draw() ** 2,), 1),
            (handlers.one_of_few, (0.2 * draw(),), 1),
            (handlers.in_line, (int(3 * draw()), 0.2 * draw()), 1),
        ]
        [(task, args, _)] = self._random.choices(choices, [weight for *_, weight in choices])
        return task.options(**self._options()).call(*args)

    def _options(self) -> Any:
        draw = self._random.random
        options: dict[str, Any] = {}
        if draw() < 0.3:
            options["priority"] = int(10 * draw()) - 5
        if draw() < 0.2:
            options["delay_seconds"] = draw()
        if draw() < 0.25:
            options["unique"] = self._key()
        if draw() < 0.1:
            tenant = f"tenant {int(2 * draw())}"
            options |= {"tenant": tenant, "metadata": {"tenant": tenant}}
        elif draw() < 0.1 and self.ids:
            options["parents"] = self._random.sample(self.ids[-RECENT:], min(2, len(self.ids)))
        if draw() < 0.2:
            options["max_attempts"] = 1 + int(3 * draw())
        return options

    def _key(self) -> Unique:
        until = self._random.choice([*Until])
        period = 0.5 if until is Until.PERIOD else None
        key = f"key {int(KEYS * self._random.random())}"
        return Unique(key=key, until=until, period_seconds=period)

    async def operate(self, app: Client, _: VirtualEnvironment) -> None:
        """The life of an operator."""
        await self._add_schedules(app)
        while not self._stage.is_calm:
            await asyncio.sleep(self._plan.operate_seconds * 2 * self._random.random())
            try:
                if self.flows and self._random.random() < 0.15:
                    await self._interfere_with_flow(app.workflow_run(self.flows[-1]))
                elif self.ids and self._random.random() < 0.2:
                    await self._interfere_with_many(app)
                elif self.ids:
                    await self._interfere(app, self._random.choice(self.ids[-RECENT:]))
            except TenureError:
                continue

    async def _add_schedules(self, app: Client) -> None:
        for name, timing in self._plan.schedules.items():
            while True:
                try:
                    await app.schedules.add_async(name, handlers.ticked, **timing)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.1)
                except TenureError:  # it is there: the answer was lost
                    break

    async def _interfere(self, app: Client, id: int) -> None:
        match int(10 * self._random.random()):
            case 0 | 1 | 2 | 3:
                await app.cancel_async(id)
            case 4 | 5:
                await app.move_async(id, priority=int(10 * self._random.random()))
            case 6 | 7:
                await app.replay_async(id)
            case 8:
                await app.hold_async(id)
                await asyncio.sleep(0.2)
                await app.unhold_async(id)
            case _:
                await app.get_async(id)

    async def _interfere_with_many(self, app: Client) -> None:
        """A batch: what one operation does to each of these jobs."""
        store, draw = app.async_store, self._random.random
        ids = self._random.sample(self.ids[-RECENT:], min(len(self.ids), 1 + int(8 * draw())))
        match int(6 * draw()):
            case 0 | 1:
                await store.cancel_many(ids)
            case 2:
                await store.move_many(ids, priority=int(10 * draw()))
            case 3 | 4:
                await store.replay_many(ids)
            case _:
                await store.hold_many(ids)
                await asyncio.sleep(0.2)
                await store.unhold_many(ids)

    async def _interfere_with_flow(self, run: WorkflowRun) -> None:
        if self._random.random() < 0.5:
            await run.cancel_async()
            return
        await run.pause_async()
        await asyncio.sleep(0.2)
        await run.resume_async()

    async def keep_house(self, app: Client, _: VirtualEnvironment) -> None:
        """After the faults: no more ticks, and nothing is held back."""
        for name in self._plan.schedules:
            try:
                await app.schedules.pause_async(name)
            except TenureError:
                continue  # it was never added
        while not self._stage.is_quiet():
            for id in self._stage.paused_flows():
                await app.workflow_run(id).resume_async()
            for id in self._stage.held():
                try:
                    await app.unhold_async(id)
                except TenureError:
                    continue
            await asyncio.sleep(1.0)


async def _enqueue(app: Client, calls: list[Call[Any]], in_threads: bool) -> list[Handle[Any]]:
    if in_threads:
        return await asyncio.to_thread(app.enqueue_many, calls)
    return await app.enqueue_many_async(calls)
