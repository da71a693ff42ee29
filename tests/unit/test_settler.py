"""The batches in which a worker settles."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import msgspec

from tenure.rules.job import Json
from tenure.rules.lifecycle import Outcome, Settlement
from tenure.worker.settler import MAX_BATCH, MAX_BATCH_KB, Ended, _take


class _Leased(msgspec.Struct):
    """What a batch looks at."""

    kb: int


def ended(kb: int) -> Ended:
    """An attempt with a result of this size."""
    result = Json(b"x" * (1024 * kb))
    settlement = Settlement(id=1, token=1, lease=1, outcome=Outcome.SUCCEED, result=result)
    return cast(Any, _Leased(kb)), settlement


def sizes(attempts: deque[Ended]) -> list[int]:
    """How many attempts there are in each batch, until none is left."""
    found = []
    while attempts:
        found.append(len(_take(attempts)))
    return found


def test_a_batch_is_bounded_by_bytes() -> None:
    half, third = MAX_BATCH_KB // 2, MAX_BATCH_KB // 3
    assert sizes(deque([ended(half)] * 5)) == [2, 2, 1]
    assert sizes(deque([ended(third)] * 7)) == [3, 3, 1]


def test_a_result_above_the_bound_is_sent_alone() -> None:
    assert sizes(deque([ended(1), ended(2 * MAX_BATCH_KB), ended(1)])) == [1, 1, 1]


def test_small_results_are_bounded_by_number() -> None:
    assert sizes(deque([ended(0)] * (2 * MAX_BATCH + 1))) == [MAX_BATCH, MAX_BATCH, 1]
