"""The worker process under test: `python -m tests.worker_flat.serve URL async|thread`."""

from __future__ import annotations

import ctypes
import gc
import sys

from tenure import TaskSet, Tenure

ECHO = "flat.echo"
COLLECT = "flat.collect"


class Mallinfo(ctypes.Structure):
    """What mallinfo2 of the GNU C library answers."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip
    hblkhd: int
    uordblks: int


def held_bytes() -> int:
    """What is allocated and not freed, after garbage was collected. Free memory is given back.

    The resident set alone would also count what lies free between two live objects, and that
    depends on how many jobs were in flight at the busiest moment.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = Mallinfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def tasks_of(kind: str) -> TaskSet:
    """Handlers of one kind."""
    tasks = TaskSet()
    if kind == "async":

        @tasks.task(name=ECHO)
        async def echo(text: str) -> str:
            return text

        @tasks.task(name=COLLECT)
        async def collect() -> int:
            return held_bytes()

    else:

        @tasks.task(name=ECHO)
        def echo_in_thread(text: str) -> str:
            return text

        @tasks.task(name=COLLECT)
        def collect_in_thread() -> int:
            return held_bytes()

    return tasks


def main() -> None:
    """Work until a signal comes."""
    url, kind = sys.argv[1:]
    app = Tenure(url)
    app.include(tasks_of(kind))
    # Services so often that all loops meet early: the threads that they need at once are there.
    app.run_worker(promote_seconds=0.05, sweep_seconds=0.05, prune_seconds=1.0)


if __name__ == "__main__":
    main()
