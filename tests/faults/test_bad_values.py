"""Values that no store should take: the same typed refusal everywhere, and nothing is written."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.errors import (
    InvalidInput,
    InvalidName,
    JobNotFound,
    OutOfRange,
    PayloadInvalid,
    PayloadTooLarge,
    TenureError,
)
from tenure.rules import lifecycle
from tenure.rules.codec import decode, encode, encode_error
from tenure.rules.job import Json, NewJob, Unique, Until
from tenure.store import LANDED, Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, ids_of, job, settle, take, take_one

NAIVE = datetime(2026, 3, 1, 12, 0)  # noqa: DTZ001
HUGE = 2**63
NAMES = [
    "", " ", "a b", "a" * 201, "a" * 10_000, "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "\N{PILE OF POO}", "../etc", "a/b", "it's", 'say "hi"', "100%", "%s", "a\nb", "a\n", "a\0b",
    "\N{RIGHT-TO-LEFT OVERRIDE}abc", "\ud800", "x'; drop table job; --", "$1", ":name", "?",
]  # fmt: skip
TEXTS = ["\0", "a\nb", "\ud800", "a" * 513, "\N{RIGHT-TO-LEFT OVERRIDE}"]
NOT_NAMES: list[Any] = [None, 7, b"bytes", ["a"], dict]


def shown(value: object) -> str:
    """A test's name for any value; Python refuses to write the longest integers."""
    return "10**5000" if value == 10**5000 else ascii(value)[:40]


@contextmanager
def refused(store_url: str, error: type[Exception], match: str) -> Iterator[None]:
    """The body raises this error with a message that names the fix, and no row changes."""
    with Plain(store_url) as plain:
        before = plain.everything()
        with pytest.raises(error, match=match):
            yield
        assert plain.everything() == before


@contextmanager
def refused_each(
    store_url: str, error: type[Exception], match: str
) -> Iterator[Callable[[Callable[[], object]], None]]:
    """The same for several calls: each one raises, and no row changes."""
    with Plain(store_url) as plain:
        before = plain.everything()

        def refused_one(call: Callable[[], object]) -> None:
            with pytest.raises(error, match=match):
                call()

        yield refused_one
        assert plain.everything() == before


VALUES: dict[str, tuple[object, type[Exception], str]] = {
    "NUL": ({"a": ["x\0y"]}, PayloadInvalid, r"a"),
    "NUL in a key": ({"x\0": 1}, PayloadInvalid, r"\w"),
    "lone surrogate": ({"a": "\ud800"}, PayloadInvalid, r"a"),
    "NaN": ({"a": float("nan")}, PayloadInvalid, "NaN"),
    "infinity": ([float("inf")], PayloadInvalid, "infinity"),
    "a number that JSON reads as infinity": ([1e308 * 10], PayloadInvalid, "infinity"),
    "pickled bytes of a stranger": ({"a": object()}, PayloadInvalid, "object"),
    "a naive datetime": ({"at": NAIVE}, PayloadInvalid, "zone"),
    "20 MB": ("x" * 20_000_000, PayloadTooLarge, "1,048,576"),
}


def test_arguments_that_cannot_be_stored_are_refused_at_enqueue(
    store: Store, store_url: str
) -> None:
    for value, error, match in VALUES.values():
        with refused(store_url, error, match):
            store.enqueue([job(), job(args=encode(value, what="args"))])


HANDMADE = {
    "text": b"not json",
    "nothing": b"",
    "two values": b"1 2",
    "a pickle": pickle.dumps({"a": 1}),
    "an old pickle": pickle.dumps({"a": 1}, protocol=0),
    "YAML": b"a: !!python/object/apply:os.system [id]",
    "NaN": b'{"a": NaN}',
    "escaped NUL": b'{"a": "\\u0000"}',
    "bare NUL": b'{"a": "\0"}',
    "escaped surrogate": b'{"a": "\\ud800"}',
    "broken UTF-8": b'{"a": "\xed\xa0\x80"}',
    "a forged neighbour": b'{}, "tenant": "victim"',
}


