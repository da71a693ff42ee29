"""The rules without which a workflow would run too early, twice, for ever, or for a zombie.

Each docstring says what was taken out and how the test failed then; `make bugs` repeats that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.errors import LeaseLost, StepConflict
from tenure.rules.codec import encode
from tenure.rules.graph import Outcome
from tenure.rules.job import Claimed, NewStep, State, When
from tenure.rules.lifecycle import succeed
from tenure.store import LANDED, STALE, Store
from tests.statements.support import Background, Database, Held, expire, rule, running
from tests.support.flows import added, failing, flow, more, run_all, states, take_named
from tests.support.stores import Clock
from tests.support.work import settle

Hold = Callable[[], Held]
BlockedBy = Callable[..., None]


def outcome(store: Store, id: int) -> Outcome | None:
    return store.get_workflow(id).outcome


def finish(store: Store, clock: Clock, *held: Claimed) -> None:
    settle(store, clock.now, *(succeed(each) for each in held))


@rule("child-after-parents")
def test_a_child_waits_for_all_of_its_parents(store: Store, clock: Clock) -> None:
    """Seen failing with the look at unfinished parents taken out: the child ran after the first."""
    added(store, clock.now, {"a": (), "b": (), "c": ("a", "b")})
    held = take_named(store, clock.now)
    finish(store, clock, held["a"])
    assert take_named(store, clock.now) == {}
    finish(store, clock, held["b"])
    assert list(take_named(store, clock.now)) == ["c"]


@rule("skip-goes-down")
def test_what_depends_on_a_skipped_node_is_skipped(store: Store, clock: Clock) -> None:
    """Seen failing with one generation only: the grandchild waited for ever, and so did the end."""
    run = added(store, clock.now, {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)})
    assert run_all(store, clock.now, {"a": failing}) == ["a"]
    assert states(store, run.id) == {
        "a": State.FAILED, "b": State.SKIPPED, "c": State.SKIPPED, "d": State.SKIPPED,
    }  # fmt: skip
    assert outcome(store, run.id) is Outcome.FAILED


@rule("freed-once")
def test_a_child_that_runs_is_not_freed_by_another_parent(store: Store, clock: Clock) -> None:
    """One end was enough for it; the others must leave it alone.

    Seen failing with jobs looked at that do not wait: the child was put in line a second time, and
    the success of the attempt that ran was stale.
    """
    run = added(
        store, clock.now, {"a": (), "b": (), "c": ("a", "b")}, {"c": When.ANY_SUCCEEDED}
    )  # fmt: skip
    held = take_named(store, clock.now)
    finish(store, clock, held["a"])
    [child] = take_named(store, clock.now).values()
    finish(store, clock, held["b"])
    assert take_named(store, clock.now) == {}
    assert settle(store, clock.now, succeed(child)) == [LANDED]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


@rule("freed-held")
def test_a_held_child_that_is_freed_does_not_run(store: Store, clock: Clock) -> None:
    """Seen failing with the hold ignored: a node of a paused workflow ran."""
    run = added(store, clock.now, {"a": (), "b": ("a",)})
    held = take_named(store, clock.now)
    assert store.pause_workflow(run.id, now=clock.now)
    finish(store, clock, held["a"])
    assert take_named(store, clock.now) == {}
    assert store.resume_workflow(run.id, now=clock.now)
    assert list(take_named(store, clock.now)) == ["b"]


@rule("freed-token")
def test_a_child_that_is_freed_has_a_new_token(store: Store, clock: Clock) -> None:
    """So that no ticket from before a replay starts it.

    Seen failing with the token kept: the ticket did not name the attempt, and nothing ran.
    """
    run = added(store, clock.now, {"a": (), "b": ("a",)})
    before = store.get(run.nodes[1]).token
    finish(store, clock, *take_named(store, clock.now).values())
    assert [job.token for job in take_named(store, clock.now).values()] == [before + 1]


@rule("end-after-all")
def test_a_workflow_is_open_while_one_of_its_last_nodes_is(store: Store, clock: Clock) -> None:
    """Seen failing with the look at unfinished nodes taken out: it ended with the first of them."""
    run = added(store, clock.now, {"a": (), "b": ()})
    held = take_named(store, clock.now)
    finish(store, clock, held["a"])
    assert outcome(store, run.id) is None
    finish(store, clock, held["b"])
    assert outcome(store, run.id) is Outcome.SUCCEEDED


@rule("end-after-locks")
def test_a_workflow_whose_last_two_nodes_end_together_ends(
    pg: Store, clock: Clock, hold: Hold, blocked_by: BlockedBy
) -> None:
    """Each settlement sees the other's node unfinished when it begins. The one that waited for the
    row of the workflow must look again.

    Seen failing with the lock taken out of `lock_workflows`: the workflow was open for ever.
    """
    run = pg.enqueue_workflow(flow({"a": (), "b": ()}), now=clock.now)
    held = take_named(pg, clock.now)
    first = hold()
    pg.settle("w1", [succeed(held["a"])], on=first.connection, now=clock.now)
    second = Background(lambda: pg.settle("w1", [succeed(held["b"])], now=clock.now))
    blocked_by(first, or_over=second)
    first.commit()
    assert second.result() == [LANDED]
    assert outcome(pg, run.id) is Outcome.SUCCEEDED


@rule("finaliser-last")
def test_the_finaliser_runs_once_and_after_all_others(store: Store, clock: Clock) -> None:
    """Seen failing with a finaliser for which one success was enough: it ran beside a node."""
    run = added(store, clock.now, {"a": (), "b": ()}, finaliser="fin")
    held = take_named(store, clock.now)
    finish(store, clock, held["a"])
    assert take_named(store, clock.now) == {}
    settle(store, clock.now, failing(held["b"]))
    assert run_all(store, clock.now) == ["fin"]
    assert outcome(store, run.id) is Outcome.FAILED
    assert take_named(store, clock.now) == {}


@rule("grow-fence")
def test_a_zombie_adds_nothing_to_its_workflow(
    store: Store, clock: Clock, database: Database
) -> None:
    """Seen failing with the look at token and lease taken out: the nodes of an attempt that had
    been swept were there, beside those of its successor."""
    added(store, clock.now, {"a": ()})
    [zombie] = take_named(store, clock.now).values()
    expire(store, clock)
    before = database.snapshot()
    with pytest.raises(LeaseLost):
        store.grow_workflow("w1", zombie, [more("x")], now=clock.now)
    assert database.snapshot() == before


@rule("grow-asked-to-stop")
def test_one_that_is_asked_to_stop_adds_nothing(store: Store, clock: Clock) -> None:
    """Seen failing with the flag ignored: a cancelled workflow got new nodes, and went on."""
    run = added(store, clock.now, {"a": ()})
    [asked] = take_named(store, clock.now).values()
    store.cancel_workflow(run.id, now=clock.now)
    assert store.grow_workflow("w1", asked, [more("x")], now=clock.now) is None
    assert list(states(store, run.id)) == ["a"]


@rule("grow-keeps-open")
def test_a_workflow_is_open_while_what_was_added_is(store: Store, clock: Clock) -> None:
    """Seen failing without the edge from the new node to the end: it ended with the node that had
    added it."""
    run = added(store, clock.now, {"a": ()})
    [adder] = take_named(store, clock.now).values()
    store.grow_workflow("w1", adder, [more("x")], now=clock.now)
    finish(store, clock, adder)
    assert outcome(store, run.id) is None
    assert run_all(store, clock.now) == ["x"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


@rule("cancelled-outlasts-nobody")
def test_a_cancelled_node_leaves_the_end_to_its_parents(store: Store, clock: Clock) -> None:
    """It waited for them, and nobody else does.

    Seen failing without their edge to the end: the workflow had ended while one of them ran.
    """
    run = added(store, clock.now, {"a": (), "b": ("a",)})
    held = take_named(store, clock.now)
    store.cancel(run.nodes[1], now=clock.now)
    assert outcome(store, run.id) is None
    finish(store, clock, held["a"])
    assert outcome(store, run.id) is Outcome.CANCELLED


@rule("replay-goes-down")
def test_a_replay_brings_back_what_was_skipped_below(store: Store, clock: Clock) -> None:
    """Seen failing with the node alone replayed: its children stayed skipped."""
    run = added(store, clock.now, {"a": (), "b": ("a",), "c": ("b",)})
    run_all(store, clock.now, {"a": failing})
    assert store.replay(run.nodes[0], now=clock.now)
    assert run_all(store, clock.now) == ["a", "b", "c"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def step(result: object) -> NewStep:
    return NewStep("charge", "charge", encode(result))


@rule("step-fence")
def test_a_zombie_records_no_step_that_counts(store: Store, clock: Clock) -> None:
    """Seen failing with the look at token and lease taken out: the successor got what a zombie had
    written."""
    zombie = running(store, clock)
    expire(store, clock)
    assert store.record_step("w1", zombie, step("late"), now=clock.now) == STALE
    assert store.steps(zombie.id) == []


@rule("step-once")
def test_what_a_step_has_answered_stays(store: Store, clock: Clock) -> None:
    """Seen failing with the row overwritten: two attempts went on with two answers."""
    job = running(store, clock)
    assert store.record_step("w1", job, step("first"), now=clock.now) == LANDED
    with pytest.raises(StepConflict):
        store.record_step("w1", job, step("second"), now=clock.now)
    assert [found.result for found in store.steps(job.id)] == ['"first"']
