"""Threads that keep no process from ending, for what handlers send to `asyncio.to_thread`.

The threads of a `ThreadPoolExecutor` are joined when the interpreter ends: a handler that hangs in
one of them would keep its worker alive after everything is settled.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Call = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """As many as there would be in the default executor of a loop, which must be of this class."""

    def __init__(self) -> None:
        super().__init__()  # decides how many, and starts nothing
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        """Threads that wait for a call, less the calls that wait for a thread."""
        self._running = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call this in a thread."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("this worker's event loop has ended")
            self._calls.put((future, partial(fn, *args, **kwargs)))
            self._waiting -= 1
            if self._waiting < 0 and self._running < self._max_workers:
                threading.Thread(
                    target=self._run, name=f"asyncio_{self._running}", daemon=True
                ).start()
                self._running += 1
                self._waiting += 1
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _answer(*call)
            del call  # so that nothing of it is kept until the next one
            with self._lock:
                self._waiting += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Start nothing more; waits for nobody."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                self._cancel_calls()
            for _ in range(self._running):
                self._calls.put(None)

    def _cancel_calls(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                return
            if call is not None:
                call[0].cancel()


def _answer(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
        future.set_exception(error)
        del future, call  # the error knows this frame, and would be kept by what it keeps
    else:
        future.set_result(result)
