"""One SQLite connection, through `apsw` (default) or through the application's own `sqlite3`.

Opening is where SQLite can be got wrong, so all the refusals are here:
- two SQLite libraries on one file in one process: closing any descriptor drops the other's locks;
- a library with the WAL-reset bug (3.7.0 to 3.51.2), which can lose committed writes;
- a network file system, on which WAL does not work.
Nothing in Tenure ever opens the file by another descriptor; these checks use `stat` alone.
"""

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import apsw

from tenure.errors import (
    ConfigError,
    InvalidInput,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UnsafeSQLite,
    ValueRefused,
)

Driver = Literal["apsw", "sqlite3"]

# Primary result codes of SQLite.
PERM, BUSY, LOCKED, READONLY, IOERR, CORRUPT, FULL, CANTOPEN = 3, 5, 6, 8, 10, 11, 13, 14
TOOBIG, CONSTRAINT, NOTADB = 18, 19, 26

SMALLEST_DATABASE = 512
STATEMENTS = 512
"""The most that the library keeps; the default is too few. It forgets what was used longest ago."""
FIXED_IN = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "virtiofs",
        "fuse.sshfs",
        "afs",
        "ceph",
        "glusterfs",
    }
)

FileKey = tuple[int, int]
"""Device and inode."""
Files = tuple[FileKey | None, ...]

DriverError = (apsw.Error, sqlite3.Error)
RETRY_SECONDS = 0.001
LARGE_WAL_BYTES = 64 * 1024 * 1024
"""SQLite cuts its log to this size when no reader needs it any more."""

_open_files: dict[FileKey, tuple[Driver, int]] = {}
_open_files_lock = threading.Lock()


class Connection(Protocol):
    """The little that both libraries share."""

    def execute(self, sql: str, params: Mapping[str, Any] | tuple[Any, ...] = ..., /) -> Any: ...
    def executemany(self, sql: str, rows: Sequence[tuple[Any, ...]], /) -> Any: ...
    def close(self) -> None: ...
    @property
    def in_transaction(self) -> bool: ...


def connect(path: str, driver: Driver) -> Connection:
    """A connection that never waits by itself and never begins a transaction by itself."""
    try:
        if driver == "apsw":
            connection = apsw.Connection(path, statementcachesize=STATEMENTS)
            # Otherwise a statement with a LIMIT or a partial index is prepared again for each value
            # that is bound: for a claim, several times what it costs to run it.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            return connection
        return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except DriverError as error:
        raise translate(error, path) from error


def configure(connection: Connection, synchronous: str, give_up_seconds: float) -> None:
    """Set what all our connections need, as soon as no other connection is in the way."""
    deadline = time.monotonic() + give_up_seconds
    while True:
        try:
            for setting in (
                "journal_mode = wal",
                f"synchronous = {synchronous}",
                "secure_delete = off",  # the default of Debian's library rewrites freed pages
                "cache_size = -2000",  # 64 MB was no faster, and a worker grew with each thread
                "temp_store = memory",
                "wal_autocheckpoint = 4000",  # 16 MB: each checkpoint waits for the disk twice
                f"journal_size_limit = {LARGE_WAL_BYTES}",
            ):
                list(connection.execute(f"pragma {setting}"))
            return
        except DriverError as error:
            busy = result_code(error) in (BUSY, LOCKED)
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)


@contextmanager
def look(uri: str, path: str, driver: Driver) -> Iterator[Callable[[str], list[Any]]]:
    """Run statements on a file by a URI that says how to open it, such as `mode=ro`."""
    try:
        connection: Any
        if driver == "apsw":
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            connection = apsw.Connection(uri, flags=flags)
        else:
            connection = sqlite3.connect(uri, timeout=0, uri=True)
        try:
            connection.execute("select 1 from sqlite_master limit 1").fetchall()
            yield lambda sql: connection.execute(sql).fetchall()
        finally:
            connection.close()
    except DriverError as error:
        raise translate(error, path) from error


def total_changes(connection: Any) -> int:
    """How many rows this connection has changed: a method in one library, a value in the other."""
    changes = connection.total_changes
    return int(changes() if callable(changes) else changes)


