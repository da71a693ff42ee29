"""Files that SQLite cannot use well: missing, foreign, read-only, full, shared with a stranger."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from tenure.errors import (
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TenureError,
    UnsafeSQLite,
)
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import Store, open_store
from tenure.store.sqlite import driver
from tenure.store.sqlite.inspect_file import require_schema
from tests.support.audit import audit
from tests.support.postgres import unprivileged_account
from tests.support.stores import Clock
from tests.support.work import add_many, take

SQLITE3 = "?driver=sqlite3&allow_affected_sqlite=1"
BIG = encode("x" * 200_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "jobs.db"
    with pytest.raises(StoreUnavailable, match=r"there is no folder .*/no; create it first"):
        open_store(url_of(missing))
    assert not missing.parent.exists()


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is a folder; name a file in it"):
        open_store(url_of(tmp_path))


@pytest.mark.parametrize("content", [b"hello " * 1000, b"\x89PNG" + bytes(5000), b"x"])
def test_a_file_of_another_kind_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is not a SQLite database; check the URL"):
        open_store(url_of(path))
    assert path.read_bytes() == content


def test_a_damaged_database_is_refused(path: Path) -> None:
    store = open_store(url_of(path))
    store.enqueue([NewJob(task="a", args=BIG)])
    store.close()
    damaged = bytearray(path.read_bytes())
    damaged[100:8192] = os.urandom(8092)
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match="restore it from a backup"):
        open_store(url_of(path))


def test_a_damaged_schema_is_not_taken_for_the_file_of_another_program(path: Path) -> None:
    """A look reads the version of the schema before a store opens the file."""
    open_store(url_of(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        [(page,)] = connection.execute(
            "select rootpage from sqlite_master where name = 'tenure_schema_version'"
        )
        [(size,)] = connection.execute("pragma page_size")
    damaged = bytearray(path.read_bytes())
    damaged[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match="restore it from a backup"):
        require_schema(str(path), "apsw")


def test_a_store_that_could_not_be_opened_leaves_nothing_open(path: Path) -> None:
    """Neither a descriptor nor the note that this library has the file."""
    path.write_bytes(b"hello " * 1000)
    for options in ("", SQLITE3, ""):
        with pytest.raises(StoreError, match="is not a SQLite database"):
            open_store(url_of(path) + options)
    assert open_descriptors(path) == 0


def open_descriptors(path: Path) -> int:
    return sum(
        1
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and link.readlink() == path
    )


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; those of pytest are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


READ_ONLY_CHECK = """
import os, sys
from tenure.rules.job import NewJob
from tenure.store import open_store
uid, gid, url, scratch_url = sys.argv[1:]
with open_store(scratch_url) as scratch:  # reads all files that it needs: another user may not
    scratch.count_live()
    scratch.enqueue([NewJob(task="a")])
if uid != "-":
    os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
from tenure.errors import StoreReadOnly, StoreUnavailable
try:
    store = open_store(url)
    print("reads", sum(count.jobs for count in store.count_live()))
    store.enqueue([NewJob(task="a")])
except (StoreReadOnly, StoreUnavailable) as refusal:
    assert "write access" in str(refusal) or "permissions" in str(refusal), refusal
    print(type(refusal).__name__)