@pytest.mark.parametrize("field", ["args", "metadata", "retry"])
def test_bytes_that_are_not_strict_json_are_refused_at_enqueue(
    store: Store, store_url: str, field: str
) -> None:
    for handmade in HANDMADE.values():
        with refused(store_url, InvalidInput, "is not strict JSON|NUL"):
            store.enqueue([job(), job(**{field: Json(handmade)})])


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, -(2**63) - 1, 10**300, 10**4299], ids=shown)
def test_long_integers_are_kept_to_the_digit(store: Store, clock: Clock, number: int) -> None:
    id = add(store, clock.now, args=encode({"n": number}))
    held = take_one(store, clock.now)
    assert decode(held.args) == {"n": number}
    assert settle(store, clock.now, lifecycle.succeed(held, encode([number]))) == [LANDED]
    assert store.get(id).result == [number]


def test_what_a_handler_says_when_it_fails_always_lands(store: Store, clock: Clock) -> None:
    """Errors and reasons come from anywhere: they are cleaned, never refused."""
    dirty = "NUL \0 and surrogate \ud800"
    ids = [add(store, clock.now) for _ in range(4)]
    first, second, third, fourth = take(store, clock.now)
    answers = settle(
        store,
        clock.now,
        lifecycle.fail(first, encode_error(ValueError(dirty)), reason=dirty),
        lifecycle.retry(second, encode_error(ValueError(dirty)), 0, reason=dirty * 1000),
        lifecycle.skip(third, reason=dirty),
        lifecycle.release(fourth, reason=dirty),
    )
    assert answers == [LANDED] * 4
    for id in ids:
        reason = store.get(id).reason
        assert reason is not None
        assert "NUL" in reason
        assert "\0" not in reason


def test_one_bad_result_does_not_keep_its_neighbours_from_landing(
    store: Store, clock: Clock
) -> None:
    for _ in range(8):
        add(store, clock.now)
    held = take(store, clock.now)
    ends = [lifecycle.succeed(one) for one in held]
    ends[3] = lifecycle.succeed(held[3], Json(b"not json"))
    ends[5] = lifecycle.fail(held[5], Json(pickle.dumps("x")))

    answers = settle(store, clock.now, *ends)

    assert [answer.landed for answer in answers] == [n not in (3, 5) for n in range(8)]
    for bad in (answers[3], answers[5]):
        assert bad.error
        assert not bad.stale
    assert settle(store, clock.now, lifecycle.succeed(held[3], encode("better"))) == [LANDED]


def test_a_dirty_progress_message_is_cleaned(store: Store, clock: Clock) -> None:
    id = add(store, clock.now)
    held = take_one(store, clock.now)
    dirty = [(held, 0.5, "half \0 way \ud800")]
    assert store.report_progress("w1", dirty, now=clock.now) == [LANDED]
    message = store.progress(id).message
    assert message is not None
    assert message.startswith("half")
    assert "\0" not in message


def calls_with_name(store: Store, name: Any) -> list[Callable[[], object]]:
    calls: list[Callable[[], object]] = [
        lambda: store.enqueue([job(), job(task=name)]),
        lambda: store.enqueue([job(), job(queue=name)]),
        lambda: store.claim(name, {"default": 1}),
        lambda: store.settle(name, []),
        lambda: store.extend(name, {}),
        lambda: store.pause(name),
        lambda: store.resume(name),
    ]
    if isinstance(name, str):
        calls += [
            lambda: store.claim("w1", {"default": 1, name: 1}),
            lambda: store.list_jobs(queue=name),
            lambda: store.list_jobs(task=name),
        ]
    return calls


def test_bad_names_are_refused(store: Store, store_url: str) -> None:
    rule = "use letters|the maximum is 200|must be a string"
    with refused_each(store_url, InvalidName, rule) as refused_one:
        for name in [*NAMES, *NOT_NAMES]:
            for call in calls_with_name(store, name):
                refused_one(call)


def calls_with_text(store: Store, id: int, text: str) -> list[Callable[[], object]]:
    return [
        lambda: store.enqueue([job(), job(tenant=text)]),
        lambda: store.enqueue([job(), job(unique=Unique(key=text))]),
        lambda: store.for_tenant(text),
        lambda: store.cancel(id, reason=text * 2),
        lambda: store.hold(id, reason=text * 2),
        lambda: store.pause("default", reason=text * 2),
    ]


