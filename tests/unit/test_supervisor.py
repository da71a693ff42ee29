"""A supervisor: stopped at any moment, and what its processes are told."""

from __future__ import annotations

import sys
import threading
from collections import ChainMap
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from tenure.worker.children.app_ref import AppRef
from tenure.worker.environment import Environment
from tenure.worker.settings import WorkerSettings, settings_of
from tenure.worker.supervisor import supervisor as module
from tenure.worker.supervisor.supervisor import Orders, Supervisor
from tests.support.patience import PATIENCE_SECONDS

APP = AppRef("jobs", "app", "sqlite:///jobs.db", (), ())


def test_a_signal_handler_may_stop_it_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two calls or returns of the thread that waits, as a signal's handler would."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    for moment in range(40):
        supervisor = Supervisor(APP, WorkerSettings(), 0, Environment())
        left = moment

        def run(supervisor: Supervisor = supervisor) -> None:
            def interrupt(frame: FrameType, event: str, what: object) -> None:  # noqa: ARG001
                nonlocal left
                left -= 1
                if left == 0:
                    supervisor.stop()

            sys.setprofile(interrupt)
            supervisor.run()

        running = threading.Thread(target=run, daemon=True)
        running.start()
        if moment == 0:
            supervisor.stop()
        running.join(PATIENCE_SECONDS)
        assert not running.is_alive(), f"it waits for ever: stopped at moment {moment}"


def test_its_processes_are_told_all_settings() -> None:
    """Also those that are no plain data."""
    settings = settings_of(
        {"gpu": 1}, {"health_file": Path("alive"), "queue_lease_seconds": ChainMap({"gpu": 60.0})}
    )
    told = msgspec.json.decode(
        Supervisor(APP, settings, 0, Environment())._orders, type=Orders
    ).settings
    assert told["health_file"] == "alive"
    assert told["queue_lease_seconds"] == {"gpu": 60.0}
