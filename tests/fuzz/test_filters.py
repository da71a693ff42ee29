"""The language by which commands and clients choose jobs: any text is a filter or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.cli.filters import parse
from tenure.client import Client
from tenure.errors import InvalidFilter, InvalidInput, JobNotFound
from tenure.rules import filters
from tenure.rules.filters import FIELDS, Filter
from tenure.rules.job import NewJob, State
from tenure.store import Store, open_store
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
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "~", "!~")
HOSTILE = (
    "'; drop table tenure_job; --", '"', "\\", "%", "_", "*", "?", "[", "]", "$", "{}", "%(now)s",
    ":now", "?1", "..", "1..2", "-1", "1e99", "0x1", "NaN", "true", "null", "9" * 25, "2h", "+9w",
    "today", "2026-01-31", "2026-02-30", "2026-01-31T08:00+01:00", "\u2028", "\0", "\ud800",
)  # fmt: skip
VALUES = st.one_of(st.text(max_size=8), st.sampled_from(HOSTILE))
QUOTED = VALUES.map(lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
NAMES = st.one_of(
    st.sampled_from([*FIELDS, "order", "zone"]),
    st.builds("{}.{}".format, st.sampled_from(["args", "metadata"]), st.one_of(VALUES, QUOTED)),
    st.text(max_size=6),
)
WORDS = st.lists(
    st.one_of(
        st.text(),
        st.integers().map(str),
        st.sampled_from(["all", "state=", "=", "state=failed", "queue=,", "0", "²", "\u0661"]),
        st.builds("{}{}{}".format, NAMES, st.sampled_from(OPERATORS), st.one_of(VALUES, QUOTED)),
        st.builds(
            "{}={},{}".format, NAMES, st.one_of(VALUES, QUOTED), st.one_of(VALUES, QUOTED)
        ),
    ),
    max_size=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A file with jobs of every queue and task, in some states."""
    url = f"sqlite:///{tmp_path_factory.mktemp('filters')}/jobs.db"
    with open_store(url) as store:
        fill(store)
    with Client(url) as opened:
        yield opened


def fill(store: Store) -> None:
    for n in range(24):
        queue, task = QUEUES[n % 4], TASKS[n % 2]
        delay = 1000.0 if n % 3 == 0 else None
        [added] = store.enqueue([NewJob(task=task, queue=queue, delay_seconds=delay)])
        if n % 5 == 0:
            store.cancel(added.id)
    store.claim("w1", {"mail": 2})


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
    assert isinstance(chosen.filter, Filter)
    try:
        jobs = list(chosen.find(client))
    except (InvalidInput, JobNotFound):
        assert chosen.ids or chosen.filter.order == "next"
        return
    assert not chosen.ids or [job.id for job in jobs] == list(chosen.ids)


@pytest.mark.slow
@examples(1000)
@given(st.one_of(st.text(), WORDS.map(" ".join)))
def test_a_refusal_names_its_position(text: str) -> None:
    refused: InvalidFilter | None = None
    try:
        filters.parse(text)
    except InvalidFilter as refusal:
        refused = refusal
    assert refused is None or 0 <= refused.position <= len(text)


@pytest.fixture(scope="module")
def filled(stores: tuple[Store, Store]) -> tuple[Store, Store]:
    for store in stores:
        fill(store)
    return stores


@pytest.mark.slow
@examples(150)
@given(WORDS.map(" ".join))
def test_both_databases_take_every_filter_that_can_be_read(
    filled: tuple[Store, Store], text: str
) -> None:
    """No value reaches the SQL: whatever it is, there is no error and no job has changed."""
    try:
        wanted = filters.parse(text)
    except InvalidFilter:
        return
    if wanted.order == "next":
        return
    for store in filled:
        count = len(store.list_jobs(limit=1000).jobs)
        store.list_jobs(wanted)
        assert len(store.list_jobs(limit=1000).jobs) == count


@pytest.mark.slow
@examples(300)
@given(st.dictionaries(st.one_of(st.sampled_from([*FIELDS, "due_from"]), st.text()), st.one_of(
    VALUES, st.integers(), st.none(), st.lists(VALUES, max_size=2), st.dictionaries(VALUES, VALUES)
), max_size=2))  # fmt: skip
def test_any_keywords_are_a_filter_or_are_refused(
    filled: tuple[Store, Store], fields: dict[str, object]
) -> None:
    if {"filter", "order", "limit", "after", "states", "now", "self"} & fields.keys():
        return
    for store in filled:
        with suppress(InvalidInput):
            store.list_jobs(**fields)  # type: ignore[arg-type]
