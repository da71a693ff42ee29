"""The executor of a worker's event loop."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from tenure.worker.running.daemon_threads import DaemonThreads
from tests.support.patience import PATIENCE_SECONDS


def test_calls_are_answered_by_threads_that_keep_no_process_alive() -> None:
    threads = DaemonThreads()
    first = threads.submit(threading.current_thread)
    assert first.result(PATIENCE_SECONDS).daemon
    assert threads.submit(int, "12", base=8).result(PATIENCE_SECONDS) == 10
    with pytest.raises(ValueError, match="invalid literal"):
        threads.submit(int, "x").result(PATIENCE_SECONDS)
    threads.shutdown()


def test_there_are_as_many_threads_as_calls_up_to_a_limit() -> None:
    threads = DaemonThreads()
    threads._max_workers = 3
    go_on, seen = threading.Event(), set()

    def call() -> None:
        seen.add(threading.current_thread())
        go_on.wait(PATIENCE_SECONDS)

    calls = [threads.submit(call) for _ in range(10)]
    go_on.set()
    for one in calls:
        one.result(PATIENCE_SECONDS)
    assert len(seen) == 3
    threads.shutdown(wait=False, cancel_futures=True)
    for thread in seen:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_after_the_end_nothing_starts() -> None:
    threads = DaemonThreads()
    threads._max_workers = 1
    go_on = threading.Event()
    runs, waits = threads.submit(go_on.wait), threads.submit(go_on.wait)
    while not runs.running():
        pass
    threads.shutdown(wait=False, cancel_futures=True)
    assert waits.cancelled()
    with pytest.raises(RuntimeError, match="has ended"):
        threads.submit(go_on.wait)
    go_on.set()
    assert runs.result(PATIENCE_SECONDS)


def test_a_call_that_failed_keeps_nothing_alive() -> None:
    class Large:
        pass

    def fails(_: Large) -> None:
        raise ValueError("no")

    threads, large = DaemonThreads(), Large()
    seen = weakref.ref(large)
    gc.disable()
    try:
        future = threads.submit(fails, large)
        assert isinstance(future.exception(PATIENCE_SECONDS), ValueError)
        assert threads.submit(int).result(PATIENCE_SECONDS) == 0  # that thread has let go of it
        del future, large
        assert seen() is None
    finally:
        gc.enable()
        threads.shutdown()
