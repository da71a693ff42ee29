"""Two versions of the code as folders to import from: an older one, and one with a newer schema.

As soon as there is a second schema, the older code is that of the commit before the schema was
added, taken from git. Every schema also has a successor that the tests make up: a copy of this code
with one migration more. An sdist has no git; there the made-up successor is all there is.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tenure.store.migrate import MIN_CODE, VERSION

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
MIGRATIONS = "tenure/store/{dialect}/sql/migrations/{version:04}.sql"
DIALECTS = ("sqlite", "postgres")


@dataclass(frozen=True)
class Pair:
    """Folders for PYTHONPATH, and whether the old code may use the new schema."""

    old: Path
    new: Path
    is_compatible: bool


def made_up(folder: Path, *, is_compatible: bool) -> Pair:
    """This code, and a copy of it with one more migration."""
    new = folder / "new"
    shutil.copytree(SOURCE / "tenure", new / "tenure", ignore=shutil.ignore_patterns("__pycache__"))
    version = VERSION + 1
    oldest = VERSION if is_compatible else version
    file = new / "tenure/store/migrate.py"
    text = file.read_text("utf-8")
    for was, now in (
        (f"VERSION = {VERSION}\n", f"VERSION = {version}\n"),
        (f"MIN_CODE = {MIN_CODE}\n", f"MIN_CODE = {MIN_CODE | {version: oldest}}\n"),
    ):
        assert text.count(was) == 1, was
        text = text.replace(was, now)
    file.write_text(text, "utf-8")
    for dialect in DIALECTS:
        script = new / MIGRATIONS.format(dialect=dialect, version=version)
        script.write_text("alter table tenure.queue add column extra text;\n", "utf-8")
    return Pair(SOURCE, new, is_compatible)


def committed(folder: Path) -> Pair | None:
    """The code before the present schema was added, and this code. None if there is none."""
    if VERSION == 1 or not (ROOT / ".git").exists():
        return None
    added = "src/" + MIGRATIONS.format(dialect="sqlite", version=VERSION)
    log = _git("log", "--diff-filter=A", "--format=%H", "-1", "--", added).decode().strip()
    assert log, f"{added} is not committed yet: commit it, then this test can find the code before"
    return Pair(code_of(f"{log}^", folder / "old"), SOURCE, MIN_CODE[VERSION] < VERSION)


def code_of(commit: str, folder: Path) -> Path:
    """The code of a commit, unpacked below this folder."""
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x"], input=_git("archive", commit, "src"), cwd=folder, check=True)
    return folder / "src"


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout
