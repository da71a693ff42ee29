"""Daemon threads for the calls that handlers make with `asyncio.to_thread`.

The threads of a `ThreadPoolExecutor` are not daemons: the interpreter joins them when it ends. A
call that hangs in one of them would keep the process alive after the worker has settled all jobs.
(`os._exit` is no way out: `Worker.run` returns to the caller's script.)
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
    """A thread pool of the default size. (A loop's default executor must be of its base class.)"""

    def __init__(self) -> None:
        super().__init__()  # computes the number of threads, and starts none
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        """Idle threads minus waiting calls."""
        self._running = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in a thread."""
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
            _run_call(*call)
            del call  # so that its objects are not kept until the next call
            with self._lock:
                self._waiting += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Accept no more calls. Never waits for running calls."""
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


def _run_call(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        future.set_exception(error)
        del future, call  # the error refers to this frame: break the reference cycle
    else:
        future.set_result(result)
