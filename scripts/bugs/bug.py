"""What a bug is, and how its patch is applied to a copy of the tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SQLITE, POSTGRES = "sqlite", "postgres"
BOTH = (SQLITE, POSTGRES)
SQL = "src/tenure/store"

# Why the simulation is not asked. These are reasons by thought; `--ask-all` asks it all the same.
IN_ORDER = "one transaction at a time: no other comes in between"
BEHIND = "another rule stands behind it: "
UNUSED = "no part of it does this: "


class DoesNotApply(Exception):
    """The code has changed; the patch must be written anew."""


@dataclass(frozen=True)
class Edit:
    """Replace a text that stands exactly once in a file, or in one named statement of it."""

    path: str
    old: str
    new: str
    statement: str | None = None

    def apply(self, root: Path) -> None:
        """Change the file below this folder."""
        file = root / self.path
        text = file.read_text("utf-8")
        start, end = self._bounds(text)
        part = text[start:end]
        if part.count(self.old) != 1:
            raise DoesNotApply(f"{self.path}: {part.count(self.old)} times: {self.old!r:.90}")
        file.write_text(text[:start] + part.replace(self.old, self.new) + text[end:], "utf-8")

    def _bounds(self, text: str) -> tuple[int, int]:
        if self.statement is None:
            return 0, len(text)
        start = text.find(f"-- name: {self.statement}\n")
        if start < 0:
            raise DoesNotApply(f"{self.path}: there is no statement {self.statement}")
        end = text.find("\n-- name: ", start)
        return start, len(text) if end < 0 else end


@dataclass(frozen=True)
class Bug:
    """A bug by name, how it is put in, and who must find it.

    Its own test must fail on each of these databases; on none: it has nothing to do with them. The
    simulation is asked first, unless it is said why that would be in vain.
    """

    name: str
    how: str
    test: str
    edits: tuple[Edit, ...]
    noticed_on: tuple[str, ...] = BOTH
    unseen: str = ""
    """Why the simulation cannot see it."""
    least_steps: int = 0
    """The simulation is asked for at least so many steps."""

    @property
    def title(self) -> str:
        """What tells it from all others."""
        return f"{self.name}: {self.how}"

    @property
    def is_simulated(self) -> bool:
        """Is it worth while to ask the simulation?"""
        only_postgres = all(f"{SQL}/{POSTGRES}/" in edit.path for edit in self.edits)
        return not self.unseen and not only_postgres

    def apply(self, root: Path) -> None:
        """Put it into a copy of the tree."""
        for edit in self.edits:
            edit.apply(root)


def python(file: str, old: str, new: str) -> Edit:
    """An edit of a module."""
    return Edit(f"src/tenure/{file}.py", old, new)


def sql(dialect: str, topic: str, statement: str, old: str, new: str) -> Edit:
    """An edit of a statement."""
    return Edit(f"{SQL}/{dialect}/sql/{topic}.sql", old, new, statement)
