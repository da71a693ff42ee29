"""The disk is full, read-only or broken, at each step of each operation.

Whoever called is told by an error that names the fix; nothing is half done; and when the cause is
gone the same call is answered as if nothing had been.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import apsw
import pytest

from tenure.errors import OutcomeUnknown, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.store import open_store
from tests.conftest import Count
from tests.faults.breaking import Breaking, Fault, breaking
from tests.faults.deeds import ALL
from tests.support.audit import audit
from tests.support.audit import check as check_rows
from tests.support.callers import process_of
from tests.support.plain import Plain
from tests.support.stores import Clock

SEVERAL = {
    "sweep", "start once", "expire", "prune what was kept for a time", "prune: add up statistics",
    "count live jobs",
}  # fmt: skip
"""Operations of more than one transaction: what was committed before the fault stays, and the next
call does the rest. A claim that is several answers what its first one took, and is not refused."""
MOST = 400
Steps = Callable[[int], Iterable[int]]


class Bench:
    """One file; `near` lays the scenes, `far` meets the faults."""

    def __init__(self, path: Path, page_bytes: int = 4096) -> None:
        self.url = f"sqlite:///{path}"
        with closing(apsw.Connection(str(path))) as empty:
            list(empty.execute(f"pragma page_size = {page_bytes}; vacuum"))
        self.near = open_store(self.url)
        self.far = open_store(self.url)
        self.plain = Plain(self.url)

    def close(self) -> None:
        self.plain.close()
        self.far.close()
        self.near.close()

    @property
    def writer(self) -> apsw.Connection:
        """The connection of `far` that writes."""
        found = process_of(self.far).writer
        assert isinstance(found, apsw.Connection)
        return found

    def do(
        self, name: str, fault: AbstractContextManager[None], error: type[StoreError], says: str
    ) -> bool:
        """Lay the scene and act while the fault lasts; whoever was refused tries again without it.

        In the end it is done, completely. Answers whether it was refused.
        """
        self.plain.wipe()
        deed = ALL[name](self.near, self.plain, Clock())
        self.plain.rows("vacuum")  # no page is free: what needs another one lets the file grow
        before = self.plain.everything()
        refusal, answer = None, None
        try:
            with fault:
                answer = deed.do(self.far)
        except StoreError as raised:
            refusal = raised
        check_rows(self.plain)
        if refusal is not None:
            assert isinstance(refusal, error), repr(refusal)
            assert says in str(refusal)
            if self.plain.everything() != before:
                assert name in SEVERAL
            answer = deed.do(self.far)
        deed.check(answer, self.far)
        check_rows(self.plain)
        assert self.plain.rows("pragma integrity_check") == [("ok",)]
        return refusal is not None


class BadDisk(AbstractContextManager[None]):
    """While it lasts, the disk has a fault."""

    def __init__(self, disk: Breaking, fault: Fault) -> None:
        self._disk, self._fault = disk, fault
        self.struck = False

    def __enter__(self) -> None:
        self._disk.order(self._fault)

    def __exit__(self, *_: object) -> None:
        self.struck = self._disk.struck
        self._disk.order(None)


class BadFile(AbstractContextManager[None]):
    """While it lasts: from the n-th statement on the file is read-only, or must not grow."""

    def __init__(self, writer: apsw.Connection, kind: str, number: int) -> None:
        self._writer, self._kind, self._number = writer, kind, number
        self._begin, self._end = "", ""
        self._statements = 0

    @property
    def struck(self) -> bool:
        """Were there so many statements?"""
        return self._statements >= self._number

    def __enter__(self) -> None:
        self._begin, self._end = settings_of(self._writer, self._kind)
        self._writer.exec_trace = self._note

    def __exit__(self, *_: object) -> None:
        self._writer.exec_trace = None
        list(self._writer.execute(self._end))

    def _note(self, _: object, sql: str, __: object) -> bool:
        if not sql.startswith("pragma"):
            self._statements += 1
            if self._statements == self._number:
                list(self._writer.execute(self._begin))
        return True


def settings_of(writer: apsw.Connection, kind: str) -> tuple[str, str]:
    """How to let a file be like that, and how to end it."""
    if kind == "read-only":
        return "pragma query_only = on", "pragma query_only = off"
    [(pages,)] = writer.execute("pragma page_count")
    return f"pragma max_page_count = {pages}", "pragma max_page_count = 1000000"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Breaking]:
    with breaking(tmp_path) as failing:
        yield failing


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> Steps:
    """At which steps something happens: at all of them with --whole, else at one of so many."""
    if request.config.getoption("--whole"):
        return lambda _: range(1, MOST)
    return lambda every: range(1, MOST, every)


@pytest.fixture
def bench(tmp_path: Path, disk: Breaking) -> Iterator[Bench]:
    opened = Bench(tmp_path / "jobs.db")
    yield opened
    disk.order(None)
    opened.close()
    audit(opened.url)


@pytest.fixture
def small_pages(tmp_path: Path) -> Iterator[Bench]:
    """A file whose pages are soon full: most of what writes needs another one."""
    opened = Bench(tmp_path / "jobs.db", page_bytes=512)
    yield opened
    opened.close()
    audit(opened.url)


WRITES_NOTHING = {"connect", "read the feed"}
GROWS = {"enqueue many", "enqueue large", "settle large", "fire"}
"""Operations that need another page. The others find room in the pages that are there: for them a
file that must not grow is no fault, and they are done."""
DISKS = {
    "full": ("write", apsw.SQLITE_FULL, StoreFull, "free some and try again"),
    "broken": ("write", apsw.SQLITE_IOERR_WRITE, StoreUnavailable, "check the disk"),
    "unsynced": ("sync", apsw.SQLITE_IOERR_FSYNC, OutcomeUnknown, "check the disk"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DISKS)
@pytest.mark.parametrize("name", sorted({*ALL} - WRITES_NOTHING))
def test_the_disk_fails_at_each_write_and_sync(
    bench: Bench, disk: Breaking, steps: Steps, name: str, kind: str, count: Count
) -> None:
    call, code, error, says = DISKS[kind]
    refused = 0
    for number in steps({"full": 2, "broken": 6}.get(kind, 1)):
        fault = BadDisk(disk, Fault(call, number, code))
        refused += bench.do(name, fault, error, says)
        if not fault.struck:
            break
    else:
        raise AssertionError("it never ended")
    count("refusals by a disk, each followed by a full check", refused)
    assert refused >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*ALL} - WRITES_NOTHING))
@pytest.mark.parametrize("kind", ["read-only", "full"])
def test_the_file_becomes_read_only_or_full_at_each_statement(
    small_pages: Bench, steps: Steps, name: str, kind: str, count: Count
) -> None:
    """Really: SQLite refuses by itself to write any more, or to let the file grow."""
    error, says = {
        "read-only": (StoreReadOnly, "give this user write access"),
        "full": (StoreFull, "free some and try again"),
    }[kind]
    refused = 0
    for number in steps({"read-only": 3, "full": 6}[kind]):
        fault = BadFile(small_pages.writer, kind, number)
        refused += small_pages.do(name, fault, error, says)
        if not fault.struck:
            break
    else:
        raise AssertionError("it never ended")
    count("refusals by a disk, each followed by a full check", refused)
    assert refused >= (kind == "read-only" or name in GROWS)


def test_a_commit_that_could_not_be_synced_may_come_back(
    bench: Bench, disk: Breaking, tmp_path: Path
) -> None:
    """So its outcome is unknown: it is undone here, and a crash right now would bring it back."""
    bench.near.enqueue([NewJob(task="app.first")])
    disk.order(Fault("sync", 1, apsw.SQLITE_IOERR_FSYNC))
    with pytest.raises(OutcomeUnknown, match="may have been kept"):
        bench.far.enqueue([NewJob(task="app.second")])
    disk.order(None)
    assert len(bench.near.list_jobs().jobs) == 1
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name in ("jobs.db", "jobs.db-wal"):
        (crashed / name).write_bytes((tmp_path / name).read_bytes())
    with open_store(f"sqlite:///{crashed}/jobs.db") as store:
        assert len(store.list_jobs().jobs) == 2


STEP_BYTES = 1237


def test_a_file_that_may_not_grow_at_any_byte(tmp_path: Path) -> None:
    """By a limit of the operating system, which cuts a write in the middle."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    wal = tmp_path / "jobs.db-wal"
    store = open_store(url)
    kept = [store.enqueue([NewJob(task="app.work")])[0].id]
    refused = []
    for extra in range(0, 60 * STEP_BYTES, STEP_BYTES):
        try:
            with at_most(wal.stat().st_size + extra):
                answers = store.enqueue([NewJob(task="app.work", args=encode("x" * 9000))] * 5)
        except StoreUnavailable as error:
            refused.append(str(error))
        else:
            kept += [answer.id for answer in answers]
        assert sorted(job.id for job in store.list_jobs(limit=1000).jobs) == kept
        kept += [store.enqueue([NewJob(task="app.work")])[0].id]  # there is room again
    assert 10 < len(refused) < 60
    assert all("check the disk" in text for text in refused)
    store.close()
    audit(url)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file of this process may become larger. Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
