"""A fact that handlers wait for, in as many threads as they like."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tenure import running
from tenure.running import Flag
from tests.support.patience import PATIENCE_SECONDS


def test_two_threads_that_begin_to_wait_at_once_are_both_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flag, woken = Flag(), []
    threads = [
        threading.Thread(target=lambda: woken.append(flag.wait(PATIENCE_SECONDS))) for _ in range(2)
    ]
    waiting, waits = threading.Event(), threading.Semaphore(0)

    class Bell(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.set()
            waits.release()
            return super().wait(timeout)

    def make_bell() -> threading.Event:
        if threading.current_thread() is threads[0]:  # meanwhile the other one waits
            threads[1].start()
            waiting.wait(PATIENCE_SECONDS)
        return Bell()

    monkeypatch.setattr(running, "threading", SimpleNamespace(Event=make_bell))
    threads[0].start()
    for _ in threads:
        assert waits.acquire(timeout=PATIENCE_SECONDS)
    flag.set()
    for thread in threads:
        thread.join()
    assert woken == [True, True]
