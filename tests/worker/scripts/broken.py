"""An application that can be imported by its worker and by nobody else: `broken.py [asleep]`."""

from __future__ import annotations

import logging
import os
import sys
import time

from tenure import Tenure

app = Tenure()


@app.task(isolation="process", max_attempts=1)
def pid() -> int:
    return os.getpid()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    app.run_worker(lease_seconds=2.0, heartbeat_seconds=0.3, idle_poll_seconds=0.05)
elif "asleep" in sys.argv:
    print(f"child {os.getpid()} imports", flush=True)
    time.sleep(600)
else:
    raise ImportError("a configuration file is missing")