"""


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("file", "reads 1\nStoreReadOnly\n"),
        ("folder", "StoreReadOnly\n"),
        ("new file", "StoreUnavailable\n"),
        ("hidden file", "StoreUnavailable\n"),
    ],
)
def test_what_this_user_may_not_write_is_read_only(open_folder: Path, kind: str, said: str) -> None:
    """Checked in a process without privileges: root may write everything."""
    folder = open_folder / "data"
    folder.mkdir()
    path = folder / "jobs.db"
    if kind != "new file":
        store = open_store(url_of(path))
        store.enqueue([NewJob(task="a")])
        store.close()
        path.chmod(0o444 if kind == "file" else 0o666)
    folder.chmod({"file": 0o777, "hidden file": 0o000}.get(kind, 0o555))
    account = unprivileged_account()
    who = ["-", "-"] if account is None else [str(account.pw_uid), str(account.pw_gid)]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            READ_ONLY_CHECK,
            *who,
            url_of(path),
            url_of(open_folder / "scratch.db"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    folder.chmod(0o755)
    assert done.stdout == said, done.stderr


def test_a_full_database_refuses_and_recovers_when_there_is_room(path: Path) -> None:
    store = open_store(url_of(path))
    session = cast(Any, store)._scope.session
    writer = session._processes[-1].writer
    [(pages,)] = writer.execute("pragma page_count")
    writer.execute(f"pragma max_page_count = {pages + 60}")
    kept = fill(store)

    writer.execute("pragma max_page_count = 1000000")

    assert kept
    store.enqueue([NewJob(task="a", args=BIG)])
    assert len(store.list_jobs(limit=1000).jobs) == len(kept) + 1
    audit(url_of(path))
    store.close()


def fill(store: Store) -> list[int]:
    """Enqueue until it is refused; answers what was acknowledged. Reads and small writes go on."""
    kept: list[int] = []
    with pytest.raises(StoreFull, match="no space left"):  # noqa: PT012 - it must end in this
        for _ in range(1000):
            kept += [answer.id for answer in store.enqueue([NewJob(task="a", args=BIG)])]
    assert sorted(found.id for found in store.list_jobs(limit=1000).jobs) == kept
    return kept


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB; skipped where nothing may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("nothing may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_refuses_and_recovers_when_there_is_room(small_disk: Path) -> None:
    path = small_disk / "jobs.db"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    store = open_store(url_of(path))
    kept = fill(store)

    ballast.unlink()

    assert kept
    store.enqueue([NewJob(task="a", args=encode("small"))])
    assert len(store.list_jobs(limit=1000).jobs) == len(kept) + 1
    for lease in store.claim("w1", {"default": 1000}):
        assert len(lease.jobs) == len(kept) + 1
    store.close()
    audit(url_of(path))


def test_a_lock_that_is_held_for_long_is_reported_politely(path: Path) -> None:
    store = open_store(url_of(path), give_up_seconds=0.2)
    stranger = apsw.Connection(str(path))
    stranger.execute("begin immediate")
    with pytest.raises(StoreBusy, match="look for a transaction left open"):
        store.enqueue([NewJob(task="a")])
    assert store.count_live() == []  # reading goes on
    stranger.execute("rollback")
    store.enqueue([NewJob(task="a")])
    stranger.close()
    store.close()


def test_a_sweep_of_a_locked_file_gives_up_as_any_other_operation_does(path: Path) -> None:
    """It does not try each lease by itself. Seen failing: it waited eleven times as long, and then
    returned as if other transactions had locked the jobs."""
    clock = Clock()
    with open_store(url_of(path), give_up_seconds=0.2) as store:
        add_many(store, clock.now, 4)
        for _ in range(4):
            take(store, clock.now, 1)
        stranger = apsw.Connection(str(path))
        stranger.execute("begin immediate")
        with pytest.raises(StoreBusy, match="look for a transaction left open"):
            store.sweep(now=clock.advance(31))
        stranger.execute("rollback")
        stranger.close()
        assert store.sweep(now=clock.now).requeued == 4


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/export /mnt/nfs nfs4 rw 0 0
//server/share /mnt/with\\040space cifs rw 0 0
/dev/vdb /mnt/nfs/local ext4 rw 0 0
host /mnt/fuse fuse.sshfs rw 0 0
share /mnt/vm virtiofs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/jobs.db", "ext4"),
        ("/mnt/nfs/jobs.db", "nfs4"),
        ("/mnt/nfs/deep/er/jobs.db", "nfs4"),
        ("/mnt/nfs/local/jobs.db", "ext4"),
        ("/mnt/nfsnot/jobs.db", "ext4"),
        ("/mnt/with space/jobs.db", "cifs"),
        ("/mnt/fuse/jobs.db", "fuse.sshfs"),
        ("/mnt/vm/jobs.db", "virtiofs"),
    ],
)
def test_the_file_system_under_a_file_is_known(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert driver.file_system_of(path, str(mounts)) == kind
    assert driver.file_system_of(path, str(tmp_path / "missing")) is None


def test_a_network_file_system_is_refused_unless_accepted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "file_system_of", lambda _: "nfs4")
    with pytest.raises(UnsafeSQLite, match=r"local disk or PostgreSQL.*allow_network=1"):
        open_store(url_of(path))
    assert not path.exists()
    open_store(f"{url_of(path)}?allow_network=1").close()


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("3.6.23", False), ("3.7.0", True), ("3.34.1", True), ("3.40.1", True), ("3.44.5", True),
        ("3.44.6", False), ("3.44.7", False), ("3.45.0", True), ("3.49.2", True), ("3.50.6", True),
        ("3.50.7", False), ("3.51.0", True), ("3.51.2", True), ("3.51.3", False),
        ("3.52.0", False), ("3.53", False), ("4.0.0", False),
    ],
)  # fmt: skip
def test_versions_with_the_wal_reset_bug_are_refused_unless_accepted(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: str, affected: bool
) -> None:
    monkeypatch.setattr(driver, "library_version", lambda _: version)
    assert driver.is_affected(version) is affected
    if affected:
        with pytest.raises(UnsafeSQLite, match=r"upgrade SQLite, or accept.*allow_affected_sqlite"):
            open_store(url_of(path))
        assert not path.exists()
    open_store(f"{url_of(path)}?allow_affected_sqlite=1").close()


def test_the_default_driver_brings_a_safe_library() -> None:
    assert not driver.is_affected(driver.library_version("apsw"))


def locks_on(path: Path) -> list[str]:
    """The locks that this process holds on a file, as the kernel knows them.

    (`/proc/locks` has those of all processes; while these come and go, it shows some twice.)
    """
    inode = path.stat().st_ino
    found: list[str] = []
    for file in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # the one by which the folder is read
            found += file.read_text().splitlines()
    return [line for line in found if line.startswith("lock:") and f":{inode} " in line]


linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@linux
@pytest.mark.parametrize(("first", "second"), [("", SQLITE3), (SQLITE3, "")])
def test_a_second_library_is_refused_and_the_first_keeps_its_locks(
    path: Path, first: str, second: str
) -> None:
    """To open the file a second time and close it again would drop the locks of the first."""
    store = open_store(url_of(path) + first)
    store.enqueue([NewJob(task="a")])
    held = locks_on(path)
    assert held

    with pytest.raises(UnsafeSQLite, match="two SQLite libraries on one file"):
        open_store(url_of(path) + second)

    assert len(locks_on(path)) == len(held)
    store.close()
    open_store(url_of(path) + second).close()  # one after the other is fine


@linux
def test_a_file_that_the_application_has_open_is_refused(path: Path) -> None:
    application = sqlite3.connect(path)
    application.execute("create table mine (id)")
    with pytest.raises(UnsafeSQLite, match=r"file of its own, or use \?driver=sqlite3"):
        open_store(url_of(path))
    open_store(url_of(path) + SQLITE3).close()
    application.close()


@linux
def test_a_link_to_the_same_file_is_the_same_file(path: Path, tmp_path: Path) -> None:
    store = open_store(url_of(path))
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(UnsafeSQLite, match="two SQLite libraries"):
        open_store(url_of(link) + SQLITE3)
    store.close()


@pytest.mark.parametrize("code", [*range(1, 27), 266, 517, 1032, 1555, 2067, 3082, 5386])
def test_every_error_of_sqlite_becomes_one_of_ours(code: int) -> None:
    error = apsw.exception_for(code)
    translated = driver.translate(error, "jobs.db")
    assert isinstance(translated, TenureError)
    assert str(translated)
