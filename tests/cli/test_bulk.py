"""Commands that change many jobs: in batches, with progress, and with reasons for the rest."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest

from tenure.cli import operate
from tenure.rules.job import NewJob, State, Unique
from tenure.store import Store, open_store
from tests.cli.inside import inside
from tests.cli.terminal import Terminal


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def states(store: Store) -> Counter[State]:
    counts: Counter[State] = Counter()
    after: str | None = None
    while True:
        page = store.list_jobs(limit=1000, after=after)
        counts.update(job.state for job in page)
        after = page.next
        if after is None:
            return counts


@pytest.mark.parametrize("postgres", [False, True])
def test_each_command_goes_through_all_batches(
    url: str, postgres: bool, request: pytest.FixtureRequest
) -> None:
    url = str(request.getfixturevalue("pg_migrated_url")) if postgres else url
    with open_store(url) as store, patch.object(operate, "BATCH", 7):
        store.enqueue([NewJob(task="shop.greet")] * 20)
        for words, told in (
            (("hold", "all"), "held 20 jobs"),
            (("hold", "all"), "held 0 jobs; 20 were already held"),
            (("unhold", "all"), "unheld 20 jobs"),
            (("move", "all", "--queue", "mail"), "moved 20 jobs"),
            (("cancel", "queue=mail"), "cancelled 20 jobs"),
            (("cancel", "queue=mail"), "no jobs to cancel"),
            (("replay", "state=cancelled"), "replayed 20 jobs"),
            (("cancel", "all"), "cancelled 20 jobs"),
            (("rm", "all"), "removed 20 jobs"),
        ):
            ended = inside("--url", url, *words, "--yes")
            assert (ended.code, ended.out, ended.err) == (0, f"{told}\n", "")
        assert states(store) == {}


def test_what_is_left_is_told_with_its_reason(url: str) -> None:
    with open_store(url) as store:
        [first, second, third, running] = [
            each.id
            for each in store.enqueue(
                [NewJob(task="shop.greet", queue=queue) for queue in ("a", "a", "a", "b")]
            )
        ]
        store.claim("w1", {"b": 1})
        store.cancel(first)
        store.hold(second)
        ids = [str(id) for id in (first, second, third, running)]
        ended = inside("--url", url, "cancel", *ids, "--yes")
        assert ended.out == (
            "cancelled 2 jobs; asked 1 running job to stop; 1 was already cancelled\n"
        )
        ended = inside("--url", url, "cancel", *ids, "--yes", "--json")
        lines = [json.loads(line) for line in ended.out.splitlines()]
        assert {line["id"]: line.get("reason") for line in lines} == {
            running: "already asked to stop",
            **dict.fromkeys((first, second, third), "already cancelled"),
        }


def test_refused_jobs_are_shown_up_to_a_number(url: str) -> None:
    with open_store(url) as store, patch.object(operate, "SHOWN", 2):
        for n in range(5):
            [old] = store.enqueue([NewJob(task="shop.greet", unique=Unique(key=f"k{n}"))])
            store.cancel(old.id)
            store.enqueue([NewJob(task="shop.greet", unique=Unique(key=f"k{n}"))])
        ended = inside("--url", url, "replay", "state=cancelled", "--yes")
        assert ended.code == 1
        assert ended.out.count("holds the unique key") == 2
        assert ended.out.endswith("replayed 0 jobs; 5 refused\n")
        ended = inside("--url", url, "replay", "state=cancelled", "--yes", "--json")
        assert ended.out.count("holds the unique key") == 5


@pytest.mark.slow
def test_a_terminal_shows_progress(url: str, tmp_path: Path) -> None:
    with open_store(url) as store:
        store.enqueue([NewJob(task="shop.greet")] * 2500)
    with Terminal("cancel", "all", "--yes", url=url, folder=tmp_path) as terminal:
        terminal.wait_for("cancelled 2500 jobs")
        assert terminal.end() == 0
        assert "100%" in terminal.text


def test_an_interrupt_says_how_far_it_came(url: str) -> None:
    with open_store(url) as store:
        store.enqueue([NewJob(task="shop.greet")] * 20)
        real, calls = Store.cancel_many, []

        def cancel_many(store: Store, ids: list[int], *, reason: str) -> object:
            calls.append(ids)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real.__get__(store, Store)(ids, reason=reason)

        with patch.object(operate, "BATCH", 7), patch.object(Store, "cancel_many", cancel_many):
            ended = inside("--url", url, "cancel", "all", "--yes")
        assert (ended.code, ended.err) == (
            130, "tenure: interrupted; of 20 jobs: cancelled 7 jobs\n",
        )  # fmt: skip
        assert states(store) == {State.QUEUED: 13, State.CANCELLED: 7}