def test_bad_texts_are_refused(store: Store, store_url: str, clock: Clock) -> None:
    id = add(store, clock.now)
    with refused_each(store_url, InvalidInput, "remove them|the maximum") as refused_one:
        for text in TEXTS:
            for call in calls_with_text(store, id, text):
                refused_one(call)


SQL_LIKE = ["'; drop table tenure.job; --", "%s", "%(now)s", ":now", "?", "{}", "$$", "\\", "../x"]


def test_text_that_looks_like_sql_is_only_text(store: Store, clock: Clock) -> None:
    for text in SQL_LIKE:
        check_is_only_text(store, clock, text)


def check_is_only_text(store: Store, clock: Clock, text: str) -> None:
    first, second = store.enqueue(
        [job(tenant=text, unique=Unique(key=text), args=encode({text: text}))] * 2, now=clock.now
    )
    assert (first.created, second) == (True, type(first)(first.id, created=False))
    held = take_one(store, clock.now)
    assert (held.tenant, decode(held.args)) == (text, {text: text})
    assert store.for_tenant(text).get(held.id).unique_key == text
    store.cancel(held.id, reason=text)
    assert store.get(held.id).reason == text


NUMBERS: list[Any] = [-HUGE, HUGE, 101, -101, True, 1.5, "1", None, float("nan"), 10**5000]
SECONDS: list[Any] = [float("nan"), float("inf"), HUGE * 1.0, 1e12, "1", True, 10**5000]


def test_numbers_out_of_range_are_refused(store: Store, store_url: str) -> None:
    with refused_each(store_url, OutOfRange, "must be a whole number from") as refused_one:
        for number in NUMBERS:
            bad = -1 if number in (101, -101) else number
            refused_one(lambda: store.enqueue([job(), job(priority=number)]))  # noqa: B023
            refused_one(lambda: store.enqueue([job(), job(max_attempts=bad)]))  # noqa: B023
            refused_one(lambda: store.claim("w1", {"default": bad}))  # noqa: B023
            refused_one(lambda: store.sweep(most=bad))  # noqa: B023
            refused_one(lambda: store.promote(most=bad))  # noqa: B023
            refused_one(lambda: store.list_jobs(limit=bad))  # noqa: B023


def test_durations_out_of_range_are_refused(store: Store, store_url: str) -> None:
    with refused_each(store_url, OutOfRange, "must be (from|a number of seconds)") as refused_one:
        for bad in SECONDS:
            unique = {"key": "a", "until": Until.PERIOD, "period_seconds": bad}
            refused_one(lambda: store.enqueue([job(), job(delay_seconds=bad)]))  # noqa: B023
            refused_one(lambda: store.enqueue([job(), job(timeout_seconds=bad)]))  # noqa: B023
            refused_one(lambda: store.claim("w1", {"a": 1}, lease_seconds=bad))  # noqa: B023
            refused_one(lambda: store.extend("w1", {1: []}, lease_seconds=bad))  # noqa: B023
            refused_one(lambda: store.prune(succeeded_seconds=bad))  # noqa: B023
            refused_one(lambda: store.enqueue([job(unique=Unique(**unique))]))  # noqa: B023


def test_a_lease_or_timeout_of_no_time_is_refused(store: Store, store_url: str) -> None:
    for nothing in (0, -1, -1e9):
        with refused(store_url, OutOfRange, "lease_seconds must be from"):
            store.claim("w1", {"default": 1}, lease_seconds=nothing)
        with refused(store_url, OutOfRange, "timeout_seconds must be from"):
            store.enqueue([job(timeout_seconds=nothing)])


def test_a_past_due_time_means_now_and_a_negative_delay_is_refused(
    store: Store, store_url: str, clock: Clock
) -> None:
    past = clock.now - timedelta(days=1)
    [late] = store.enqueue([job(due_at=past)], now=clock.now)
    assert ids_of(take(store, clock.now)) == [late.id]
    for delay in (-1, -0.001, -1e9):
        with refused(store_url, OutOfRange, "delay_seconds must be from 0"):
            store.enqueue([job(delay_seconds=delay)])


