"""What SQLite asks of the disk, recorded; and what a power cut may leave of it.

A VFS of our own stands between SQLite and its files. It notes every write, truncation, sync,
creation and removal in the database's folder, in order, and beside them what the store has told its
callers. `Disk` plays the record again. Before each sync it stops: whatever was synced is on the
disk, and of all the rest an image may have any part, in any order, cut anywhere.

The model, no kinder than POSIX:
- a sync of a file makes safe what was written to this file before it, and nothing else;
- of unsynced writes to a file any subset is kept, whole or in parts; what lies between is zeros or
  garbage; bytes that nobody wrote do not change (SQLite calls this powersafe overwrite);
- a name appears or vanishes for sure when its folder is synced. SQLite does that with the first
  sync of each new journal or WAL, and when it removes a file and says so. Before, each name may be
  as it was or as it is, whatever the other names are;
- the shared-memory file is never synced: it is missing, or full of garbage.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import apsw

BASE = "unix"
SECTOR = 512
OF_A_JOURNAL = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL
_number = count()


class Write(NamedTuple):
    """Bytes at a place of a file."""

    file: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    """A file gets this size."""

    file: int
    size: int


class Sync(NamedTuple):
    """What was written to a file is safe now; with its folder, for a new journal."""

    file: int
    with_folder: bool


class Name(NamedTuple):
    """A name stands for this file now, or for none."""

    name: str
    file: int | None


class FolderSync(NamedTuple):
    """All names are safe now."""


class Told(NamedTuple):
    """The store has answered somebody, or somebody is about to ask it."""

    what: str
    details: Any


Event = Write | Truncate | Sync | Name | FolderSync | Told


class Record:
    """The events of one folder, from any thread, in the order in which they were done."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.events: list[Event] = []
        self.names: dict[str, int] = {}
        self._lock = threading.Lock()
        self._files = count()

    def add(self, event: Event) -> None:
        """Something was done."""
        with self._lock:
            self.events.append(event)

    def told(self, what: str, *details: Any) -> None:
        """Note what somebody was told."""
        self.add(Told(what, details))

    def file_of(self, name: str) -> int:
        """The file that a name stands for; a new one if there is none."""
        with self._lock:
            if name not in self.names:
                self.names[name] = next(self._files)
                self.events.append(Name(name, self.names[name]))
            return self.names[name]

    def remove(self, name: str) -> None:
        """The name is gone. Whoever has the file open keeps it."""
        with self._lock:
            if self.names.pop(name, None) is not None:
                self.events.append(Name(name, None))


