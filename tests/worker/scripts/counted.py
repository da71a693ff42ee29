"""A worker whose jobs end in many ways: `counted.py PROCESSES SECONDS_BETWEEN_WRITES`."""

from __future__ import annotations

import os
import sys

from tenure import Fixed, Running, Skip, Snooze, Tenure
from tenure.worker.settings import Settings
from tenure.worker.upkeep import upkeep

app = Tenure()
FAST: Settings = {
    "lease_seconds": 2.0,
    "heartbeat_seconds": 0.1,
    "sweep_seconds": 0.1,
    "promote_seconds": 0.05,
    "idle_poll_seconds": 0.05,
}
processes, seconds = int(sys.argv[1]), float(os.environ.get("SECONDS", sys.argv[2]))
os.environ["SECONDS"] = str(seconds)  # for the processes of this worker
upkeep.STATISTICS_SECONDS = seconds


@app.task(max_attempts=3, retry=Fixed(0.01))
async def act(job: Running, n: int) -> int:
    match n % 6:
        case 0:
            raise ValueError("no")
        case 1 if job.attempt < 3:
            raise ValueError("not yet")
        case 2:
            raise Skip("not today")
        case 3 if job.attempt < 2 and n % 2 and job.token < 2:
            raise Snooze(0.01)
    return n


@app.task(queue="threads")
def sync(n: int) -> int:
    return n


if __name__ == "__main__":
    app.run_worker({"default": 1, "threads": 1}, processes=processes, **FAST)
