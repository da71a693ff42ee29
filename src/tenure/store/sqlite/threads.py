"""The threads that run the SQLite operations of an async store, so that they do not block its loop.

Several threads write: they wait for each other and share commits. One thread reads, because there
is one reading connection; it never waits for writers. One thread writes the operations that event
loops have gathered. Threads start on demand. A fork has none of them and starts its own.

A thread writes what several tasks of an event loop enqueue in one transaction. A `Gathering`
collects their operations for one iteration of the loop, or while the thread writes earlier ones.
(On a busy machine, 64 tasks with a thread and statements each enqueued 2,100 to 2,500 jobs/s.
Gathered, they enqueue 4,800 to 8,900.)
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, Protocol

from tenure.errors import InvalidInput
from tenure.store.session import Joint, Mode, Operation, R, Scope
from tenure.store.sqlite.group_commit import Outcome

WRITING_THREADS = 32
GATHERING_LIMIT = 1000

Line = Literal["writing", "reading", "gathering"]


class Writer(Protocol):
    """Writes operations of several callers in one transaction."""

    def transact_each(self, ops: Sequence[Operation[Any]]) -> list[Outcome]: ...


class Threads:
    """The threads of one store."""

    def __init__(self, writer: Writer, most: int = WRITING_THREADS) -> None:
        self._writer = writer
        self._most = most
        self._ended = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._of_thread = threading.local()  # an event loop runs in one thread
        self._pools: dict[Line, ThreadPoolExecutor] = {
            "writing": ThreadPoolExecutor(self._most, thread_name_prefix="tenure-sqlite"),
            "reading": ThreadPoolExecutor(1, thread_name_prefix="tenure-sqlite-read"),
            "gathering": ThreadPoolExecutor(1, thread_name_prefix="tenure-sqlite-gather"),
        }

    def of(self, line: Line) -> ThreadPoolExecutor | None:
        """The threads of this process; None after `end`, when the store is closed."""
        if self._ended:
            return None
        if self._pid != os.getpid():
            self._begin()
        return self._pools[line]

    def gathering(self) -> "Gathering":
        """The operations that the tasks of the running event loop have handed over."""
        loop = asyncio.get_running_loop()
        gathering: Gathering | None = getattr(self._of_thread, "gathering", None)
        if gathering is None or gathering.loop is not loop:
            gathering = self._of_thread.gathering = Gathering(self, self._writer, loop)
        return gathering

    def end(self) -> None:
        """End the threads, after they have run the operations that wait for them."""
        gathering: Gathering | None = getattr(self._of_thread, "gathering", None)
        if gathering is not None:
            gathering.send()
        self._ended = True
        if self._pid == os.getpid():
            for pool in self._pools.values():
                pool.shutdown()


class GatheringScope(Scope):
    """A scope whose joint operations are written with those of other tasks of the event loop."""

    __slots__ = ("_threads",)

    def __init__(self, scope: Scope, threads: Threads) -> None:
        super().__init__(scope.session, scope.tenant, suspends=True)
        self._threads = threads

    async def transact_joint(self, op: Joint[R], mode: Mode = Mode.WRITE) -> R:  # noqa: ARG002
        answer: R = await self._threads.gathering().add(op)
        return answer


class Gathering:
    """Operations of the tasks of one event loop. A task that is cancelled leaves the others alone.

    The loop's thread can be interrupted between any two steps, and the loop may run again. So an
    operation stays where it waits until a thread takes it, and each step can be made twice.
    """

    def __init__(self, threads: Threads, writer: Writer, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._threads = threads
        self._writer = writer
        self._waiting: deque[_Waiting] = deque()
        self._busy = False
        """They will be sent: after this iteration of the loop, or when earlier ones are written."""

    def add(self, op: Operation[R]) -> "asyncio.Future[R]":
        """Write it together with the others."""
        future: asyncio.Future[R] = self.loop.create_future()
        self._waiting.append((future, op))
        if not self._busy:
            self.loop.call_soon(self.send)
            self._busy = True
        return future

    def send(self) -> None:
        """Let a thread write all waiting operations."""
        try:
            pool = self._threads.of("gathering")
            if pool is None:
                raise InvalidInput("this store is closed; open another one")
            pool.submit(self._write)
        except Exception as error:  # noqa: BLE001 - for all of them: there is no thread
            taken = self._take(len(self._waiting))
            self._answer(taken, [(None, error)] * len(taken))
        except BaseException:  # interrupted
            self.loop.call_soon(self.send)
            raise

    def _take(self, most: int) -> "list[_Waiting]":
        """Take operations out. The caller must give each of them its outcome."""
        taken: list[_Waiting] = []
        with suppress(IndexError):  # no more of them
            while len(taken) < most:
                future, op = self._waiting.popleft()
                if not future.done():  # its task was not cancelled
                    taken.append((future, op))
        return taken

    def _write(self) -> None:
        taken = self._take(GATHERING_LIMIT)
        outcomes: list[Outcome] = []
        try:
            if taken:
                outcomes = self._writer.transact_each([op for _, op in taken])
        except Exception as error:  # noqa: BLE001 - for all of them
            outcomes = [(None, error)] * len(taken)
        with suppress(RuntimeError):  # the loop is closed: no task waits
            self.loop.call_soon_threadsafe(self._answer, taken, outcomes)

    def _answer(self, taken: "list[_Waiting]", outcomes: list[Outcome]) -> None:
        try:
            for (future, _), (answer, error) in zip(taken, outcomes, strict=True):
                if future.done():
                    continue
                if error is None:
                    future.set_result(answer)
                else:
                    future.set_exception(error)
            if self._waiting:
                self.loop.call_soon(self.send)  # after the tasks that have a result have run
            else:
                self._busy = False
        except BaseException:  # interrupted
            self.loop.call_soon(self._answer, taken, outcomes)
            raise


_Waiting = tuple["asyncio.Future[Any]", Operation[Any]]
