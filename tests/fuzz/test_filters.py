"""The grammar by which commands choose jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.cli.filters import KEYS, Filter, parse
from tenure.client import Client
from tenure.errors import InvalidInput, JobNotFound
from tenure.rules.job import NewJob, State
from tenure.store import open_store
from tests.fuzz.conftest import examples

QUEUES = ("default", "mail", "a-b", "x.y")
TASKS = ("app.one", "app.two")
STATES = st.sets(st.sampled_from(State), min_size=1)
GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "state": STATES,
        "queue": st.sets(st.sampled_from(QUEUES), min_size=1),
        "task": st.sets(st.sampled_from(TASKS), min_size=1),
    },
)
WORDS = st.lists(
    st.one_of(
        st.text(),
        st.integers().map(str),
        st.sampled_from(
            ["all", "state=", "=", "state=failed", "queue=,", "task=a", "0", "²", "\u0661"]
        ),
        st.builds("{}={}".format, st.sampled_from(KEYS), st.text()),
    ),
    max_size=4,
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A file with jobs of every queue and task, in some states."""
    url = f"sqlite:///{tmp_path_factory.mktemp('filters')}/jobs.db"
    with open_store(url) as store:
        for n in range(24):
            queue, task = QUEUES[n % 4], TASKS[n % 2]
            delay = 1000.0 if n % 3 == 0 else None
            [added] = store.enqueue([NewJob(task=task, queue=queue, delay_seconds=delay)])
            if n % 5 == 0:
                store.cancel(added.id)
        store.claim("w1", {"mail": 2})
    with Client(url) as opened:
        yield opened


@pytest.mark.slow
@examples(60)
@given(GIVEN, st.randoms())
def test_a_filter_means_what_it_says(
    client: Client, given_words: dict[str, set[str]], chance: object
) -> None:
    words = [f"{key}={','.join(values)}" for key, values in given_words.items()]
    chance.shuffle(words)  # type: ignore[attr-defined]
    found = [job.id for job in parse(words or ["all"], need=True).find(client)]
    wanted = [
        job.id
        for job in client.list_jobs(limit=1000).jobs
        if all(getattr(job, key) in values for key, values in given_words.items())
    ]
    assert found == wanted


@pytest.mark.slow
@examples(300)
@given(WORDS, st.booleans())
def test_any_words_are_a_filter_or_are_refused(
    client: Client, words: list[str], need: bool
) -> None:
    try:
        chosen = parse(words, need=need)
    except InvalidInput:
        return
    assert isinstance(chosen, Filter)
    try:
        jobs = list(chosen.find(client))
    except (InvalidInput, JobNotFound):
        assert chosen.ids
        return
    assert not chosen.ids or [job.id for job in jobs] == list(chosen.ids)