TIMES: list[Any] = [
    NAIVE,
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    datetime(1969, 12, 31, tzinfo=UTC),
    "2026-03-01",
    1_772_366_400,
]


def test_bad_times_are_refused(store: Store, store_url: str, clock: Clock) -> None:
    id = add(store, clock.now)
    rule = "no time zone; use|must be between|must be a datetime"
    with refused_each(store_url, OutOfRange, rule) as refused_one:
        for at in TIMES:
            refused_one(lambda: store.enqueue([job(), job(due_at=at)]))  # noqa: B023
            refused_one(lambda: store.enqueue([job()], now=at))  # noqa: B023
            refused_one(lambda: store.claim("w1", {"default": 1}, now=at))  # noqa: B023
            refused_one(lambda: store.move(id, due_at=at))  # noqa: B023
            refused_one(lambda: store.prune(now=at))  # noqa: B023
            refused_one(lambda: store.count_finished(at, clock.now))  # noqa: B023


IDS: list[Any] = [0, -1, -HUGE, HUGE, 10**30, 2**53, "1", "1; drop table job", None, 1.5, b"1"]
ACTS: list[Callable[[Store, Any], object]] = [
    lambda store, job_id: store.get(job_id),
    lambda store, job_id: store.cancel(job_id),
    lambda store, job_id: store.hold(job_id),
    lambda store, job_id: store.unhold(job_id),
    lambda store, job_id: store.move(job_id, priority=1),
    lambda store, job_id: store.replay(job_id),
    lambda store, job_id: store.delete(job_id),
    lambda store, job_id: store.timeline(job_id),
    lambda store, job_id: store.progress(job_id),
]


def test_ids_that_name_no_job_are_refused(store: Store, store_url: str) -> None:
    with refused_each(store_url, TenureError, "no job|no live job|whole number") as refused_one:
        for id in IDS:
            for act in ACTS:
                refused_one(lambda: act(store, id))  # noqa: B023
    with refused_each(store_url, TenureError, "enqueue parents first|whole number") as refused_one:
        for id in IDS:
            refused_one(lambda: store.enqueue([job(parents=(id,))]))  # noqa: B023


@pytest.mark.parametrize("after", [HUGE, 10**30, "1", "", "é", "WzFd", None], ids=shown)
def test_a_cursor_out_of_range_is_refused_or_harmless(store: Store, after: Any) -> None:
    try:
        assert store.list_jobs(after=after).jobs == ()
    except InvalidInput as refusal:
        assert "after" in str(refusal)  # noqa: PT017


def test_a_batch_is_stored_as_a_whole_or_not_at_all(store: Store, store_url: str) -> None:
    batch = [job(unique=Unique(key=str(n))) for n in range(2500)]
    with refused(store_url, JobNotFound, "enqueue parents first"):
        store.enqueue([*batch, job(parents=(999_999,))])
    with refused(store_url, InvalidInput, "NewJob"):
        store.enqueue([*batch, {"task": "a"}])  # type: ignore[list-item]


@pytest.mark.slow
def test_a_hundred_thousand_jobs_in_one_enqueue_with_repeated_keys(
    store: Store, store_url: str, clock: Clock
) -> None:
    """Chunked inside, one transaction outside, one answer per job, in order."""
    plain_jobs = [job(args=encode({"n": n})) for n in range(80_000)]
    keyed = [NewJob(task="app.keyed", unique=Unique(key=str(n % 10_000))) for n in range(20_000)]

    answers = store.enqueue([*plain_jobs, *keyed], now=clock.now)

    assert len(answers) == 100_000
    ids = [answer.id for answer in answers if answer.created]
    assert len(set(ids)) == 90_000
    assert ids == sorted(ids)
    first, second = answers[80_000:90_000], answers[90_000:]
    assert [answer.id for answer in first] == [answer.id for answer in second]
    assert not any(answer.created for answer in second)
    with Plain(store_url) as plain:
        assert plain.one("select count(*) from tenure.job") == 90_000
        assert plain.one("select count(*) from tenure.unique_key") == 10_000
    assert decode(store.get(answers[77_777].id).args_json) == {"n": 77_777}
