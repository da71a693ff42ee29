"""The executor of a worker's event loop."""

from __future__ import annotations

import threading

import pytest

from tenure.worker.threads import DaemonThreads

PATIENCE_SECONDS = 10.0


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
    threads._most = 3
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
    threads._most = 1
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
