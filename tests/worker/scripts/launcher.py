"""A script that starts the worker of an application that lives in a module."""

from __future__ import annotations

import logging

from tests.worker.isolated import app

if __name__ == "__main__":  # child processes import this file
    logging.basicConfig(level=logging.INFO)
    app.run_worker(lease_seconds=2.0, heartbeat_seconds=0.3, idle_poll_seconds=0.05)
