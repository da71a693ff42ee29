"""The measured worker processes: `python -m tenure.benchmark PROCESSES QUEUE...`.

They exit when stdin is closed, because the measuring process has the other end of it.
"""

import logging
import os
import signal
import sys
import threading

from tenure.benchmark.tasks import app

DRAIN_SECONDS, KILL_SECONDS = 2.0, 1.0
"""Short, because the whole schema or folder is removed afterwards."""


def main() -> None:
    """Work until a signal arrives or stdin is closed."""
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
