"""prune: finished jobs go after their time, with all that hung on them, in batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tenure.rules.codec import encode
from tenure.rules.job import NewStep, State, Unique, Until
from tenure.rules.lifecycle import abort, fail, retry, skip, succeed
from tenure.store import Store
from tests.support.plain import Plain, drivers_url
from tests.support.stores import Clock
from tests.support.work import ERROR, add, add_many, job, run, settle, take, take_one

DAY_SECONDS = 86_400.0


def ids(plain: Plain) -> set[int]:
    return {row[0] for row in plain.rows("select id from tenure.jobs")}


def test_successes_go_after_seven_days_and_the_others_after_thirty(
    store: Store, plain: Plain, clock: Clock
) -> None:
    succeeded, failed, skipped, cancelled = add_many(store, clock.now, 4)
    for end in (succeed, lambda job: fail(job, ERROR), skip, abort):
        run(store, clock.now, end)
    live = add(store, clock.now)
    assert store.prune(now=clock.advance(7 * DAY_SECONDS)) == 0
    assert store.prune(now=clock.advance(0.000_001)) == 1
    assert ids(plain) == {failed, skipped, cancelled, live}
    assert succeeded not in ids(plain)
    assert store.prune(now=clock.advance(23 * DAY_SECONDS - 0.000_001)) == 0
    assert store.prune(now=clock.advance(0.000_001)) == 3
    assert ids(plain) == {live}


def test_each_class_has_its_own_retention(store: Store, plain: Plain, clock: Clock) -> None:
    good, bad = add_many(store, clock.now, 2)
    run(store, clock.now, succeed)
    run(store, clock.now, lambda job: fail(job, ERROR))
    clock.advance(100)
    assert store.prune(succeeded_seconds=1000, other_seconds=50, now=clock.now) == 1
    assert ids(plain) == {good}
    assert store.prune(succeeded_seconds=0, other_seconds=50, now=clock.now) == 1
    assert bad not in ids(plain)


def test_batches_go_on_until_nothing_is_left(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.prune.PRUNE_BATCH", 10)
    add_many(store, clock.now, 35)
    settle(store, clock.now, *(succeed(job) for job in take(store, clock.now)))
    add_many(store, clock.now, 5)
    settle(store, clock.now, *(fail(job, ERROR) for job in take(store, clock.now)))
    assert store.prune(now=clock.advance(40 * DAY_SECONDS)) == 40


def test_the_story_the_notes_and_the_edges_go_too(store: Store, plain: Plain, clock: Clock) -> None:
    parent = add(store, clock.now)
    run(store, clock.now, succeed)
    add(store, clock.now, parents=(parent,), max_attempts=2)
    claimed = take_one(store, clock.now)
    store.save_checkpoint("w1", claimed, encode([1]), now=clock.now)
    settle(store, clock.now, retry(claimed, ERROR, 0))
    run(store, clock.now, lambda job: retry(job, ERROR, 0))
    assert store.prune(now=clock.advance(31 * DAY_SECONDS)) == 2
    assert all(rows == [] for rows in plain.everything().values())


def test_the_story_of_a_live_job_stays(store: Store, plain: Plain, clock: Clock) -> None:
    id = add(store, clock.now)
    run(store, clock.now, lambda job: retry(job, ERROR, 0))
    assert store.prune(now=clock.advance(400 * DAY_SECONDS)) == 0
    assert [event.kind for event in store.timeline(id)] == ["enqueued", "claimed", "retried"]
    assert ids(plain) == {id}


def test_keys_go_when_their_period_is_over_and_their_job_is_not_live(
    store: Store, plain: Plain, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.store.prune.PRUNE_BATCH", 2)
    long = {"until": Until.PERIOD, "period_seconds": 100 * DAY_SECONDS}
    short = {"until": Until.PERIOD, "period_seconds": 50.0}
    store.enqueue(
        [
            *(job(unique=Unique(key=f"short {n}", **short)) for n in range(5)),  # type: ignore[arg-type]
            job(unique=Unique(key="long", **long)),  # type: ignore[arg-type]
            job(unique=Unique(key="for ever", until=Until.FOREVER)),
        ],
        now=clock.now,
    )
    settle(store, clock.now, *(succeed(job) for job in take(store, clock.now)))
    add(store, clock.now, unique=Unique(key="live", **short))  # type: ignore[arg-type]
    store.prune(now=clock.advance(40 * DAY_SECONDS))
    keys = {row[0] for row in plain.rows("select key from tenure.unique_key")}
    assert keys == {"long", "for ever", "live"}


def test_all_keys_that_are_over_go_in_one_run_past_those_of_live_jobs(
    store: Store, plain: Plain, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where many expire at the same moment, and live jobs hold keys in between."""
    monkeypatch.setattr("tenure.store.prune.PRUNE_BATCH", 2)
    live = []
    for n in range(4):
        unique = [
            Unique(key=f"{n} {m}", until=Until.PERIOD, period_seconds=50.0 + n) for m in range(6)
        ]
        added = store.enqueue([job(unique=each) for each in unique], now=clock.now)
        live += [one.id for one in added[:3]]
        settle(
            store,
            clock.now,
            *(succeed(job) for job in take(store, clock.now) if job.id not in live),
        )
    store.prune(now=clock.advance(100))
    assert {row[0] for row in plain.rows("select job_id from tenure.unique_key")} == set(live)


