"""Commands inside this process: no new interpreter, and whatever they raise is seen."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from tenure.cli.main import main


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def inside(*words: str) -> Ended:
    """Run a command. The working directory is the caller's; give the database by --url."""
    out, err = io.StringIO(), io.StringIO()
    path = sys.path.copy()
    code = 0
    try:
        argv = patch.object(sys, "argv", ["tenure", *words])
        with argv, redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.path[:] = path
    return Ended(code, out.getvalue(), err.getvalue())


def everything_in(folder: Path) -> dict[str, bytes]:
    """All files of a folder with their content."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
