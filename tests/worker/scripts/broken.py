"""An application that can be imported by its worker and by nobody else."""

from __future__ import annotations

import logging
import os

from tenure import Tenure

app = Tenure()


@app.task(isolation="process", max_attempts=1)
def pid() -> int:
    return os.getpid()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    app.run_worker(lease_seconds=2.0, heartbeat_seconds=0.3, idle_poll_seconds=0.05)
else:
    raise ImportError("a configuration file is missing")
