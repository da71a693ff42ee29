"""Virtual time: one thread of the machine plays all threads of all processes, one at a time.

A fiber is a thread, or the event loop, of a simulated process. It runs until it waits: for a time,
for an event, or for an answer of the store. Then the hub moves the clock to the next thing that is
to happen. What happens at the same time happens in an order drawn by the seed. Nothing here looks
at the machine's clock, so a seed always gives the same run.

A process that is killed is never resumed: its fibers and tasks vanish where they stand. One that is
paused is resumed later, and finds that time has passed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from tenure.running import Flag

START_SECONDS = 1000.0
OP: ContextVar[str] = ContextVar("op", default="")
"""The operation that this task or thread has sent, and those that work for it."""


class Gone(BaseException):
    """Raised in what is left of a process after its death, to clear it away."""


class Process:
    """A simulated process: its threads come and go together."""

    def __init__(self, hub: Hub, pid: int, name: str) -> None:
        self.hub = hub
        self.pid = pid
        self.name = name
        self.dead = False
        self.clearing = False
        self.ended = False
        """It came to its end by itself."""
        self.is_worker = False
        self.stopping = False
        self.paused_until = 0.0
        self.cut_until = 0.0
        """Until then nothing that it sends reaches the store."""
        self.troubles: list[tuple[float, float]] = []
        """From when to when something was done to it for which it may lose a lease."""
        self.claim_troubles: list[tuple[float, float]] = []
        """From when to when a claim of its went wrong: that may cost what it has claimed."""
        self.stalls: list[tuple[float, float]] = []
        """From when to when it was paused, or a handler blocked its event loop."""
        self.fibers: set[Fiber] = set()
        self.loops: list[asyncio.AbstractEventLoop] = []

    def __repr__(self) -> str:
        return f"{self.name}"

    def trouble(self, seconds: float) -> None:
        """Something is done to it for so long."""
        self.troubles.append((self.hub.now, self.hub.now + seconds))

    def trouble_claim(self, seconds: float) -> None:
        """One of its claims goes wrong, or takes so long."""
        self.claim_troubles.append((self.hub.now, self.hub.now + seconds))

    def stall(self, seconds: float) -> None:
        """It, or its event loop, stands still for so long."""
        self.stalls.append((self.hub.now, self.hub.now + seconds))

    def was_troubled(self, since: float, until: float) -> bool:
        """Was anything done to it in this time?"""
        return _any_between(self.troubles, since, until)

    def claimed_in_trouble(self, since: float, until: float) -> bool:
        """Went a claim of its wrong in this time?"""
        return _any_between(self.claim_troubles, since, until)

    def was_stalled(self, since: float, until: float) -> bool:
        """Did it stand still in this time?"""
        return _any_between(self.stalls, since, until)

    def stalled_seconds(self, since: float, until: float) -> float:
        """For how long of this time did it stand still, at most?"""
        spans = (min(ended, until) - max(begun, since) for begun, ended in self.stalls)
        return sum(span for span in spans if span > 0)

    def moves_at(self, at: float) -> float:
        """When does it go on that stands still at this time? At once, if it does not."""
        return max([ended for begun, ended in self.stalls if begun <= at <= ended], default=at)

    @property
    def is_running(self) -> bool:
        """Neither dead nor at its end, nor paused just now."""
        return not (self.dead or self.ended) and self.paused_until <= self.hub.now


def _any_between(spans: list[tuple[float, float]], since: float, until: float) -> bool:
    return any(begun <= until and ended >= since for begun, ended in spans)


class Fiber:
    """A thread or an event loop of a simulated process."""

    __slots__ = ("greenlet", "loop", "process", "renews", "waits")

    def __init__(self, process: Process, loop: asyncio.AbstractEventLoop | None) -> None:
        self.process = process
        self.loop = loop
        self.renews = False
        """It is the thread of heartbeats."""
        self.waits = 0
        """How often it has waited: a call to wake it from an earlier wait is void."""
        self.greenlet: greenlet


class Hub:
    """The clock, and what is to happen next."""

    def __init__(self, random: Random) -> None:
        self.now = START_SECONDS
        self.random = random
        self.current: Fiber | None = None
        self.turns = 0
        self._main = getcurrent()
        self._limit = self.now
        """So far time may pass before the hub must have its turn again."""
        self._line: list[tuple[float, float, int, Any, int]] = []
        self._numbers = itertools.count()

    # --- for who plays the game ------------------------------------------------------------------

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this in so many seconds, whoever has died meanwhile."""
        entry = (self.now + seconds, self.random.random(), next(self._numbers), call, -1)
        heapq.heappush(self._line, entry)

    def spawn(
        self,
        process: Process,
        body: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Fiber:
        """Start a thread of a process."""
        fiber = Fiber(process, loop)
        op = OP.get()

        def run() -> None:
            OP.set(op)
            try:
                body()
            except Gone:
                pass
            finally:
                process.fibers.discard(fiber)

        fiber.greenlet = greenlet(run, self._main)
        process.fibers.add(fiber)
        self.wake(fiber, 0)
        return fiber

    def run_until(self, is_over: Callable[[], bool], limit_seconds: float) -> bool:
        """Let time pass until this is so, at most so long. Answers whether it is."""
        self._limit = limit = self.now + limit_seconds
        while not is_over():
            if not self._line or self._line[0][0] > limit:
                self.now = limit
                return False
            self._step()
        return True

    def _step(self) -> None:
        at, _, _, what, number = heapq.heappop(self._line)
        if number == -1:
            self.now = max(self.now, at)
            what()
            return
        fiber: Fiber = what
        process = fiber.process
        if process.dead or number != fiber.waits:
            return
        self.now = max(self.now, at)
        if process.paused_until > self.now:
            entry = (process.paused_until, self.random.random(), next(self._numbers), fiber, number)
            heapq.heappush(self._line, entry)
            return
        self._resume(fiber)

    def _resume(self, fiber: Fiber) -> None:
        self.turns += 1
        fiber.waits += 1
        self.current = fiber
        asyncio._set_running_loop(fiber.loop)
        try:
            fiber.greenlet.switch()
        finally:
            asyncio._set_running_loop(None)
            self.current = None

    def kill(self, process: Process) -> None:
        """It is gone, between one moment and the next. Nothing of it will ever run again."""
        process.dead = True
        process.trouble(float("inf"))

    def clear(self, process: Process) -> None:
        """Take down what a dead process has left behind, in silence."""
        process.dead = process.clearing = True
        for loop in process.loops:
            loop.set_exception_handler(lambda *_: None)
        for fiber in list(process.fibers):
            self.current = fiber
            asyncio._set_running_loop(fiber.loop)
            _end(fiber.greenlet.throw, partial(getattr, fiber.greenlet, "dead"))
            asyncio._set_running_loop(None)
        for loop in process.loops:
            self.current = Fiber(process, loop)
            asyncio._set_running_loop(loop)
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _end(task.get_coro().throw)
            asyncio._set_running_loop(None)
            loop.close()
        self.current = None
        process.fibers.clear()
        process.loops.clear()

    # --- for fibers ------------------------------------------------------------------------------

    def here(self) -> Process:
        """The process whose turn it is."""
        assert self.current is not None, "this is not called by a simulated process"
        return self.current.process

    def wake(self, fiber: Fiber, number: int, seconds: float = 0.0) -> None:
        """Resume this fiber in so many seconds, if it then still is in that wait."""
        entry = (self.now + seconds, self.random.random(), next(self._numbers), fiber, number)
        heapq.heappush(self._line, entry)

    def pass_time(self, seconds: float) -> bool:
        """Let so much time pass at once, if nothing else happens in it. Answers whether it has."""
        until = self.now + seconds
        fiber = self.fiber()
        if until > self._limit or fiber.process.dead or (self._line and self._line[0][0] <= until):
            return False
        fiber.waits += 1
        self.now = until
        return True

    def sleep(self, seconds: float) -> None:
        """Wait so long, in a fiber."""
        if self.pass_time(seconds):
            return
        fiber = self.fiber()
        self.wake(fiber, fiber.waits, seconds)
        self.suspend(fiber)

    def suspend(self, fiber: Fiber) -> None:
        """Wait until somebody calls `wake`."""
        if fiber.process.clearing:
            raise Gone
        self._main.switch()  # of a dead process, nobody comes back but with Gone

    def fiber(self) -> Fiber:
        """Who runs now."""
        assert self.current is not None, "only a simulated process can wait"
        return self.current


def _end(throw: Callable[[Any], Any], is_over: Callable[[], bool] = lambda: False) -> None:
    """Throw it out of every place in which it waits, until nothing is left."""
    for _ in range(1000):
        if is_over():
            return
        try:
            throw(Gone())
        except (Exception, Gone, asyncio.CancelledError):  # noqa: BLE001 - said by a dead process
            return


class Event:
    """Like that of `threading`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._set = False
        self._waiting: list[tuple[Fiber, int]] = []

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for fiber, number in waiting:
            self._hub.wake(fiber, number)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        hub = self._hub
        fiber = hub.fiber()
        mine = (fiber, fiber.waits)
        self._waiting.append(mine)
        if timeout is not None:
            hub.wake(fiber, fiber.waits, max(0.0, timeout))
        hub.suspend(fiber)
        if mine in self._waiting:  # the time was over first
            self._waiting.remove(mine)
        return self._set


def virtual_wait(hub: Hub) -> Callable[[Flag, float | None], bool]:
    """`Flag.wait` in the time of the hub. `Flag.set` rings the bell, whatever its kind."""

    def wait(flag: Flag, timeout_seconds: float | None = None) -> bool:
        event = flag.__dict__.setdefault("_bell", Event(hub))
        return bool(flag) or event.wait(timeout_seconds)

    return wait


class Permits:
    """Like `queue.SimpleQueue`."""

    def __init__(self, hub: Hub) -> None:
        self._count = 0
        self._event = Event(hub)

    def put(self, item: None) -> None:  # noqa: ARG002
        self._count += 1
        self._event.set()

    def get(self) -> None:
        while self._count == 0:
            self._event.clear()
            self._event.wait()
        self._count -= 1


class Thread:
    """Like that of `threading`."""

    def __init__(self, hub: Hub, body: Callable[[], None], name: str) -> None:
        self._hub = hub
        self._body = body
        self._name = name
        self._over = Event(hub)

    def start(self) -> None:
        fiber = self._hub.spawn(self._hub.here(), self._run)
        fiber.renews = self._name == "tenure-heartbeat"

    def _run(self) -> None:
        try:
            self._body()
        finally:
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)
