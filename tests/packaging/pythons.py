"""The interpreters of this machine that Tenure supports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.clean import ROOT

CLASSIFIER = re.compile(r'"Programming Language :: Python :: (3\.\d+)"')
ASK = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def supported() -> list[str]:
    """The versions that the project announces: 3.11 and so on."""
    return CLASSIFIER.findall((ROOT / "pyproject.toml").read_text("utf-8"))


def present() -> dict[str, Path]:
    """An interpreter of each supported version that is here and can make an environment."""
    found = {version: next(_working(version), None) for version in supported()}
    return {version: path for version, path in found.items() if path is not None}


def _working(version: str) -> Iterator[Path]:
    return (path for path in _candidates(version) if _version_of(path) == version)


def _candidates(version: str) -> Iterator[Path]:
    if "{}.{}".format(*sys.version_info[:2]) == version:
        yield Path(sys.executable)
    if named := shutil.which(f"python{version}"):
        yield Path(named)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"))


def _version_of(path: Path) -> str:
    """Empty if it does not run; a name on the path may be a mere promise of an interpreter."""
    done = subprocess.run([path, "-c", ASK], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