# PostgreSQL keeps history by the day.


@pytest.fixture
def days(plain: Plain) -> Plain:
    if not plain.is_postgres:
        pytest.skip("SQLite keeps history in one table")
    return plain


def partitions(plain: Plain) -> set[str]:
    rows = plain.rows(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'tenure.history'::regclass"
    )
    return {row[0] for row in rows}


def day(ahead: int) -> str:
    return f"history_{datetime.now(UTC) + timedelta(days=ahead):%Y%m%d}"


def test_the_coming_days_are_prepared(store: Store, days: Plain) -> None:
    store.prune()
    store.prune()
    assert {"history_default", day(0), day(1), day(2), day(3)} <= partitions(days)
    id = add(store, datetime.now(UTC))
    run(store, datetime.now(UTC), succeed)
    assert days.one(f"select tableoid::regclass::text from tenure.history where id = {id}") in (
        f"tenure.{day(0)}",
        f"tenure.{day(1)}",
    )


def test_one_at_a_time_prepares_days_and_nobody_waits_for_it(store: Store, days: Plain) -> None:
    """Two would each keep the other from the default partition, and both give up."""
    days.rows("begin")
    days.rows("select pg_advisory_xact_lock(7364882, 'tenure.job'::regclass::oid::int)")
    store.prune()
    assert partitions(days) == {"history_default"}
    days.rows("rollback")
    store.prune()
    assert {day(1), day(2), day(3)} <= partitions(days)


def test_a_day_without_a_partition_goes_to_the_default_one(
    store: Store, days: Plain, clock: Clock
) -> None:
    store.prune()
    id = add(store, clock.now)
    run(store, clock.now, succeed)
    where = days.one(f"select tableoid::regclass::text from tenure.history where id = {id}")
    assert where == "tenure.history_default"
    assert store.get(id).state is State.SUCCEEDED


def test_a_day_that_the_default_partition_serves_stays_there(store: Store, days: Plain) -> None:
    """Its rows could not be moved without a long lock."""
    id = add(store, datetime.now(UTC))
    run(store, datetime.now(UTC), succeed)
    assert days.one(f"select tableoid::regclass::text from tenure.history where id = {id}") == (
        "tenure.history_default"
    )
    store.prune()
    assert {day(2), day(3)} <= partitions(days)
    assert store.get(id).state is State.SUCCEEDED


def long_ago(plain: Plain) -> datetime:
    """The noon of a day whose retention is over, with a partition of its own."""
    noon = datetime.now(UTC).replace(hour=12) - timedelta(days=40)
    start = f"{noon:%Y-%m-%d} 00:00:00+00"
    stop = f"{noon + timedelta(days=1):%Y-%m-%d} 00:00:00+00"
    plain.rows(
        f"create table tenure.{day(-40)} partition of tenure.history"
        f" for values from ('{start}') to ('{stop}')"
    )
    return noon


def make_day(plain: Plain, ago: int) -> datetime:
    """A partition for a day that is over, as if it had been made in time; answers its noon."""
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start -= timedelta(days=ago)
    plain.rows(
        f"create table tenure.{day(-ago)} partition of tenure.history"
        f" for values from ('{start}') to ('{start + timedelta(days=1)}')"
    )
    return start + timedelta(hours=12)


