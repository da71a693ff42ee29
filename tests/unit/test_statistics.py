"""Statistics: fixed buckets, sums, and estimates of quantiles."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.rules.statistics import (
    BOUNDS,
    BUCKETS,
    By,
    Counted,
    Histogram,
    add_up,
)
from tests.support.counting import End, counted

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
seconds = st.floats(0, 100_000)
ends = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.sampled_from(["t", "u"]),
        st.sampled_from(["succeeded", "failed", "retried"]), seconds, seconds,
    ),
    max_size=60,
)  # fmt: skip


def histogram(values: list[float]) -> Histogram:
    [row] = counted(*[("q", "t", "succeeded", value, value) for value in values])
    assert row.waits == row.runs
    assert row.waits is not None
    return Histogram(tuple(row.waits), row.wait_seconds)


def bucket(value: float) -> int:
    return sum(bound < value for bound in BOUNDS)


def test_the_bounds_grow_and_suit_seconds_to_hours() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert (BOUNDS[0], BOUNDS[-1]) == (0.005, 36_000.0)
    assert 14 <= len(BOUNDS) <= 20
    assert len(BOUNDS) + 1 == BUCKETS


@given(st.lists(seconds, min_size=1, max_size=100))
def test_each_value_is_in_the_bucket_of_the_first_bound_that_it_does_not_exceed(
    values: list[float],
) -> None:
    told = histogram(values)
    assert Counter({n: count for n, count in enumerate(told.counts) if count}) == Counter(
        map(bucket, values)
    )
    assert told.count == len(values)
    assert told.seconds == pytest.approx(math.fsum(values))


def test_a_bound_belongs_to_its_bucket() -> None:
    for n, bound in enumerate(BOUNDS):
        assert histogram([bound]).counts[n] == 1
        assert histogram([math.nextafter(bound, math.inf)]).counts[n + 1] == 1


@given(st.lists(seconds, min_size=1, max_size=100), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    told = histogram(values).quantile(share)
    assert told is not None
    true = sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
    n = bucket(true)
    if n == len(BOUNDS):
        assert told == BOUNDS[-1]
    else:
        low = BOUNDS[n - 1] if n else 0.0
        assert low <= told <= BOUNDS[n]


@given(st.lists(seconds, min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_grow_with_their_share(values: list[float], one: float, other: float) -> None:
    told = histogram(values)
    low, high = told.quantile(min(one, other)), told.quantile(max(one, other))
    assert low is not None
    assert high is not None
    assert low <= high


def test_nothing_has_no_quantiles() -> None:
    assert (Histogram().p50, Histogram().p95, Histogram().mean) == (None, None, None)


def test_a_quantile_lies_on_a_line_within_its_bucket() -> None:
    even = histogram([0.06, 0.07, 0.08, 0.09])
    assert even.p50 == pytest.approx(0.075)
    assert even.quantile(1.0) == 0.1


@given(ends, ends)
def test_sums_do_not_depend_on_who_has_counted(one: list[End], other: list[End]) -> None:
    by: tuple[By, ...] = ("queue", "task", "outcome")
    apart = add_up([*counted(*one), *counted(*other)], SINCE, 10.0, by)
    whole = add_up(counted(*one, *other), SINCE, 10.0, by)
    assert [(g.queue, g.task, g.outcome, g.counts, g.wait.counts) for g in apart] == [
        (g.queue, g.task, g.outcome, g.counts, g.wait.counts) for g in whole
    ]


@given(ends)
def test_groups_add_up_to_the_whole(each_end: list[End]) -> None:
    rows = counted(*each_end)
    by_queue = add_up(rows, SINCE, 10.0, ["queue"])
    assert sum(sum(group.counts.values()) for group in by_queue) == len(each_end)
    assert {group.queue for group in by_queue} == {queue for queue, *_ in each_end}
    whole = add_up(rows, SINCE, 10.0, [])
    assert sum(group.run.count for group in whole) == len(each_end)


def test_what_follows_from_the_counts() -> None:
    rows = [
        Counted("q", "t", "succeeded", 6),
        Counted("q", "t", "failed", 2),
        Counted("q", "t", "skipped", 1),
        Counted("q", "t", "retried", 5),
    ]
    [group] = add_up(rows, SINCE, 3.0, ["queue"])
    assert (group.queue, group.task, group.outcome) == ("q", None, None)
    assert (group.finished, group.per_second, group.failure_ratio) == (9, 3.0, 0.25)
    assert group.wait.count == 0
    [only] = add_up([Counted("q", "t", "skipped", 1)], SINCE, 3.0, ["queue"])
    assert only.failure_ratio is None


def test_rows_with_and_without_times_can_be_added() -> None:
    row = Counted("q", "t", "failed", 1)
    row.add(Counted("q", "t", "failed", 2, 1.0, 2.0, [1] * BUCKETS, [2] * BUCKETS))
    row.add(Counted("q", "t", "failed", 4))
    row.add(Counted("q", "t", "failed", 8, 1.0, 2.0, [1] * BUCKETS, [2] * BUCKETS))
    assert row == Counted("q", "t", "failed", 15, 2.0, 4.0, [2] * BUCKETS, [4] * BUCKETS)
