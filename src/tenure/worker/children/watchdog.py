"""Ends the child processes of a worker that was killed.

    python watchdog.py

A child whose handler holds the GIL cannot notice that its worker is gone. So each worker with
children has one watchdog, a process of its own. It reads from its stdin which children there are:
`+PID MARK` when one starts, `-PID` when one has ended, `.` when the worker ends in order. When the
worker is gone, stdin ends. The watchdog then kills the process groups of the children, and reports
the processes that have left their group. It uses the standard library only, so it starts in a
moment and stays small.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "TENURE_CHILD"
"""The environment variable that marks a child and all processes that it starts."""
END = "."


def stray_processes(mark: str, group: int) -> Iterator[str]:
    """The live processes with this mark that have left the process group. Empty without /proc."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or it belongs to another user
            if wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            pid = int(folder.name)
            if os.getpgid(pid) != group and not _is_dead(folder):
                words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                yield f"process {pid} ({' '.join(words).strip():.80})"


def _is_dead(folder: Path) -> bool:
    """Is it a zombie, which only waits for its parent to notice?"""
    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    return state in "ZX"


def _is_ours(pid: int, mark: str) -> bool:
    """Does this process id still belong to the child? True where there is no /proc."""
    environ = Path(f"/proc/{pid}/environ")
    if not Path("/proc/self").exists():
        return True
    try:
        return f"{MARK}={mark}".encode() in environ.read_bytes().split(b"\0")
    except OSError:
        return False


def main() -> None:
    """Wait until the worker is gone, then kill its children."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its worker, not before
    children: dict[int, str] = {}
    for line in sys.stdin:
        if line.strip() == END:
            return
        pid, _, mark = line[1:].strip().partition(" ")
        if line.startswith("+"):
            children[int(pid)] = mark
        else:
            children.pop(int(pid), None)
    for child, mark in children.items():
        if _is_ours(child, mark):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
        for stray in stray_processes(mark, child):
            print(
                f"the worker was killed; {stray} was started by a handler in a session of its own "
                "and still runs",
                file=sys.stderr,
            )


if __name__ == "__main__":
    main()