def test_whole_days_are_dropped_with_the_stories_of_their_jobs(
    store: Store, days: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the dropped jobs stays, however many they were and whatever they used."""
    monkeypatch.setattr("tenure.store.prune.PRUNE_BATCH", 4)
    now = make_day(days, 33)
    live = add(store, now)
    run(store, now, lambda job: retry(job, ERROR, 0))
    take_one(store, now, lease_seconds=1e9)
    parents = tuple(add_many(store, now, 3))
    settle(store, now, *(succeed(job) for job in take(store, now)))
    add_many(store, now, 10, parents=parents, max_attempts=2)
    children = take(store, now)
    for child in children[:5]:
        store.save_checkpoint("w1", child, encode([1]), now=now)
    for child in children[3:]:
        for name in ("one", "two"):
            store.record_step("w1", child, NewStep(name, "f", encode(1)), now=now)
    settle(store, now, *(fail(child, ERROR) for child in children[:7]))
    settle(store, now, *(retry(child, ERROR, 0) for child in children[7:]))
    settle(store, now, *(fail(child, ERROR) for child in take(store, now)))
    removed = store.prune()
    assert removed == 0, "rows were removed one by one"
    assert day(-33) not in partitions(days)
    assert ids(days) == {live}
    for table in ("event", "note", "step", "parent"):
        assert {row[0] for row in days.rows(f"select job_id from tenure.{table}")} <= {live}
    assert [event.kind for event in store.timeline(live)][:3] == ["enqueued", "claimed", "retried"]


def test_a_day_with_a_job_that_is_kept_for_longer_stays(store: Store, days: Plain) -> None:
    noons = {ago: make_day(days, ago) for ago in (33, 34)}
    for ago, noon in noons.items():
        add_many(store, noon, 3)
        add(store, noon, keep_succeeded_seconds=(ago - 33) * DAY_SECONDS + 60 * DAY_SECONDS)
        add(store, noon, keep_succeeded_seconds=DAY_SECONDS)
        settle(store, noon, *(succeed(job) for job in take(store, noon)))
    kept = {row[0] for row in days.rows("select id from tenure.history where keep_until > now()")}
    assert len(kept) == 2
    assert store.prune() == 8
    assert {day(-33), day(-34)} <= partitions(days)
    assert ids(days) == kept
    days.rows("update tenure.history set keep_until = now()")
    store.prune()
    assert not {day(-33), day(-34)} & partitions(days)


def test_a_day_that_somebody_reads_is_dropped_another_time(
    store: Store, store_url: str, days: Plain
) -> None:
    """A prune waits only for a moment: claims and settlements must not queue up behind it."""
    now = make_day(days, 33)
    id = add(store, now)
    run(store, now, lambda job: fail(job, ERROR))
    with psycopg.connect(drivers_url(store_url)) as reader:
        reader.execute("select count(*) from tenure.history")
        store.prune()
        assert day(-33) in partitions(days)
        reader.rollback()
    store.prune()
    assert day(-33) not in partitions(days)
    assert id not in ids(days)


def test_a_day_that_is_not_long_over_is_never_dropped(store: Store, days: Plain) -> None:
    """Who may call the function cannot empty the history with it. The clock is the server's."""
    store.prune()
    for ago in (1, 2, 3):
        make_day(days, ago)
    for cut in ("'-infinity'", "null"):
        assert days.one(f"select tenure.drop_history_days({cut})") == 0
    assert days.one("select tenure.drop_history_days('infinity')") == 2
    left = partitions(days)
    assert {day(-1), day(0), day(1), day(2), day(3)} <= left
    assert not {day(-2), day(-3)} & left


def test_rows_go_alone_from_a_day_that_may_not_be_dropped_yet(store: Store, days: Plain) -> None:
    store.prune()
    now = datetime.now(UTC)
    id = add(store, now)
    run(store, now, succeed)
    assert store.prune(now=now + timedelta(days=33)) == 1
    assert id not in ids(days)
    assert day(0) in partitions(days)


def test_only_what_is_due_leaves_a_day_and_the_gaps_between_days(
    store: Store, days: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk passes every partition once, whatever its rows and wherever they lie in it."""
    monkeypatch.setattr("tenure.store.prune.PRUNE_BATCH", 3)
    noons = {ago: make_day(days, ago) for ago in (2, 8, 9, 12)}
    default = {ago: noons[2] + timedelta(days=2 - ago) for ago in (4, 10, 11, 14, 40)}
    stay: set[int] = set()
    due = 0
    for ago, noon in (noons | default).items():
        good, bad = add_many(store, noon, 5), add_many(store, noon, 5)
        settle(store, noon, *(succeed(job) for job in take(store, noon, 5)))
        settle(store, noon, *(fail(job, ERROR) for job in take(store, noon, 5)))
        stay |= {*(good if ago < 7 else ()), *(bad if ago < 30 else ())}
        due += 5 * (ago > 7) + 5 * (ago > 30)
    assert store.prune() == due
    assert ids(days) == stay
    assert store.prune() == 0
    assert ids(days) == stay
