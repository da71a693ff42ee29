"""What SQLite does: statements, commits, rows, pages touched and written, steps, waits for disk.

Everything is asked of the library itself, through hooks on each connection that is opened, and
through a layer under it that counts the calls of fsync.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import apsw

from tests.guard.counts import Counts, Work

_PLAIN = "unix"


class SQLiteMeter:
    """Counts what all connections do that are opened while it listens."""

    def __init__(self) -> None:
        self._connections: list[apsw.Connection] = []
        self._statements: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    @contextmanager
    def listening(self) -> Iterator[SQLiteMeter]:
        """Count on every connection that is opened inside the block."""
        with ExitStack() as ends:
            disk = _Disk(self._seen)
            ends.callback(_check_default)
            ends.callback(disk.unregister)
            apsw.connection_hooks.append(self._listen)
            ends.callback(apsw.connection_hooks.remove, self._listen)
            yield self

    def count(self, work: Work) -> Counts:
        """What `work` cost."""
        before = self._read()
        work()
        return self._read() - before

    def _listen(self, connection: apsw.Connection) -> None:
        self._connections.append(connection)
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)
        connection.set_commit_hook(self._committing)

    def _note(self, event: dict[str, Any]) -> None:
        self._statements[_first_words(event["sql"])] += 1
        self._seen["steps"] += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def _committing(self) -> bool:
        self._seen["commits"] += 1
        return False

    def _read(self) -> Counts:
        rows = touched = written = 0
        for connection in self._connections:
            try:
                rows += connection.total_changes()
                touched += _status(connection, apsw.SQLITE_DBSTATUS_CACHE_HIT)
                touched += _status(connection, apsw.SQLITE_DBSTATUS_CACHE_MISS)
                written += _status(connection, apsw.SQLITE_DBSTATUS_CACHE_WRITE)
            except apsw.ConnectionClosedError:
                continue
        values = {
            "statements": self._statements.total(),
            "commits": self._seen["commits"],
            "rows": rows,
            "pages": touched,
            "pages written": written,
            "steps": self._seen["steps"],
            "syncs": self._seen["syncs"],
        }
        return Counts(values, dict(self._statements))


class _Disk(apsw.VFS):
    """The usual files, with their calls of fsync counted."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__("counting", _PLAIN, makedefault=True)
        self._seen = seen

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(name, flags, self._seen)


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], seen: Counter[str]) -> None:
        super().__init__(_PLAIN, name, flags)
        self._seen = seen

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._seen["syncs"] += 1
        super().xSync(flags)


def _check_default() -> None:
    assert apsw.vfs_names()[0] == _PLAIN


def _status(connection: apsw.Connection, what: int) -> int:
    return connection.status(what)[0]


def _first_words(sql: str) -> str:
    return " ".join(sql.split())[:90]
