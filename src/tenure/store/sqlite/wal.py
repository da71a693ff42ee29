"""The write-ahead log of a file grows while a reader keeps an old snapshot. Which process is it?

SQLite empties the log when no reader needs it any more, and cuts it to `LARGE_WAL_BYTES` then. If
it is larger, a checkpoint tells whether a reader holds it up: then it stops at the same page again
and again. On Linux, `/proc/locks` may tell which process has locked a reading slot of the `-shm`
file; it shows no process of another container. That file is never opened here: to close it again
would release all locks that SQLite has on it in this process.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

from tenure.store.sqlite.driver import LARGE_WAL_BYTES, Driver, DriverError, connect, translate

SAMPLES = 4
SAMPLE_SECONDS = 0.1
"""A process that reads at every sample keeps a snapshot, or reads all the time."""

_LOCKS = Path("/proc/locks")
_READING_SLOTS = range(123, 128)
"""The bytes of the -shm file that readers lock: WAL_READ_LOCK in SQLite's file format."""


async def growth(
    names: tuple[str, str, str], driver: Driver, rest: Callable[[float], Awaitable[None]]
) -> str | None:
    """Why the log is too large, and which process is the cause, as far as this machine tells.

    None: it is not too large, or no process keeps SQLite from emptying it.
    """
    file, wal, shm = names
    try:
        size = os.stat(wal).st_size
    except OSError:  # there is no log
        return None
    if size <= LARGE_WAL_BYTES:
        return None
    reading, reached = _readers(shm), _checkpoint(file, driver)
    for _ in range(SAMPLES - 1):
        await rest(SAMPLE_SECONDS)
        reading &= _readers(shm)
        if reached is None or _checkpoint(file, driver) != reached:
            return None
    who = "a process"
    if known := sorted(pid for pid in reading if pid > 0):  # others are in another container
        who = " and ".join(f"process {pid}{_command(pid)}" for pid in known)
    return (
        f"the write-ahead log of {file} has {size // 1_000_000} MB and cannot be emptied: {who} "
        "reads an old snapshot; end that transaction or that process"
    )


def _checkpoint(file: str, driver: Driver) -> int | None:
    """Move pages from the log into the file. Returns where a reader stops it; None: none does."""
    try:
        with closing(connect(file, driver)) as connection:
            [(_, pages, moved)] = connection.execute("pragma wal_checkpoint(passive)")
    except DriverError as error:
        raise translate(error, file) from error
    return int(moved) if moved < pages else None


def _readers(shm: str) -> set[int]:
    """The processes that read now, as far as this machine tells."""
    try:
        lines = _LOCKS.read_text().splitlines()
        found = os.stat(shm)
    except OSError:
        return set()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return {pid for pid in (_reader(line.split(), device) for line in lines) if pid is not None}


def _reader(words: list[str], device: str) -> int | None:
    """The process of a line of /proc/locks, if it is a reader of this file.

    For example: `12: POSIX  ADVISORY  READ 4711 00:1a:1234 124 124`
    """
    if len(words) != 8 or words[3] != "READ" or words[5] != device:
        return None
    _, _, _, _, pid, _, start, end = words
    if end == "EOF" or not (int(start) in _READING_SLOTS and int(end) in _READING_SLOTS):
        return None
    return int(pid)


def _command(pid: int) -> str:
    """The command of a process, in brackets; nothing if it cannot be seen."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if command := " ".join(words).strip():
            return f" ({command[:80]})"
    return ""
