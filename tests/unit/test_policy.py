"""Retry policies: their bounds for every input, and their stored form."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.errors import InvalidInput, OutOfRange, PayloadInvalid
from tenure.rules.limits import MAX_ATTEMPTS_LIMIT, MAX_SECONDS
from tenure.rules.retry import (
    DEFAULT_POLICY,
    Delays,
    Exponential,
    Fixed,
    Policy,
    delay_seconds,
    dump_policy,
    load_policy,
)

WAITS = st.one_of(st.integers(0, MAX_SECONDS), st.floats(0, MAX_SECONDS))
EXPONENTIALS = st.builds(
    Exponential,
    base_seconds=WAITS,
    factor=st.one_of(st.integers(1, 2**53), st.floats(1, 1.7e308)),
    cap_seconds=WAITS,
    jitter=st.booleans(),
)
POLICIES: st.SearchStrategy[Policy] = st.one_of(
    EXPONENTIALS,
    st.builds(Fixed, WAITS),
    st.builds(Delays, st.lists(WAITS, min_size=1, max_size=20).map(tuple)),
)
ATTEMPTS = st.one_of(st.integers(0, 20), st.integers(), st.just(10**9), st.just(10**400))


def top() -> float:
    """The longest that full jitter can choose."""
    return 1.0


def test_the_default_doubles_from_a_second_to_an_hour() -> None:
    waits = [delay_seconds(DEFAULT_POLICY, attempts, top) for attempts in range(14)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]


def test_full_jitter_is_any_part_of_the_limit() -> None:
    assert delay_seconds(DEFAULT_POLICY, 3, lambda: 0.0) == 0
    assert delay_seconds(DEFAULT_POLICY, 3, lambda: 0.25) == 2
    draw = random.Random(7).random
    waits = [delay_seconds(DEFAULT_POLICY, 3, draw) for _ in range(2000)]
    assert min(waits) < 0.1
    assert max(waits) > 7.9
    assert 3.7 < sum(waits) / len(waits) < 4.3


def test_without_jitter_randomness_is_not_asked_for() -> None:
    def forbidden() -> float:
        raise AssertionError("not to be called")

    assert delay_seconds(Exponential(jitter=False), 2, forbidden) == 4
    assert delay_seconds(Fixed(5), 2, forbidden) == 5
    assert delay_seconds(Delays((5,)), 2, forbidden) == 5


def test_a_schedule_is_followed_and_its_last_wait_repeats() -> None:
    policy = Delays((10, 60, 300))
    waits = [delay_seconds(policy, attempts, top) for attempts in (-1, 0, 1, 2, 3, 4, 10**9)]
    assert waits == [10, 10, 60, 300, 300, 300, 300]


@given(POLICIES, ATTEMPTS, st.floats(0, 1))
@example(Exponential(base_seconds=0, factor=1.7e308), 10**9, 1.0)
@example(Exponential(base_seconds=5e-324, factor=1.0, cap_seconds=1), 10**400, 1.0)
@example(Exponential(base_seconds=MAX_SECONDS, factor=10**308, cap_seconds=0), 3, 1.0)
def test_every_delay_is_finite_and_within_the_policys_limit(
    policy: Policy, attempts: int, luck: float
) -> None:
    match policy:
        case Exponential():
            limit = policy.cap_seconds
        case Fixed():
            limit = policy.seconds
        case _:
            limit = max(policy.seconds)
    wait = delay_seconds(policy, attempts, lambda: luck)
    assert type(wait) is float
    assert 0 <= wait <= limit <= MAX_SECONDS


@given(EXPONENTIALS, st.integers(0, 10**12), st.integers(0, 10**12))
def test_more_attempts_never_mean_a_shorter_limit(
    policy: Exponential, first: int, second: int
) -> None:
    few, many = sorted((first, second))
    assert delay_seconds(policy, few, top) <= delay_seconds(policy, many, top)


def test_a_base_of_zero_and_a_factor_of_one_stay_what_they_are_for_ever() -> None:
    assert delay_seconds(Exponential(base_seconds=0, factor=1e300), 10**400, top) == 0
    assert delay_seconds(Exponential(base_seconds=7, factor=1), 10**400, top) == 7


@given(POLICIES, st.floats())
def test_a_random_source_out_of_range_cannot_break_the_limit(policy: Policy, luck: float) -> None:
    longest = delay_seconds(policy, 5, top)
    assert 0 <= delay_seconds(policy, 5, lambda: luck) <= longest


@given(POLICIES)
def test_a_stored_policy_comes_back_equal(policy: Policy) -> None:
    data = dump_policy(policy)
    assert load_policy(data) == policy
    assert load_policy(data.decode()) == policy


def test_the_stored_form_is_fixed_because_older_jobs_have_it() -> None:
    assert json.loads(dump_policy(Exponential())) == {
        "kind": "exponential",
        "base_seconds": 1.0,
        "factor": 2.0,
        "cap_seconds": 3600.0,
        "jitter": True,
    }
    assert json.loads(dump_policy(Fixed(5))) == {"kind": "fixed", "seconds": 5}
    assert json.loads(dump_policy(Delays((1, 2)))) == {"kind": "delays", "seconds": [1, 2]}


def test_nothing_stored_means_the_default_and_unknown_fields_are_left_for_newer_code() -> None:
    assert load_policy(None) == Exponential()
    assert load_policy('{"kind":"fixed","seconds":5,"added_later":true}') == Fixed(5)
    assert load_policy('{"kind":"exponential"}') == Exponential()


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "null",
        "{}",
        "[]",
        '{"kind":"martingale"}',
        '{"kind":"fixed"}',
        '{"kind":"fixed","seconds":-1}',
        '{"kind":"fixed","seconds":1e400}',
        '{"kind":"fixed","seconds":"5"}',
        '{"kind":"delays","seconds":[]}',
        '{"kind":"exponential","factor":0.5}',
        b"\xff",
        b"\x80\x04\x95",
        '{"kind":"fixed","seconds":5,"later":' + "[" * 100_000,
    ],
)
def test_a_stored_policy_that_cannot_be_used_is_refused(data: str | bytes) -> None:
    with pytest.raises(PayloadInvalid, match="stored retry policy"):
        load_policy(data)


BAD_SECONDS: list[object] = [-1, math.nan, math.inf, MAX_SECONDS + 1, 10**5000, True, "1", None, []]


@pytest.mark.parametrize("value", BAD_SECONDS, ids=lambda value: type(value).__name__)
def test_waits_are_range_checked(value: object) -> None:
    makers: list[Callable[[], object]] = [
        lambda: Exponential(base_seconds=value),  # type: ignore[arg-type]
        lambda: Exponential(cap_seconds=value),  # type: ignore[arg-type]
        lambda: Fixed(value),  # type: ignore[arg-type]
        lambda: Delays((1, value)),  # type: ignore[arg-type]
    ]
    for make in makers:
        with pytest.raises(OutOfRange, match="seconds"):
            make()


@pytest.mark.parametrize("factor", [0, 0.99, -2, math.nan, math.inf, 10**400, True, "2", None])
def test_a_factor_never_shrinks_the_wait(factor: object) -> None:
    with pytest.raises(OutOfRange, match="factor must be"):
        Exponential(factor=factor)  # type: ignore[arg-type]


def test_the_other_fields_are_checked_too() -> None:
    with pytest.raises(OutOfRange, match="jitter must be True or False"):
        Exponential(jitter=1)  # type: ignore[arg-type]
    for waits in ((), [1, 2], 5, None):
        with pytest.raises(OutOfRange, match=r"such as \(10, 60, 300\)"):
            Delays(waits)  # type: ignore[arg-type]
    with pytest.raises(OutOfRange, match=r"seconds\[1\] must be"):
        Delays((1, -1))
    with pytest.raises(OutOfRange, match="the last delay repeats"):
        Delays((1,) * (MAX_ATTEMPTS_LIMIT + 1))


def test_a_function_of_the_workers_own_is_a_policy() -> None:
    seen: list[int] = []

    def linear(attempts: int) -> float:
        seen.append(attempts)
        return 10 * attempts

    assert [delay_seconds(linear, attempts, top) for attempts in (0, 1, 5)] == [0, 10, 50]
    assert seen == [0, 1, 5]


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.just(10**5000)))
def test_a_function_is_held_to_the_general_limits(answer: float) -> None:
    wait = delay_seconds(lambda _: answer, 1, top)
    assert type(wait) is float
    assert 0 <= wait <= MAX_SECONDS
    if 0 <= answer <= MAX_SECONDS:
        assert wait == answer


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (math.nan, "NaN"),
        (None, "NoneType"),
        ("5", "str"),
        (True, "bool"),
        (timedelta(seconds=5), "timedelta"),
        (Decimal(5), "Decimal"),
        ([], "list"),
    ],
)
def test_a_function_that_answers_nonsense_is_named(answer: object, named: str) -> None:
    def odd_policy(attempts: int) -> object:  # noqa: ARG001
        return answer

    with pytest.raises(OutOfRange, match=rf"odd_policy returned .*{named}.* for attempts=3"):
        delay_seconds(odd_policy, 3, top)  # type: ignore[arg-type]


def test_a_function_cannot_be_stored() -> None:
    with pytest.raises(InvalidInput, match="only Exponential, Fixed and Delays can be stored"):
        dump_policy(lambda attempts: attempts)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="can be stored"):
        dump_policy(None)  # type: ignore[arg-type]
