"""The audit that ends every test of this folder finds what it is there to find."""

from __future__ import annotations

import pytest

from tenure.rules.job import Unique
from tenure.rules.lifecycle import succeed
from tenure.store import Store
from tests.support.audit import check
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, run, take_one

DAMAGE = {
    "a job without a place": "delete from tenure.ready",
    "a job with two places": (
        "insert into tenure.due (due_at, job_id, token)"
        " select created_at, id, token from tenure.job where queue = 'line'"
    ),
    "a job on a lease that stands in line": (
        "insert into tenure.ready (queue, priority, position, job_id, token)"
        " select queue, priority, position, id, token from tenure.job where queue = 'held'"
    ),
    "a lease that is gone": "delete from tenure.lease",
    "a ticket from the future": "update tenure.ready set token = 2",
    "a ticket in another line": "update tenure.ready set priority = 9",
    "a live job without an attempt left": "update tenure.job set attempts = max_attempts",
    "a live job that lost its key": "delete from tenure.unique_key",
    "a key of a job that is gone": "update tenure.unique_key set job_id = 4711",
    "a child that waits for nobody": "update tenure.parent set parent_state = 'succeeded'",
    "a child that waits for a job that is gone": "update tenure.parent set parent_id = 4711",
    "a finished job that is live": (
        "update tenure.history set id = (select min(id) from tenure.job)"
    ),
}


@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"], indirect=True)
@pytest.mark.parametrize("what", DAMAGE)
def test_the_audit_notices(store: Store, plain: Plain, clock: Clock, what: str) -> None:
    add(store, clock.now, queue="held")
    take_one(store, clock.now, queue="held")
    line = add(store, clock.now, queue="line", unique=Unique(key="k"))
    add(store, clock.now, parents=(line,))
    add(store, clock.now, queue="done")
    run(store, clock.now, succeed, queue="done")
    check(plain)
    plain.rows(DAMAGE[what])
    with pytest.raises(AssertionError):
        check(plain)
    plain.wipe()
