"""A worker whose jobs fail with long tracebacks: `python -m tests.worker_flat.failing URL`."""

from __future__ import annotations

import sys

from tenure import TaskSet, Tenure

tasks = TaskSet()


@tasks.task(name="flat.fail", max_attempts=1)
async def fail() -> None:
    raise RuntimeError("m" * 100_000)


@tasks.task(name="flat.fail_in_thread", max_attempts=1)
def fail_in_thread() -> None:
    raise RuntimeError("m" * 100_000)


def main() -> None:
    """Work until a signal comes."""
    app = Tenure(sys.argv[1])
    app.include(tasks)
    app.run_worker(heartbeat_seconds=0.5)


if __name__ == "__main__":
    main()