def _was_sqlite(path: str) -> bool:
    """Does the file begin as a SQLite database does?"""
    try:
        with Path(path).open("rb") as file:
            return file.read(15) == b"SQLite format 3"
    except OSError:
        return True  # it cannot be told


def forget_tracers(connection: Any) -> None:
    """Rows come as they are again, whatever the last user of the connection made of them."""
    if isinstance(connection, apsw.Connection):
        connection.row_trace = connection.exec_trace = None
    else:
        connection.row_factory, connection.text_factory = None, str


def result_code(error: BaseException) -> int | None:
    """SQLite's primary result code behind either library's exception."""
    if isinstance(error, apsw.Error):
        return getattr(error, "result", 1) & 0xFF
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def translate(
    error: BaseException, path: str, *, committing: bool = False
) -> StoreError | InvalidInput:
    """A driver's exception as one of ours, with the fix in its message.

    When the disk fails in a COMMIT, SQLite undoes it; but it may be in the WAL, and come back after
    a crash.
    """
    code = result_code(error)
    match code:
        case _ if code in (BUSY, LOCKED):
            return StoreBusy(f"{path} is locked by another process; try again")
        case _ if code in (READONLY, PERM):
            return StoreReadOnly(
                f"{path} cannot be written; give this user write access to the file and its folder"
            )
        case _ if code == FULL:
            return StoreFull(
                f"no space left for {path}; free some and try again. Nothing was written"
            )
        case _ if code == CANTOPEN:
            return StoreUnavailable(_why_cannot_open(path))
        case _ if code == NOTADB and not _was_sqlite(path):
            return StoreError(f"{path} is not a SQLite database; check the URL")
        case _ if code in (CORRUPT, NOTADB):
            return StoreError(f"{path} is not an intact SQLite database; restore it from a backup")
        case _ if code in (TOOBIG, CONSTRAINT) or "malformed JSON" in str(error):
            return ValueRefused(f"the database refused a value: {error}")
        case _ if code == IOERR and committing:
            return OutcomeUnknown(
                f"writing {path} failed in a COMMIT ({error}); check the disk. It may have been "
                "kept: look before you repeat it, or enqueue with a unique key"
            )
        case _ if code == IOERR:
            return StoreUnavailable(f"reading or writing {path} failed ({error}); check the disk")
    return StoreError(f"SQLite says: {error}")


def _why_cannot_open(path: str) -> str:
    folder = Path(path).parent
    if not folder.exists():
        return f"there is no folder {folder}; create it first"
    if Path(path).is_dir():
        return f"{path} is a folder; name a file in it"
    return f"{path} cannot be opened; check the permissions of the file and its folder"


def library_version(driver: Driver) -> str:
    """The version of the SQLite library behind a driver."""
    return apsw.sqlite_lib_version() if driver == "apsw" else sqlite3.sqlite_version


def is_affected(version: str) -> bool:
    """Does this version of SQLite have the WAL-reset bug?"""
    number = tuple(int(part) for part in version.split(".")[:3])
    if number < (3, 7, 0) or number >= FIXED_IN[-1]:
        return False
    return not any(number[:2] == fixed[:2] and number >= fixed for fixed in FIXED_IN)


def check_library(driver: Driver, allow_affected: bool) -> None:
    """Refuse a library with the WAL-reset bug, unless the user has said that it is all right."""
    version = library_version(driver)
    if is_affected(version) and not allow_affected:
        raise UnsafeSQLite(
            f"the {driver} module uses SQLite {version}, which can lose committed writes when one "
            "process checkpoints while another writes (fixed in 3.51.3, 3.50.7, 3.44.6). Use the "
            "default driver, upgrade SQLite, or accept the risk with ?allow_affected_sqlite=1"
        )


def check_file_system(path: str, allow_network: bool) -> None:
    """Refuse a network file system, where WAL corrupts databases."""
    kind = file_system_of(path)
    if kind in NETWORK_FILE_SYSTEMS and not allow_network:
        raise UnsafeSQLite(
            f"{path} lies on a network file system ({kind}), where SQLite's locks are unreliable. "
            "Use a local disk or PostgreSQL, or accept the risk with ?allow_network=1"
        )


