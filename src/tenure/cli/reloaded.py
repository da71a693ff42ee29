"""The child process of `--reload`.

    python -m tenure.cli.reloaded FD WORDS...

It runs `tenure WORDS...`, and sends the names of the user's loaded files to its parent, each with a
zero byte at the end. When the parent is gone, it drains and ends.
"""

import os
import signal
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

from tenure.cli.main import main as run_command
from tenure.cli.reload import be_child

LOOK_SECONDS = 0.2

_NOT_THEIRS = tuple(
    f"{folder}{os.sep}"
    for folder in {
        str(Path(__file__).parents[1]),
        *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)


class Reporter:
    """Tells the parent which files this process has loaded."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._modules: set[str] = set()
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Report until the parent is gone, then drain."""
        self._parent.settimeout(LOOK_SECONDS)
        while True:
            try:
                self.report()
                if not self._parent.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        os.kill(os.getpid(), signal.SIGTERM)

    def report(self, *files: str) -> None:
        """Send these files and those of new modules."""
        with self._lock:
            names = set(sys.modules) - self._modules
            self._modules |= names
            loaded = [_file_of(sys.modules.get(name)) for name in names]
            found = {str(Path(each).absolute()) for each in [*files, *loaded] if _is_theirs(each)}
            if found := found - self._told:
                self._parent.sendall(b"".join(os.fsencode(file) + b"\0" for file in found))
                self._told |= found


def _file_of(module: object) -> object:
    try:
        return getattr(module, "__file__", None)
    except Exception:  # noqa: BLE001 - a module with a `__getattr__` of its own
        return None


def _is_theirs(file: object) -> TypeGuard[str]:
    return (
        isinstance(file, str)
        and file.endswith(".py")
        and not file.startswith(_NOT_THEIRS)
        and not {"site-packages", "dist-packages"} & set(Path(file).parts)
    )


def files_of(error: BaseException | None) -> Iterator[str]:
    """The files that an error names. A module whose import failed is not in `sys.modules`."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield from (frame.filename for frame in traceback.extract_tb(error.__traceback__))
        if isinstance(error, SyntaxError) and error.filename:
            yield error.filename
        error = error.__cause__ or error.__context__


def main() -> None:
    """Run the command, and report."""
    reporter = Reporter(socket.socket(fileno=int(sys.argv.pop(1))))
    be_child()
    threading.Thread(target=reporter.run, name="tenure-reload", daemon=True).start()
    try:
        run_command()
    except BaseException as error:
        with suppress(OSError):
            reporter.report(*files_of(error))
        raise


if __name__ == "__main__":
    main()
