"""An event loop on the virtual clock: asyncio's own, except that it waits at the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.simulation.hub import Fiber, Gone, Hub, Process

TURN_SECONDS = 0.00002
"""So long a turn of the loop takes now and then: time passes even where nobody waits."""
TURNS_SHARE = 0.2


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, hub: Hub, process: Process) -> None:
        super().__init__()
        self._hub = hub
        self._process = process
        self._waits: tuple[Fiber, int] | None = None
        self._is_awake = False
        self._selector = self
        process.loops.append(self)

    def time(self) -> float:
        return self._hub.now

    def select(self, timeout: float | None) -> list[Any]:
        """Nothing ever comes from outside; wait for the time, or for another thread."""
        hub = self._hub
        if timeout is not None and timeout <= 0:
            if hub.random.random() < TURNS_SHARE:
                hub.sleep(TURN_SECONDS)
        elif not self._is_awake and (timeout is None or not hub.pass_time(timeout)):
            fiber = hub.fiber()
            self._waits = fiber, fiber.waits
            if timeout is not None:
                hub.wake(fiber, fiber.waits, timeout)
            hub.suspend(fiber)
            self._waits = None
        self._is_awake = False
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            if self._waits is not None:
                self._hub.wake(*self._waits)

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[..., Any],
        *args: Any,
    ) -> asyncio.Future[Any]:
        """In a thread, as many as there are calls."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():  # before a thread took it
                return
            try:
                answer = func(*args)
            except Gone:
                raise
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                self.call_soon_threadsafe(_answer, future, None, error)
            else:
                self.call_soon_threadsafe(_answer, future, answer, None)

        self._hub.spawn(self._process, run)
        return future


def _answer(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)


class Pool:
    """Threads that take calls, in place of a `ThreadPoolExecutor`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def submit(self, call: Callable[..., Any], *args: Any) -> None:
        """Run this in a thread of the process that asks."""
        self._hub.spawn(self._hub.here(), lambda: call(*args))

    def shutdown(self, wait: bool = True) -> None:
        """There is nothing to end."""
