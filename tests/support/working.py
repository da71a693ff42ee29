"""A worker in a thread beside the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Unpack

from tenure import Tenure, Worker
from tenure.worker.environment import Environment
from tenure.worker.settings import Settings
from tests.support.patience import PATIENCE_SECONDS

QUICK: Settings = {
    "lease_seconds": 10.0,
    "heartbeat_seconds": 0.1,
    "promote_seconds": 0.02,
    "sweep_seconds": 0.2,
    "idle_poll_seconds": 0.05,
}
"""A worker that notices everything soon. The lease is long: a busy machine is not a dead worker."""


@contextmanager
def working(
    app: Tenure,
    queues: Mapping[str, int] | None = None,
    *,
    environment: Environment | None = None,
    **settings: Unpack[Settings],
) -> Iterator[Worker]:
    """`app.run_worker()` in a thread of its own. At the end it is stopped, and drains."""
    chosen: Settings = {**QUICK, **settings}
    worker = Worker(app, queues, environment=environment, **chosen)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - raised again where the test can see it
            failures.append(error)

    thread = threading.Thread(target=run, name="test-worker", daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
    if failures:
        raise failures[0]
    assert not thread.is_alive(), "the worker does not stop"
