"""The worker process under test: `python -m tests.worker_flat.serve URL async|thread`."""

from __future__ import annotations

import ctypes
import gc
import sys

from tenure import TaskSet, Tenure

ECHO = "flat.echo"
COLLECT = "flat.collect"


def let_go() -> None:
    """Collect garbage and give free memory back, so that what is left is what is held."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)


def tasks_of(kind: str) -> TaskSet:
    """Handlers of one kind."""
    tasks = TaskSet()
    if kind == "async":

        @tasks.task(name=ECHO)
        async def echo(text: str) -> str:
            return text

        @tasks.task(name=COLLECT)
        async def collect() -> None:
            let_go()

    else:

        @tasks.task(name=ECHO)
        def echo_in_thread(text: str) -> str:
            return text

        @tasks.task(name=COLLECT)
        def collect_in_thread() -> None:
            let_go()

    return tasks


def main() -> None:
    """Work until a signal comes."""
    url, kind = sys.argv[1:]
    app = Tenure(url)
    app.include(tasks_of(kind))
    # Services so often that all loops meet early: the threads that they need at once are there.
    app.run_worker(promote_seconds=0.05, sweep_seconds=0.05)


if __name__ == "__main__":
    main()
