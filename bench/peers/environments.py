"""A virtual environment per peer, in `.venvs/` of the checkout: made when needed, then reused.

A file in it names what was asked for; when the pins change, it is made anew. A peer that needs a
newer Python than the present one gets the first that is found: PATH, then pyenv's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.peers.adapter import Adapter

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venvs"
NEWEST_MINOR = 14


class PeerUnavailable(Exception):
    """This peer cannot compete here; the message says what is missing."""


def python_for(adapter: type[Adapter], say: Callable[[str], None]) -> str:
    """The interpreter in which the adapter runs; its environment is made if it is not there."""
    if not adapter.packages:
        return sys.executable
    folder = FOLDER / adapter.name
    python, note = folder / "bin" / "python", folder / "holds.txt"
    wanted = "\n".join(adapter.packages)
    if not (note.exists() and note.read_text() == wanted):
        base = _base_python(adapter.python)
        say(f"making {folder.relative_to(ROOT)}: {', '.join(adapter.packages)}")
        _run(adapter, base, "-m", "venv", "--clear", str(folder))
        _run(adapter, str(python), "-m", "pip", "install", "-q", *adapter.packages)
        note.write_text(wanted)
    return str(python)


def _run(adapter: type[Adapter], *command: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise PeerUnavailable(f"{adapter.name}: {' '.join(command)}\n{done.stderr[-1500:]}")


def _base_python(least: tuple[int, int]) -> str:
    for candidate in _candidates(least):
        probe = f"import sys, ensurepip; sys.exit(sys.version_info < {least})"
        if subprocess.run([candidate, "-c", probe], capture_output=True).returncode == 0:
            return candidate
    wanted = ".".join(map(str, least))
    raise PeerUnavailable(f"no Python {wanted} or newer was found on PATH or among pyenv's")


def _candidates(least: tuple[int, int]) -> Iterator[str]:
    if sys.version_info >= least:
        # The one below the present environment, if this is one.
        yield getattr(sys, "_base_executable", sys.executable)
    for minor in range(NEWEST_MINOR, least[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from (str(each / "bin" / "python") for each in sorted(versions.glob("3.*"), reverse=True))
