"""A worker of the version before runs before, during and after a migration, or is refused cleanly.

Every change of the schema passes through these tests: see versions.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure import State, Tenure
from tenure.errors import SchemaTooNew
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.plain import Plain
from tests.upgrade import versions
from tests.upgrade.versions import Pair

APP = """
import os
from tenure import Tenure

app = Tenure()


@app.task(name="work")
def work(n: int) -> int:
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"{n}\\n")
    return n
"""
ADD = """
from jobs import app, work

first = int(__import__("sys").argv[1])
app.enqueue_many([work.call(n) for n in range(first, first + 40)])
flow = app.workflow(f"flow-{first}")
a = flow.add(work.call(first + 40))
b = flow.add(work.call(first + 41), after=[a])
c = flow.add(work.call(first + 42), after=[b])
flow.enqueue()
"""
JOBS = 43


class Site:
    """An application in a folder, and a database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.ledger = folder / "ledger"
        self.ledger.touch()
        (folder / "jobs.py").write_text(APP)

    def environment(self, code: Path) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(code), "TENURE_URL": self.url, "LEDGER": str(self.ledger),
        }  # fmt: skip

    def python(self, code: Path, *words: str) -> str:
        """Run Python with this version of the code to its end."""
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.environment(code), text=True,
            capture_output=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add(self, code: Path, first: int) -> None:
        """Enqueue 40 jobs and a workflow of three."""
        self.python(code, "-c", ADD, str(first))

    @contextmanager
    def worker(self, code: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker of this version; its log goes to a file of this name."""
        words = [sys.executable, "-m", "tenure", "worker", "jobs:app", "--lease-seconds", "5",
                 "--heartbeat-seconds", "1"]  # fmt: skip
        with (self.folder / name).open("wb") as log:
            process = subprocess.Popen(
                words, cwd=self.folder, env=self.environment(code), stderr=log
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def has_run(self, n: int) -> bool:
        return len(self.ledger.read_text().splitlines()) >= n

    def states(self) -> Counter[str]:
        with Plain(self.url) as plain:
            return Counter(state for (state,) in plain.rows("select state from tenure.jobs"))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables: old code creates them."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("pg_url"))


@pytest.fixture
def site(tmp_path: Path, url: str) -> Site:
    return Site(tmp_path, url)


def check_upgrade(site: Site, pair: Pair) -> None:
    """Jobs and workflows before, during and after the migration all end, and each ends once."""
    site.python(pair.old, "-m", "tenure", "db", "init")
    site.add(pair.old, 0)
    with site.worker(pair.old, "old.log") as old:
        until(lambda: site.has_run(5), "the old worker works")
        site.add(pair.old, 100)
        site.python(pair.new, "-m", "tenure", "db", "migrate")
        site.add(pair.new, 200)
        said = site.folder / "old.log"
        if pair.is_compatible:
            until(lambda: site.states()["succeeded"] == 3 * JOBS, "the old worker does it all")
            old.send_signal(signal.SIGTERM)
            assert old.wait(PATIENCE_SECONDS) == 0, said.read_text()
        else:
            assert old.wait(PATIENCE_SECONDS) == 5, said.read_text()
            assert "Upgrade the tenure package" in said.read_text()
            before = site.states()
            with site.worker(pair.old, "again.log") as again:
                assert again.wait(PATIENCE_SECONDS) == 5
            assert site.states() == before
            with site.worker(pair.new, "new.log"):
                until(lambda: site.states()["succeeded"] == 3 * JOBS, "the new worker does it all")
    assert site.states() == Counter({"succeeded": 3 * JOBS})
    with Plain(site.url) as plain:
        ended = plain.rows("select outcome from tenure.workflow where ended_at is not null")
        twice = plain.rows("select id from tenure.history group by id having count(*) > 1")
    assert [str(outcome) for (outcome,) in ended] == ["succeeded"] * 3
    assert twice == []
    ran = Counter(site.ledger.read_text().split())
    assert len(ran) == 3 * JOBS
    if pair.is_compatible:
        assert set(ran.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("is_compatible", [True, False])
def test_a_worker_before_a_migration_that_is_made_up(site: Site, is_compatible: bool) -> None:
    """Seen failing on SQLite with a version that is read once: the old worker went on."""
    check_upgrade(site, versions.made_up(site.folder, is_compatible=is_compatible))


@pytest.mark.slow
def test_a_worker_of_the_commit_before_the_schema(site: Site) -> None:
    """With the first schema there is no commit before it: then the code of a commit can be had."""
    pair = versions.committed(site.folder)
    if pair is not None:
        check_upgrade(site, pair)
    elif (versions.ROOT / ".git").exists():
        code = versions.code_of("HEAD", site.folder / "head")
        site.python(code, "-m", "tenure", "db", "init")
        assert "version" in site.python(code, "-m", "tenure", "db", "status")


@pytest.mark.parametrize("operation", ["enqueue", "claim", "extend", "cancel"])
def test_an_open_store_notices_a_newer_schema_at_once(
    tmp_path: Path, url: str, operation: str
) -> None:
    """Not only when it opens: the next write is refused, and nothing is written."""
    site, pair = Site(tmp_path, url), versions.made_up(tmp_path, is_compatible=False)
    app = Tenure(url)

    @app.task()
    def work() -> None: ...

    with app:
        app.migrate()
        handle = work.enqueue()
        store = app.whole_store
        [lease] = store.claim("w1", {"default": 1})
        late = work.enqueue()
        site.python(pair.new, "-m", "tenure", "db", "migrate")
        calls: dict[str, Callable[[], object]] = {
            "enqueue": work.enqueue,
            "claim": lambda: store.claim("w1", {"default": 1}),
            "extend": lambda: store.extend("w1", {lease.id: ()}, lease_seconds=60),
            "cancel": lambda: store.cancel(late.id),
        }
        with pytest.raises(SchemaTooNew, match="Upgrade the tenure package"):
            calls[operation]()
    states = site.states()
    assert states == Counter({State.RUNNING: 1, State.QUEUED: 1}), (handle.id, states)
