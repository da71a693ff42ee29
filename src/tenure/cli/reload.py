"""`--reload`: a parent process that runs the command again when a loaded source file changes.

The parent imports no code of the user, so that an error in it cannot end the parent. Its child
process (reloaded.py) runs the command, and tells the parent through a socket which files it has
loaded. The parent looks at their times. A child that ended by itself, for example because of a
syntax error, has written its error; the next change starts another one.
"""

import logging
import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from tenure.worker.signals import catch_signals
from tenure.worker.worker import require_posix

LOOK_SECONDS = 0.2
LAST_SECONDS = 1.0
"""How long a child may take to end after a second signal."""

log = logging.getLogger("tenure.worker")

_is_child = False


def be_child() -> None:
    """This process was started by a `Reloader`: commands run as without --reload."""
    global _is_child  # noqa: PLW0603
    _is_child = True


def is_child() -> bool:
    """Was this process started by a `Reloader`?"""
    return _is_child


class Reloader:
    """Runs a command in a child process, and again after each change of a file that it loaded."""

    def __init__(self, words: list[str], *, stop_seconds: float) -> None:
        self._words = words
        self._stop_seconds = stop_seconds
        self._times: dict[str, int | None] = {}
        """Each watched file, and when it was last changed; None: it does not exist."""
        self._modules: dict[str, frozenset[str]] = {}
        """The modules in each folder where an import may look for a new one."""
        self._child: _Child | None = None
        # Not a `threading.Event`, whose lock a signal handler may need while it is taken.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> int:
        """Run until a signal comes. Returns the exit code."""
        require_posix()
        with catch_signals(lambda: self._stops.put(None), self._leave):
            changed: set[str] = set()
            while True:
                self._start(changed)
                found = self._until_change()
                if isinstance(found, int):
                    return found
                changed = found
                log.info("%s changed; the worker restarts", _shown(changed))
                self._end()

    def _start(self, changed: Iterable[str]) -> None:
        for file in changed:
            _forget_bytecode(file)
        self._times = {file: _time_of(file) for file in self._times}
        self._modules = {folder: _modules(folder) for folder in [str(Path.cwd()), *self._modules]}
        self._child = _Child(self._words)

    def _until_change(self) -> set[str] | int:
        """Wait for a change: returns the files. After a signal, returns the exit code."""
        assert self._child is not None
        has_ended = False
        while not self._is_stopped(LOOK_SECONDS):
            code = self._child.exit_code()
            changed = self._changed()
            if code is not None:
                if not self._times:  # it has loaded no file that could be mended
                    self._end()
                    return code
                changed |= {name for name, was in self._modules.items() if _modules(name) != was}
                if not (changed or has_ended):
                    has_ended = True
                    log.warning(
                        "the worker ended with %d; waiting for the next change of a file", code
                    )
            if changed:
                return changed
        return self._end()

    def _changed(self) -> set[str]:
        """The files that have changed since the child was started."""
        assert self._child is not None
        changed = {file for file, at in self._times.items() if _time_of(file) != at}
        for file in self._child.loaded() - self._times.keys():
            at = self._times[file] = _time_of(file)
            folder = str(Path(file).parent)
            self._modules.setdefault(folder, _modules(folder))
            # The child may have read the file before this change. Times in the future mean nothing.
            if at is None or self._child.started_ns < at <= time.time_ns():
                changed.add(file)
        return changed

    def _end(self) -> int:
        """Let the child drain. Returns its exit code, or 0 if it had ended before."""
        assert self._child is not None
        had_ended = self._child.exit_code() is not None
        code = self._child.end(self._stop_seconds)
        if had_ended:
            return 0
        if code is None:
            log.error(
                "the worker did not stop within %g s and was killed; its jobs run again when their "
                "leases expire", self._stop_seconds,
            )  # fmt: skip
            return 1
        return max(code, 0)  # a signal before the worker was ready for signals

    def _is_stopped(self, timeout_seconds: float) -> bool:
        try:
            self._stops.get(timeout=timeout_seconds)
        except queue.Empty:
            return False
        return True

    def _leave(self, code: int) -> None:
        """After a second signal: the child gets its second one too."""
        if self._child is not None:
            self._child.end(LAST_SECONDS)
        os._exit(code)


class _Child:
    """A process that runs the command."""

    def __init__(self, words: list[str]) -> None:
        self.started_ns = time.time_ns()
        self._socket, theirs = socket.socketpair()
        with theirs:
            # In a session of its own: Ctrl-C in a terminal reaches the parent alone.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tenure.cli.reloaded", str(theirs.fileno()), *words],
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self._socket.setblocking(False)
        self._received = b""
        self._loaded: set[str] = set()

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def loaded(self) -> set[str]:
        """The user's files that it has loaded so far."""
        with suppress(BlockingIOError, ConnectionResetError):
            while part := self._socket.recv(65536):
                self._received += part
        *files, self._received = self._received.split(b"\0")
        self._loaded |= {os.fsdecode(file) for file in files}
        return self._loaded

    def end(self, seconds: float) -> int | None:
        """Terminate it. Returns its exit code, or None if it had to be killed."""
        self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
        finally:
            self._socket.close()


def _time_of(file: str) -> int | None:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return None


def _modules(folder: str) -> frozenset[str]:
    """The names of the modules and packages in a folder."""
    with suppress(OSError):
        return frozenset(
            path.name
            for path in Path(folder).iterdir()
            if path.suffix == ".py" or (path.name.isidentifier() and path.is_dir())
        ) - {"__pycache__"}
    return frozenset()


def _forget_bytecode(file: str) -> None:
    """Python compares source and bytecode by size and whole seconds. Two quick saves look alike."""
    if file.endswith(".py"):
        with suppress(OSError, NotImplementedError):
            Path(cache_from_source(file)).unlink()


def _shown(files: set[str]) -> str:
    first = min(files)
    with suppress(ValueError):
        first = str(Path(first).relative_to(Path.cwd()))
    more = len(files) - 1
    return f"{first} and {more} more" if more else first
