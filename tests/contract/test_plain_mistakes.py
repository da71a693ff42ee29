"""Mistakes that are easily made with a store in hand: both databases say the same, and name the
fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure.errors import InvalidInput
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.lifecycle import fail, retry, skip, snooze, succeed
from tenure.store import LANDED, Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, take_one

Mistake = Callable[[Any, Claimed], object]
EXCEPTION: Any = ValueError("boom")
ERROR: Any = "boom"
RESULT: Any = {"a": 1}
TEXT: Any = "{}"
NOTHING: Any = None
SEVEN: Any = 7

MISTAKES: dict[str, tuple[str, Mistake]] = {
    "a dict as a result": (
        "the result must be encoded first",
        lambda store, job: store.settle("w1", [succeed(job, RESULT)]),
    ),
    "JSON text as a result": (
        "the result must be encoded first",
        lambda store, job: store.settle("w1", [succeed(job, TEXT)]),
    ),
    "a text as an error": (
        "the error must be encoded first",
        lambda store, job: store.settle("w1", [fail(job, ERROR)]),
    ),
    "an exception as an error": (
        "the error must be encoded first",
        lambda store, job: store.settle("w1", [retry(job, EXCEPTION, 5)]),
    ),
    "no delay": (
        "delay_seconds must be a number",
        lambda store, job: store.settle("w1", [retry(job, encode("boom"), NOTHING)]),
    ),
    "a number as a reason": (
        "a reason must be a string",
        lambda store, job: store.settle("w1", [skip(job, SEVEN)]),
    ),
    "one settlement": ("a list of settlements", lambda store, job: store.settle("w1", skip(job))),
    "a job as a settlement": (
        "a list of settlements",
        lambda store, job: store.settle("w1", [job]),
    ),
    "a name as settlements": ("a list of settlements", lambda store, _: store.settle("w1", "jobs")),
    "a list of queues": ("how many jobs of which queue", lambda store, _: store.claim("w1", ["q"])),
    "a queue": ("how many jobs of which queue", lambda store, _: store.claim("w1", "default")),
    "a number in words": ("whole number", lambda store, _: store.claim("w1", {"default": "1"})),
    "a list of leases": (
        "ids of leases",
        lambda store, job: store.extend("w1", [job.lease_id]),
    ),
    "a job as a lease": ("ids of leases", lambda store, job: store.extend("w1", {job: []})),
    "jobs that are no ids": (
        "ids of leases",
        lambda store, job: store.extend("w1", {job.lease_id: [job]}),
    ),
    "one started job": (
        "ids of leases",
        lambda store, job: store.extend("w1", {job.lease_id: job.id}),
    ),
    "a length in words": (
        "lease_seconds must be a number",
        lambda store, job: store.extend("w1", {job.lease_id: []}, lease_seconds="30"),
    ),
    "a dict as a checkpoint": (
        "checkpoint must be encoded first",
        lambda store, job: store.save_checkpoint("w1", job, {"a": 1}),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_plain_mistake_is_named_and_changes_nothing(
    store: Store, plain: Plain, clock: Clock, mistake: str
) -> None:
    add(store, clock.now)
    claimed = take_one(store, clock.now)
    before = plain.everything()
    message, make = MISTAKES[mistake]
    with pytest.raises(InvalidInput, match=message):
        make(store, claimed)
    assert plain.everything() == before
    assert store.settle("w1", [snooze(claimed, 1)], now=clock.now) == [LANDED]
