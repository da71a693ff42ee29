"""A script that starts its worker whenever it is run, and so also when a child imports it."""

from __future__ import annotations

import logging
import os

from tenure import Tenure

app = Tenure()
logging.basicConfig(level=logging.INFO)


@app.task(isolation="process", max_attempts=1)
def pid() -> int:
    return os.getpid()


app.run_worker(lease_seconds=2.0, heartbeat_seconds=0.3, idle_poll_seconds=0.05)
