"""Many processes on one store at once: each job once, each key once, one schema, no error."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from tenure.rules.job import NewJob
from tenure.store import migrate, open_store
from tests.processes import roles
from tests.processes.crew import Crew
from tests.processes.crowd import crowd
from tests.support.audit import audit
from tests.support.plain import Plain

JOBS = {"share": 4_000, "whole": 20_000}
BLOCK = 50
KEYS = {"share": 200, "whole": 1_000}
SECONDS = {"share": 3.0, "whole": 8.0}


@pytest.fixture
def size(whole: bool) -> str:
    """How much is done."""
    return "whole" if whole else "share"


@pytest.mark.slow
def test_eight_processes_drain_every_job_exactly_once(url: str, crew: Crew, size: str) -> None:
    store = open_store(url)
    ids = [
        answer.id
        for _ in range(JOBS[size] // 1000)
        for answer in store.enqueue([NewJob(task="app.tiny")] * 1000)
    ]
    store.close()
    for _ in range(8):
        crew.start(roles.drain, url, BLOCK)
    crew.go()
    crew.join()

    landed = [id for block in crew.said("landed") for id in block]
    assert Counter(landed) == Counter(ids)
    assert list(crew.said("stale")) == []
    busy = sum(bool(member.said("landed")) for member in crew.members)
    assert busy >= 2, "they never worked at the same time"
    with Plain(url) as plain:
        rows = plain.rows("select id, token, attempts from tenure.history")
        assert Counter(row[0] for row in rows) == Counter(ids)
        assert {row[1:] for row in rows} == {(1, 1)}
        assert plain.one("select count(*) from tenure.lease") == 0
    audit(url)


@pytest.mark.slow
def test_sixteen_processes_with_the_same_keys_make_each_job_once(
    url: str, crew: Crew, size: str
) -> None:
    keys = KEYS[size]
    open_store(url).close()
    for seed in range(16):
        crew.start(roles.enqueue_keys, url, keys, seed, (1, 7, 100, keys)[seed % 4])
    crew.go()
    crew.join()

    ids: dict[str, set[int]] = defaultdict(set)
    created: Counter[str] = Counter()
    told = 0
    for part in crew.said("told"):
        for key, id, is_new in part:
            ids[key].add(id)
            created[key] += is_new
            told += 1
    assert told == 16 * keys
    assert all(len(found) == 1 for found in ids.values()), "two ids for one key"
    assert set(created.values()) == {1}
    assert len(created) == keys
    with Plain(url) as plain:
        stored: dict[str, int] = dict(plain.rows("select unique_key, id from tenure.job"))
    assert stored == {key: id for key, [id] in ids.items()}
    audit(url)


def test_ten_processes_start_on_an_empty_database_at_once(empty_url: str, crew: Crew) -> None:
    for _ in range(10):
        crew.start(roles.arrive, empty_url)
    crew.go()
    crew.join()

    assert set(crew.said("version")) == {migrate.VERSION}
    with Plain(empty_url) as plain:
        assert plain.rows("select count(*) from tenure.schema_version") == [(1,)]
        enqueued = [row[0] for row in plain.rows("select id from tenure.job")]
    assert sorted(crew.said("enqueued")) == sorted(enqueued)
    assert len(enqueued) == 10
    audit(empty_url)


@pytest.mark.slow
def test_ten_processes_open_a_file_that_one_is_writing(file_url: str, crew: Crew) -> None:
    writer = crew.start(roles.write_until_told, file_url, 2.0)
    for _ in range(10):
        crew.start(roles.arrive, file_url)
    crew.go()
    crew.join()

    assert len(writer.said("took")[0]) > 10
    assert len(list(crew.said("enqueued"))) == 10
    audit(file_url)


@pytest.mark.slow
def test_32_processes_on_one_file_never_hear_that_it_is_locked(
    file_url: str, crew: Crew, capsys: pytest.CaptureFixture[str], size: str
) -> None:
    told = crowd(file_url, crew, seconds=SECONDS[size])
    with capsys.disabled():
        print(f"\n{told}")