def file_system_of(path: str, mounts: str = "/proc/self/mounts") -> str | None:
    """The type of the file system under a path, where the operating system tells."""
    try:
        lines = Path(mounts).read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    best, kind = "", None
    for line in lines:
        _, mount, type_, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, type_
    return kind


def enter_file(path: str, driver: Driver) -> FileKey:
    """Note that this process has the file open through a driver; refuse a second library.

    Called after the first connection exists, so that the file does. Returns the key for
    `leave_file`.
    """
    status = os.stat(path)
    key = (status.st_dev, status.st_ino)
    with _open_files_lock:
        other, count = _open_files.get(key, (driver, 0))
        _refuse_other(path, other, driver)
        _open_files[key] = (driver, count + 1)
    return key


def names_of(path: str) -> tuple[str, str, str]:
    """The file's own name, and those of the WAL and the shared memory, which lie beside it."""
    real = os.path.realpath(path)
    return os.path.abspath(path), f"{real}-wal", f"{real}-shm"


def key_of(path: str) -> FileKey | None:
    """The file that has this name now."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_in_place(names: Sequence[str], known: Files, found: Files) -> None:
    """Refuse to go on when the files that are open are no longer those that others would open."""
    if found == known:
        return
    changed = zip(names, known, found, strict=True)
    gone = [name for name, before, now in changed if before != now]
    verb, open_files = ("was", "it") if len(gone) == 1 else ("were", "them")
    raise StoreUnavailable(
        f"{' and '.join(gone)} {verb} deleted, moved or replaced under a store that has "
        f"{open_files} open. What is written "
        "now would be lost, so nothing is. Stop all processes that use the database; put it back "
        "with the -wal file that belongs to it, or without one; and start them again"
    )


def _refuse_other(path: str, present: Driver, wanted: Driver) -> None:
    if present != wanted:
        raise UnsafeSQLite(
            f"this process has {path} open through {present} already; two SQLite libraries on "
            f"one file in one process lose each other's locks. Use ?driver={present} here too"
        )


def leave_file(key: FileKey) -> None:
    """The counterpart of `enter_file`."""
    with _open_files_lock:
        driver, count = _open_files.get(key, ("apsw", 0))
        if count <= 1:
            _open_files.pop(key, None)
        else:
            _open_files[key] = (driver, count - 1)


def check_not_open_elsewhere(path: str, driver: Driver) -> None:
    """Refuse a second library, and apsw on a file that something else in this process has open.

    Even to open the file and close it again would drop the other's locks. So this must run before
    our first descriptor of the file exists. What something else has open is known only where the
    system lists descriptors (Linux, macOS).
    """
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    try:
        status = os.stat(path)
    except OSError:
        return
    key = (status.st_dev, status.st_ino)
    with _open_files_lock:
        ours = _open_files.get(key)
    if ours is not None:
        _refuse_other(path, ours[0], driver)
    if driver == "sqlite3" or ours is not None or not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        try:
            found = os.stat(f"{folder}/{name}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == key:
            raise UnsafeSQLite(
                f"something else in this process has {path} open, most likely the sqlite3 module; "
                "two SQLite libraries on one file in one process lose each other's locks. Give "
                "Tenure a file of its own, or use ?driver=sqlite3"
            )


def check_path(path: str) -> None:
    """Refuse what cannot be a database file before anything is created."""
    if not path or path == ":memory:":
        raise ConfigError(
            "a job queue needs a file: sqlite:///jobs.db is one in the working directory, "
            "sqlite:////var/lib/app/jobs.db an absolute one"
        )
    if "\0" in path:
        raise ConfigError("the file's name has a NUL in it; remove %00 from the URL")
    try:
        if not Path(path).parent.is_dir() or Path(path).is_dir():
            raise StoreUnavailable(_why_cannot_open(path))
        size = Path(path).stat().st_size if Path(path).is_file() else 0
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be reached ({error.strerror}); check the permissions of its folders"
        ) from error
    if 0 < size < SMALLEST_DATABASE:  # SQLite would take it for an empty one and write over it
        raise StoreError(f"{path} is not a SQLite database; check the URL")
