"""enqueue: jobs come in, all or none, in order, with everything that was asked for."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import pytest

from tenure.errors import InvalidInput
from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, Json, State
from tenure.store import Store
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import add, ids_of, job, take


def test_one_job_is_stored_with_all_that_was_asked_for(store: Store, clock: Clock) -> None:
    [added] = store.enqueue(
        [
            job(
                task="app.mail:send",
                args=encode({"to": ["me", "du"]}),
                queue="mail",
                priority=-7,
                max_attempts=9,
                timeout_seconds=2.5,
                retry=encode({"first": 1}),
                metadata=encode({"trace": "abc"}),
            )
        ],
        now=clock.now,
    )
    stored = store.get(added.id, now=clock.now)
    assert (stored.task, stored.queue, stored.priority) == ("app.mail:send", "mail", -7)
    assert (stored.args_json, stored.retry_json) == ('{"to":["me","du"]}', '{"first":1}')
    assert (stored.metadata_json, stored.timeout_seconds) == ('{"trace":"abc"}', 2.5)
    assert (stored.attempts, stored.max_attempts, stored.crashes) == (0, 9, 0)
    assert (stored.state, stored.token) == (State.QUEUED, 1)
    assert (stored.created_at, stored.queued_at, stored.due_at) == (clock.now, clock.now, None)
    assert (stored.held, stored.cancel_requested, stored.queue_paused) == (False, False, False)


def test_a_claimed_job_carries_the_same(store: Store, clock: Clock) -> None:
    options: dict[str, Any] = {
        "args": encode({"n": 1}),
        "priority": 3,
        "max_attempts": 2,
        "timeout_seconds": 60,
        "retry": encode({"first": 1}),
        "metadata": encode({"m": None}),
    }
    add(store, clock.now, **options)
    [claimed] = take(store, clock.now)
    assert (claimed.args, claimed.retry, claimed.metadata) == (
        '{"n":1}',
        '{"first":1}',
        '{"m":null}',
    )
    assert (claimed.priority, claimed.max_attempts, claimed.timeout_seconds) == (3, 2, 60)
    assert (claimed.created_at, claimed.tenant, claimed.queue) == (clock.now, "", "default")


ODD_ARGUMENTS = [
    b'{"text":"\\t\\n\\r\\\\ \\\\n \\u0001 \\" / \\\\."}',
    '{"text":"é \u2028 \U0001f600 ÿ"}'.encode(),
    b'{"int":-9007199254740993,"big":123456789012345678901234567890,"float":1e-7,"one":1.0}',
    b'{"a":{"b":[[],{},null,true,false,""]},"\\\\N":"\\\\N"}',
    b'{\n\t"spaced" : [ 1 ,\r\n 2 ] }',
]


@pytest.mark.parametrize("times", [1, 30], ids=["few", "many"])
def test_arguments_come_back_as_they_went_in(store: Store, clock: Clock, times: int) -> None:
    """Few jobs and many take different ways into the database."""
    sent = [Json(args) for args in ODD_ARGUMENTS * times]
    store.enqueue([job(args=args, metadata=args) for args in sent], now=clock.now)
    claimed = take(store, clock.now, 1000)
    assert [job.args for job in claimed] == [args.decode() for args in sent]
    assert [job.metadata for job in claimed] == [args.decode() for args in sent]
    assert store.get(claimed[0].id).args_json == sent[0].decode()


@pytest.mark.parametrize("count", [1, 150], ids=["few", "many"])
def test_null_is_an_argument_but_no_metadata(store: Store, clock: Clock, count: int) -> None:
    null = encode(None)
    store.enqueue([job(args=null, metadata=null, retry=null)] * count, now=clock.now)
    for claimed in take(store, clock.now, 1000):
        assert (claimed.args, claimed.metadata, claimed.retry) == ("null", None, None)


def test_many_jobs_get_one_answer_each_in_order(store: Store, clock: Clock) -> None:
    answers = store.enqueue([job(task=f"app.t{n}") for n in range(250)], now=clock.now)
    assert len({answer.id for answer in answers}) == 250
    assert all(answer == Enqueued(answer.id) for answer in answers)
    assert [job.task for job in take(store, clock.now, 250)] == [f"app.t{n}" for n in range(250)]


@pytest.mark.slow
def test_twenty_thousand_jobs_in_one_call_keep_their_order_and_their_ids(
    store: Store, plain: Plain, clock: Clock
) -> None:
    answers = store.enqueue([job(args=Json(b"%d" % n)) for n in range(20_000)], now=clock.now)
    ids = [answer.id for answer in answers]
    assert ids == sorted(set(ids))
    assert plain.one("select count(*) from tenure.job") == 20_000
    seen = [*take(store, clock.now, 10_000), *take(store, clock.now, 10_000)]
    assert [(claimed.id, claimed.args) for claimed in seen] == [
        (id, str(n)) for n, id in enumerate(ids)
    ]


def test_nothing_to_enqueue_is_nothing_enqueued(store: Store, plain: Plain) -> None:
    assert store.enqueue([]) == []
    assert plain.one("select count(*) from tenure.jobs") == 0


def test_what_is_not_a_job_is_refused_with_the_whole_batch(store: Store, plain: Plain) -> None:
    with pytest.raises(InvalidInput, match="NewJob"):
        store.enqueue([job(), "app.work"])  # type: ignore[list-item]
    assert plain.one("select count(*) from tenure.jobs") == 0


def test_a_job_with_a_delay_waits_for_its_time(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, delay_seconds=2.5)
    stored = store.get(id, now=clock.now)
    assert stored.state is State.SCHEDULED
    assert stored.due_at == clock.now + timedelta(seconds=2.5)
    assert take(store, clock.advance(1)) == []


def test_a_job_with_a_due_time_waits_for_it_in_any_time_zone(store: Store, clock: Clock) -> None:
    due = (clock.now + timedelta(hours=1)).astimezone(timezone(timedelta(hours=5, minutes=45)))
    stored = store.get(add(store, clock.now, due_at=due), now=clock.now)
    assert (stored.state, stored.due_at) == (State.SCHEDULED, due)
    assert stored.due_at is not None
    assert stored.due_at.utcoffset() == timedelta(0)


def test_a_delay_of_no_time_means_now(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, delay_seconds=0)
    assert store.get(id, now=clock.now).state is State.QUEUED
    assert ids_of(take(store, clock.now)) == [id]


def test_a_due_time_that_has_passed_means_now(store: Store, clock: Clock) -> None:
    past = add(store, clock.now, due_at=clock.now - timedelta(days=400))
    present = add(store, clock.now, due_at=clock.now)
    assert ids_of(take(store, clock.now)) == [past, present]


def test_the_shortest_delay_is_a_delay(store: Store, clock: Clock) -> None:
    id = add(store, clock.now, delay_seconds=0.000_001)
    assert store.get(id, now=clock.now).state is State.SCHEDULED


def test_lower_priorities_go_first_and_equal_ones_in_order(store: Store, clock: Clock) -> None:
    priorities = [0, 100, -100, 5, 0, -100, 100, -1]
    ids = {n: add(store, clock.now, priority=p) for n, p in enumerate(priorities)}
    order = sorted(ids, key=lambda n: (priorities[n], n))
    assert ids_of(take(store, clock.now)) == [ids[n] for n in order]


def test_queues_do_not_mix(store: Store, clock: Clock) -> None:
    one, two = add(store, clock.now, queue="one"), add(store, clock.now, queue="two")
    assert ids_of(take(store, clock.now, queue="two")) == [two]
    assert ids_of(take(store, clock.now, queue="one")) == [one]
    assert take(store, clock.now) == []


def test_a_batch_may_mix_everything(store: Store, clock: Clock) -> None:
    mixed = [job(), job(delay_seconds=5), job(queue="other"), job(priority=1), job(tenant="t")]
    ids = [answer.id for answer in store.enqueue(mixed * 50, now=clock.now)]
    states = [store.get(id, now=clock.now).state for id in ids[:5]]
    assert states == [State.QUEUED, State.SCHEDULED, State.QUEUED, State.QUEUED, State.QUEUED]
    assert len(take(store, clock.now, 1000)) == 150
    assert store.promote(now=clock.advance(5)) == 50


def test_psql_can_enqueue_too(store: Store, plain: Plain) -> None:
    if not plain.is_postgres:
        pytest.skip("SQLite has no stored functions")
    now_id = plain.one("select tenure.enqueue('app.send', '{\"to\": \"me\"}', priority => 3)")
    later_id = plain.one("select tenure.enqueue('app.send', delay => interval '1 hour')")
    stored = store.get(now_id)
    assert (stored.state, stored.args_json, stored.priority) == (State.QUEUED, '{"to": "me"}', 3)
    assert store.get(later_id).state is State.SCHEDULED
