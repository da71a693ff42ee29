"""The worker processes that are measured: `python -m tenure.benchmark PROCESSES QUEUE...`.

They end when the process that has started them is gone: it holds the other end of stdin.
"""

import logging
import os
import signal
import sys
import threading

from tenure.benchmark.tasks import app

DRAIN_SECONDS, KILL_SECONDS = 2.0, 1.0
"""Nothing of value is lost: the whole place is removed afterwards."""


def main() -> None:
    """Work until told to stop, or left alone."""
    logging.basicConfig(level=logging.WARNING)
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    _, processes, *queues = sys.argv
    app.run_worker(
        dict.fromkeys(queues, 0),
        processes=int(processes),
        drain_seconds=DRAIN_SECONDS,
        kill_seconds=KILL_SECONDS,
    )


def _stop_when_alone() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
