"""Threads that have stores of their own on one database, and call them at the same time.

That many processes drain a queue, and enqueue with the same keys, is shown in tests/processes.
"""

from __future__ import annotations

import threading
from functools import partial

from tenure.rules.claim import Lease
from tenure.rules.codec import encode
from tenure.rules.job import State
from tenure.rules.lifecycle import succeed
from tenure.store import Store
from tests.contract.conftest import Opener
from tests.support.races import Background, at_once, wait_until
from tests.support.work import job

ROUNDS = 10


def ids_of(leases: list[Lease]) -> list[int]:
    """The jobs of these leases."""
    return [job.id for lease in leases for job in lease.jobs]


def test_of_many_claims_at_once_on_one_job_one_gets_it(open_shared: Opener) -> None:
    """The others get nothing, and no error."""
    stores = [open_shared() for _ in range(6)]
    for _ in range(ROUNDS):
        [added] = stores[0].enqueue([job()])
        answers = at_once(
            [partial(store.claim, f"w{n}", {"default": 1}) for n, store in enumerate(stores)]
        )
        assert [id for leases in answers for id in ids_of(leases)] == [added.id]
        assert sorted(len(leases) for leases in answers) == [0, 0, 0, 0, 0, 1]


def test_two_claims_at_once_on_two_jobs_get_one_each(open_shared: Opener) -> None:
    first, second = open_shared(), open_shared()
    for _ in range(ROUNDS):
        added = {answer.id for answer in first.enqueue([job(), job()])}
        one, other = at_once(
            [lambda: first.claim("w1", {"default": 1}), lambda: second.claim("w2", {"default": 1})]
        )
        assert (len(ids_of(one)), len(ids_of(other))) == (1, 1)
        assert set(ids_of(one) + ids_of(other)) == added


def test_sweeps_at_once_charge_a_crash_once(open_shared: Opener) -> None:
    stores = [open_shared() for _ in range(4)]
    ids = [answer.id for answer in stores[0].enqueue([job()] * 20)]
    for _ in ids:
        stores[0].claim("w1", {"default": 1}, lease_seconds=0.001)

    def sweep_all(store: Store) -> int:
        done = 0
        while swept := store.sweep(most=3).requeued:
            done += swept
        return done

    total = 0

    def is_done() -> bool:
        nonlocal total
        total += sum(at_once([partial(sweep_all, store) for store in stores]))
        return total >= len(ids)

    wait_until(is_done)
    assert total == len(ids)
    jobs = [stores[0].get(id) for id in ids]
    assert {(job.token, job.attempts, job.crashes) for job in jobs} == {(2, 1, 1)}


def test_a_reader_that_sees_success_finds_the_whole_result(open_shared: Opener) -> None:
    writer, reader = open_shared(), open_shared()
    result = "x" * 50_000
    ids = [answer.id for answer in writer.enqueue([job()] * 30)]
    [lease] = writer.claim("w1", {"default": 30})
    written = threading.Event()

    def read() -> set[tuple[State, bool]]:
        seen = set()
        while not written.is_set():
            for id in ids:
                found = reader.get(id)
                seen.add((found.state, found.result_json == f'"{result}"'))
        return seen

    reading = Background(read)
    for claimed in lease.jobs:
        writer.settle("w1", [succeed(claimed, encode(result))])
    written.set()
    assert reading.result() <= {(State.RUNNING, False), (State.SUCCEEDED, True)}
    assert {reader.get(id).result_json for id in ids} == {f'"{result}"'}