class _File(apsw.VFSFile):
    """A write is noted when it is done, a sync when it begins: it may miss what comes meanwhile."""

    def __init__(self, record: Record, name: Any, flags: list[int]) -> None:
        super().__init__(BASE, name, flags)
        self._record = record
        self._file = record.file_of(path_of(name).name)
        self._with_folder = bool(flags[0] & OF_A_JOURNAL)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's names
        super().xWrite(data, offset)
        self._record.add(Write(self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._record.add(Truncate(self._file, newsize))

    def xSync(self, flags: int) -> None:  # noqa: ARG002, N802 - the real disk need not wait
        self._record.add(Sync(self._file, self._with_folder))
        self._with_folder = False


def path_of(name: str | apsw.URIFilename) -> Path:
    """Where a file lies that SQLite opens."""
    return Path(name if isinstance(name, str) else name.filename())


class _Recorder(apsw.VFS):
    def __init__(self, record: Record) -> None:
        super().__init__(f"recorder-{next(_number)}", BASE, makedefault=True)
        self._record = record

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        if name is None or path_of(name).parent != Path(self._record.folder):
            return apsw.VFSFile(BASE, name, flags)
        return _File(self._record, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        if Path(filename).parent == Path(self._record.folder):
            self._record.remove(Path(filename).name)
            if syncdir:
                self._record.add(FolderSync())


@contextmanager
def recording(folder: Path) -> Iterator[Record]:
    """While this lasts, what SQLite does to files of this folder is noted."""
    record = Record(folder)
    recorder = _Recorder(record)
    try:
        yield record
    finally:
        recorder.unregister()


class Mode(StrEnum):
    """What a power cut keeps of what was not synced."""

    NOTHING = "nothing"
    ALL = "all"
    SOME = "some"
    TORN = "torn"


@dataclass
class _Content:
    safe: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.safe, change)
        self.pending.clear()


def _apply(content: bytearray, change: Write | Truncate, fill: bytes = b"\0") -> None:
    if isinstance(change, Truncate):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    gap = change.offset - len(content)
    if gap > 0:
        content += (fill * (gap // len(fill) + 1))[:gap]
    content[change.offset : change.offset + len(change.data)] = change.data


class Disk:
    """A record as it is played: what is safe, and what is not yet."""

    def __init__(self, *, lies_about: str | None = None) -> None:
        """`lies_about`: syncs of the file with this name do nothing, as on a bad disk."""
        self._lies_about = lies_about
        self._files: dict[int, _Content] = {}
        self._safe: dict[str, int | None] = {}
        self._unsafe: dict[str, list[int | None]] = {}
        self._name_of: dict[int, str] = {}
        self.told: list[Told] = []

    def play(self, events: list[Event]) -> Iterator[int]:
        """Stops before each sync, and at the end, with the number of the next event."""
        for number, event in enumerate(events):
            if isinstance(event, Sync | FolderSync):
                yield number
            self._do(event)
        yield len(events)

    def _do(self, event: Event) -> None:
        match event:
            case Write() | Truncate():
                self._files[event.file].pending.append(event)
            case Sync():
                if self._name_of[event.file] != self._lies_about:
                    self._files[event.file].sync()
                if event.with_folder:
                    self._sync_folder()
            case Name(name, file):
                self._unsafe.setdefault(name, []).append(file)
                if file is not None:
                    self._files.setdefault(file, _Content())
                    self._name_of[file] = name
            case FolderSync():
                self._sync_folder()
            case Told():
                self.told.append(event)

    def _sync_folder(self) -> None:
        for name, files in self._unsafe.items():
            self._safe[name] = files[-1]
        self._unsafe.clear()

    def image(self, mode: Mode, chance: random.Random) -> dict[str, bytes]:
        """The files that are found when the power is back."""
        found = dict(self._safe)
        for name, files in self._unsafe.items():
            choices = [self._safe.get(name), *files]
            which = {Mode.NOTHING: 0, Mode.ALL: -1}.get(mode)
            found[name] = choices[which] if which is not None else chance.choice(choices)
        return {
            name: self._content(self._files[file], mode, chance)
            for name, file in found.items()
            if file is not None
        }

    @staticmethod
    def _content(file: _Content, mode: Mode, chance: random.Random) -> bytes:
        content = bytearray(file.safe)
        if mode is Mode.NOTHING:
            return bytes(content)
        kept, fill = 1.0, b"\0"
        if mode is not Mode.ALL:
            kept = chance.choice((0.1, 0.5, 0.9, 0.99))
            fill = chance.choice((b"\0", chance.randbytes(SECTOR)))
        for change in file.pending:
            parts = [change] if mode is not Mode.TORN else list(_torn(change, chance))
            for part in parts:
                if chance.random() < kept:
                    _apply(content, part, fill)
        return bytes(content)


def _torn(change: Write | Truncate, chance: random.Random) -> Iterator[Write | Truncate]:
    """Sector by sector, and one of them cut at any byte."""
    if isinstance(change, Truncate):
        yield change
        return
    end = change.offset + len(change.data)
    first = (change.offset // SECTOR + 1) * SECTOR
    cuts = {change.offset, end, *range(first, end, SECTOR), chance.randint(change.offset, end)}
    places = sorted(cuts)
    for start, stop in pairwise(places):
        data = change.data[start - change.offset : stop - change.offset]
        yield Write(change.file, start, data)
