"""Whatever goes in comes back the same from both stores, or is refused by both."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.errors import InvalidInput
from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.codec import decode, encode
from tenure.rules.job import Job, Json, NewJob, Unique
from tenure.store import LANDED, Store
from tests.fuzz.conftest import examples
from tests.support.values import JSON_VALUES

ANY_TEXT = st.text()
"""With NUL and lone surrogates."""
NAMES = st.one_of(
    ANY_TEXT, st.text("abc._-:/ ", max_size=5), st.text("a", min_size=120, max_size=300)
)
Outcome = tuple[str, Any]


def exact(value: object) -> str:
    """A text that tells 1 from 1.0 and 0.0 from -0.0, with sorted keys."""
    return repr(_sorted(value))


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return sorted((key, _sorted(inner)) for key, inner in value.items())
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value


def taken(store: Store) -> Claimed:
    """The only job in line."""
    [lease] = store.claim("w1", {"default": 1})
    [held] = lease.jobs
    return held


def through(store: Store, job: NewJob, result: Json) -> tuple[Claimed, Job]:
    """Enqueue, claim and settle: as the worker sees it, and as it is in history."""
    store.enqueue([job])
    held = taken(store)
    assert store.settle("w1", [lifecycle.succeed(held, result=result)]) == [LANDED]
    return held, store.get(held.id)


@pytest.mark.slow
@examples(40)
@given(args=JSON_VALUES, result=JSON_VALUES, metadata=st.none() | JSON_VALUES)
@example(args=-0.0, result=[1, 1.0, 1e22], metadata={"": {"\\u0000": "\U0010ffff\ufffe\x7f\x80"}})
@example(args="\u2028\ud7ff\ue000'\"\\", result=10**400, metadata=[5e-324, 1.7976931348623157e308])
def test_payloads_come_back_equal_from_both_stores(
    stores: tuple[Store, Store], args: object, result: object, metadata: object
) -> None:
    job = NewJob(
        task="app.echo", args=encode({"held": args}),
        metadata=None if metadata is None else encode({"held": metadata}),
    )  # fmt: skip
    for store in stores:
        held, seen = through(store, job, encode(result))
        for found in (held.args, seen.args_json):
            assert exact(decode(found)) == exact({"held": args})
        for kept in (held.metadata, seen.metadata_json):
            wanted = None if metadata is None else {"held": metadata}
            assert exact(None if kept is None else decode(kept)) == exact(wanted)
        assert exact(seen.result) == exact(result)


def outcome(store: Store, job: dict[str, Any]) -> Outcome:
    """What a store makes of it: refused, or what can be read afterwards."""
    try:
        new = NewJob(**job)
        [added] = store.enqueue([new])
    except InvalidInput as error:
        return "refused", type(error).__name__
    seen = store.get(added.id)
    store.cancel(added.id)
    return "kept", (seen.task, seen.queue, json.loads(seen.args_json), seen.unique_key, seen.tenant)


RAW = st.one_of(
    st.binary(max_size=30),
    ANY_TEXT.map(lambda text: json.dumps(text).encode()),
    st.text('{}[]",:\\u0000d8NaInfity-1e ', max_size=20).map(str.encode),
)


@examples(60)
@given(RAW)
@example(b'"\\u0000"')
@example(b'"\\ud800"')
@example(b"NaN")
@example(b"1e400")
@example(b'{"a": 1, "a": 2}')
@example(b"[" * 2000 + b"]" * 2000)
def test_bytes_that_somebody_made_by_hand_meet_the_same_answer(
    stores: tuple[Store, Store], data: bytes
) -> None:
    """The codec makes none of these; a caller of the store may."""
    file, server = (outcome(store, {"task": "a", "args": Json(data)}) for store in stores)
    assert file == server


@pytest.mark.slow
@examples(80)
@given(task=NAMES, queue=NAMES, key=NAMES, tenant=NAMES)
def test_names_are_kept_exactly_or_refused_by_both(
    stores: tuple[Store, Store], task: str, queue: str, key: str, tenant: str
) -> None:
    for changed in ({"task": task}, {"queue": queue}, {"tenant": tenant}):
        file, server = (outcome(store, {"task": "a"} | changed) for store in stores)
        assert file == server
        if file[0] == "kept":
            [text] = changed.values()
            assert text in file[1]
    answers = []
    for store in stores:
        try:
            answers.append(outcome(store, {"task": "a", "unique": Unique(key=key)}))
        except InvalidInput as error:
            answers.append(("refused", type(error).__name__))
    assert answers[0] == answers[1]


@examples(60)
@given(priority=st.integers(), delay=st.floats(), attempts=st.integers(), timeout=st.floats())
def test_numbers_are_kept_or_refused_by_both(
    stores: tuple[Store, Store], priority: int, delay: float, attempts: int, timeout: float
) -> None:
    for changed in (
        {"priority": priority}, {"delay_seconds": delay}, {"max_attempts": attempts},
        {"timeout_seconds": timeout}, {"priority": priority % 100, "delay_seconds": abs(delay)},
    ):  # fmt: skip
        file, server = (outcome(store, {"task": "a"} | changed) for store in stores)
        assert file == server
