"""The file is deleted, moved or replaced under a store that has it open.

SQLite itself would go on and write into a file that nobody finds again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.errors import StoreUnavailable
from tenure.rules import lifecycle
from tenure.rules.claim import Lease
from tenure.rules.job import NewJob
from tenure.store import LANDED, Store, open_store
from tests.processes import roles
from tests.processes.crew import Crew
from tests.support.audit import audit
from tests.support.callers import session_of
from tests.support.patience import until

SQLITE3 = "?driver=sqlite3&allow_affected_sqlite=1"
JOB = NewJob(task="app.work")
Deed = Callable[[Path], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """In a folder of its own: a test may rename that folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder / "jobs.db"


@pytest.fixture(params=["", SQLITE3], ids=["apsw", "sqlite3"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    return f"sqlite:///{path}{request.param}"


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for found in path.parent.glob("jobs.db*"):
        found.unlink()


def delete_wal(path: Path) -> None:
    path.with_name("jobs.db-wal").unlink()


def delete_shared_memory(path: Path) -> None:
    path.with_name("jobs.db-shm").unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replace(path: Path) -> None:
    other = path.with_name("other.db")
    open_store(f"sqlite:///{other}").close()
    other.replace(path)


def replace_folder(path: Path) -> None:
    folder = path.parent
    folder.rename(folder.with_name(f"{folder.name}-old"))
    folder.mkdir()
    open_store(f"sqlite:///{path}").close()


DEEDS: tuple[Deed, ...] = (
    delete, delete_all, delete_wal, delete_shared_memory, move, replace, replace_folder,
)  # fmt: skip


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_nothing_is_acknowledged_that_nobody_would_find(url: str, path: Path, deed: Deed) -> None:
    store = open_store(url)
    store.enqueue([JOB, JOB])
    [lease] = store.claim("w1", {"default": 1})
    deed(path)
    there = {found.name: found.stat().st_size for found in path.parent.iterdir()}

    for _ in range(3):  # it does not get used to it
        for refused in writes(store, lease):
            with pytest.raises(StoreUnavailable, match=r"deleted, moved or replaced .* Stop all"):
                refused()
    until(lambda: is_refused(store.list_jobs))  # reads ask ten times a second
    until(lambda: is_refused(session_of(store).look))

    assert {found.name: found.stat().st_size for found in path.parent.iterdir()} == there
    store.close()


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except StoreUnavailable as error:
        return "deleted, moved or replaced" in str(error)
    return False


def writes(store: Store, lease: Lease) -> list[Callable[[], object]]:
    """Operations of all kinds of callers."""
    return [
        lambda: store.enqueue([JOB]),
        lambda: store.claim("w1", {"default": 1}),
        lambda: store.extend("w1", {lease.id: []}),
        lambda: store.settle("w1", [lifecycle.succeed(lease.jobs[0])], done_leases=[lease.id]),
        store.promote,
        lambda: store.pause("default"),
        store.migrate,
    ]


def test_who_only_reads_hears_of_it_soon(url: str, path: Path) -> None:
    store = open_store(url)
    store.enqueue([JOB])
    assert len(store.list_jobs().jobs) == 1
    path.unlink()
    until(lambda: is_refused(store.list_jobs))
    store.close()


def test_put_back_it_goes_on_and_nothing_is_lost(url: str, path: Path) -> None:
    store = open_store(url)
    [first] = store.enqueue([JOB])
    away = path.with_name("away.db")
    path.rename(away)
    with pytest.raises(StoreUnavailable):
        store.enqueue([JOB])
    away.rename(path)

    [second] = store.enqueue([JOB])
    [lease] = store.claim("w1", {"default": 5})
    assert [held.id for held in lease.jobs] == [first.id, second.id]
    assert store.settle("w1", [*map(lifecycle.succeed, lease.jobs)]) == [LANDED] * 2
    store.close()
    audit(url)


def test_a_link_that_leads_elsewhere_now(tmp_path: Path) -> None:
    for name in ("a.db", "b.db"):
        open_store(f"sqlite:///{tmp_path}/{name}").close()
    link = tmp_path / "jobs.db"
    link.symlink_to("a.db")
    store = open_store(f"sqlite:///{link}")
    store.enqueue([JOB])
    link.unlink()
    link.symlink_to("b.db")
    with pytest.raises(StoreUnavailable, match="replaced"):
        store.enqueue([JOB])
    store.close()
    with open_store(f"sqlite:///{link}") as other:
        assert other.count_live() == []


def test_files_that_come_and_go_by_themselves_are_no_alarm(
    path: Path, tmp_path: Path, url: str
) -> None:
    """The last to leave removes the WAL; the next one makes another."""
    for _ in range(3):
        with open_store(url) as store:
            store.enqueue([JOB])
            store.list_jobs()
            assert path.with_name("jobs.db-wal").exists()
        assert not path.with_name("jobs.db-wal").exists()
    store = open_store(url)
    folder = tmp_path / "crew"
    folder.mkdir()
    with Crew(folder) as crew:
        members = [crew.start(roles.arrive, f"sqlite:///{path}") for _ in range(3)]
        crew.go()
        crew.join()
        assert [len(member.said("enqueued")) for member in members] == [1, 1, 1]
    store.enqueue([JOB])
    if (child := os.fork()) == 0:  # its connections were closed for that, and are opened anew
        try:
            store.enqueue([JOB])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    store.enqueue([JOB])
    assert len(store.list_jobs().jobs) == 3 + 3 + 3
    store.close()
    audit(url)
