"""How many functions Python calls for each job, on its way in and through a worker."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tenure import Tenure
from tests.guard import scenes
from tests.guard.budgets import check, check_cheapest
from tests.guard.calls import CallMeter, count_here, whole
from tests.guard.counts import Counts, count_growth
from tests.guard.places import Place


def drain_calls(place: Place, kind: scenes.Kind) -> Counts:
    """The calls per job of a worker that drains a queue."""

    def drained(jobs: int) -> Counts:
        return place.drain(kind, jobs, meter=lambda _: nullcontext(CallMeter()))

    return whole(count_growth(drained, 1_000, 4_000))


def enqueue_calls(place: Place, *, at_once: int, times: int) -> Counts:
    """The calls per job of an application that enqueues.

    It tells no worker: how often it does so goes by the clock.
    """
    with place.database() as url, Tenure(place.silent(url)) as app:
        task = scenes.send_task(app, "async", [])

        def enqueue(jobs: int) -> None:
            app.enqueue_many([task.call(**scenes.ARGS) for _ in range(jobs)])

        def one_by_one() -> None:
            for _ in range(times):
                task.enqueue(**scenes.ARGS)

        enqueue(at_once)
        work = one_by_one if at_once == 1 else lambda: enqueue(at_once)
        counts = count_here(work)
    return whole(counts.per(at_once * times))


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_worker_calls_as_many_functions_per_job_as_it_may(
    place: Place, kind: scenes.Kind
) -> None:
    check_cheapest(f"{place.name}.worker_calls.{kind}", lambda: drain_calls(place, kind))


def test_bulk_enqueue_calls_as_many_functions_per_job_as_it_may(place: Place) -> None:
    counts = enqueue_calls(place, at_once=scenes.CHUNK, times=1)
    check(f"{place.name}.enqueue_calls.bulk", counts)


def test_a_single_enqueue_calls_as_many_functions_as_it_may(place: Place) -> None:
    counts = enqueue_calls(place, at_once=1, times=scenes.TIMES)
    check(f"{place.name}.enqueue_calls.one", counts)
