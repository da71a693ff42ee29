"""What is done to a workflow as a whole, on every store: cancel, pause, resume, replay."""

from __future__ import annotations

import pytest

from tenure.errors import KeyTaken
from tenure.rules.graph import NewNode, NewWorkflow, OnFailure, Outcome
from tenure.rules.job import State, When
from tenure.rules.lifecycle import abort, retry, snooze
from tenure.store import Store
from tests.support.audit import check
from tests.support.flows import (
    CHAIN,
    added,
    failing,
    finish,
    graph,
    more,
    outcome,
    run_all,
    states,
    take_named,
)
from tests.support.plain import Plain
from tests.support.rules import rule
from tests.support.stores import Clock
from tests.support.work import ERROR, job, settle, take

SUCCEEDED, FAILED, SKIPPED = State.SUCCEEDED, State.FAILED, State.SKIPPED
CANCELLED, WAITING, QUEUED, RUNNING = (
    State.CANCELLED, State.WAITING, State.QUEUED, State.RUNNING,
)  # fmt: skip


def test_cancel_ends_what_has_not_started_and_asks_the_rest_to_stop(
    store: Store, clock: Clock
) -> None:
    parents = {**CHAIN, "late": (), "clean": ("c",)}
    nodes = [
        *graph(parents, {"clean": When.ALL_FINISHED}),
        NewNode(name="due", job=job(delay_seconds=60)),
        NewNode(name="gated", job=job(gate="door", queue="gates")),
    ]
    final = NewNode(name="fin", job=job(task="app.fin"))
    run = store.enqueue_workflow(
        NewWorkflow(name="flow", nodes=tuple(nodes), finaliser=final), now=clock.now
    )
    [held] = take(store, clock.now, 1)
    assert store.cancel_workflow(run.id, reason="enough", now=clock.now)
    assert set(states(store, run.id).values()) == {RUNNING, CANCELLED, WAITING}
    assert states(store, run.id)["a"] is RUNNING
    assert store.get_workflow(run.id).state == "cancelling"
    [lease] = {held.lease_id}
    assert store.extend("w1", {lease: []}, now=clock.now).cancelled == ((held.id, held.token),)
    settle(store, clock.now, abort(held))
    assert run_all(store, clock.now) == ["fin"]
    assert outcome(store, run.id) is Outcome.CANCELLED
    assert not store.cancel_workflow(run.id, now=clock.now)


def test_to_cancel_again_cancels_the_finaliser_too(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, CHAIN, finaliser="fin")
    assert store.cancel_workflow(run.id, now=clock.now)
    assert states(store, run.id)["fin"] is QUEUED
    assert store.cancel_workflow(run.id, now=clock.now)
    assert (states(store, run.id)["fin"], outcome(store, run.id)) == (CANCELLED, Outcome.CANCELLED)


def test_a_single_node_can_be_cancelled(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, CHAIN)
    assert store.cancel(run.nodes[0], now=clock.now) is CANCELLED
    assert states(store, run.id) == {"a": CANCELLED, "b": SKIPPED, "c": SKIPPED}
    assert outcome(store, run.id) is Outcome.CANCELLED


@rule("cancelled-outlasts-nobody")
@pytest.mark.parametrize("finaliser", [None, "fin"])
def test_a_node_that_is_cancelled_while_it_waits_does_not_end_the_workflow_early(
    store: Store, clock: Clock, finaliser: str | None
) -> None:
    """It waited for its parents; now the end of the workflow does.

    Seen failing without the edge from its parents to the end: the workflow had ended while one of
    them ran.
    """
    run = added(store, clock.now, CHAIN, finaliser=finaliser)
    [held] = take(store, clock.now)
    assert store.cancel(run.nodes[1], now=clock.now) is CANCELLED
    assert (states(store, run.id)["c"], outcome(store, run.id)) == (SKIPPED, None)
    assert take(store, clock.now) == []
    finish(store, clock.now, held)
    run_all(store, clock.now)
    assert outcome(store, run.id) is Outcome.CANCELLED


def test_a_finaliser_that_is_cancelled_while_it_waits_leaves_the_end_to_the_others(
    store: Store, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "b": ()}, finaliser="fin")
    held = take_named(store, clock.now)
    assert run.finaliser is not None
    assert store.cancel(run.finaliser, now=clock.now) is CANCELLED
    store.grow_workflow("w1", held["a"], [more("x")], now=clock.now)
    finish(store, clock.now, *held.values())
    assert outcome(store, run.id) is None
    assert run_all(store, clock.now) == ["x"]
    assert outcome(store, run.id) is Outcome.CANCELLED


def test_a_flagged_node_that_is_claimed_ends_the_workflow(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"a": ()})
    [held] = take(store, clock.now)
    store.cancel_workflow(run.id, now=clock.now)
    settle(store, clock.now, snooze(held, 10))
    assert outcome(store, run.id) is Outcome.CANCELLED


def test_a_paused_workflow_starts_nothing_and_goes_on_where_it_was(
    store: Store, clock: Clock
) -> None:
    nodes = [*graph({"a": (), "b": ("a",), "own": ()}),
             NewNode(name="due", job=job(task="app.due", delay_seconds=60)),
             NewNode(name="gated", job=job(task="app.gated", gate="door"))]  # fmt: skip
    run = store.enqueue_workflow(NewWorkflow(name="flow", nodes=tuple(nodes)), now=clock.now)
    store.hold(run.nodes[2], now=clock.now)
    [held] = take(store, clock.now, 1)
    assert store.pause_workflow(run.id, reason="stop it", now=clock.now)
    assert not store.pause_workflow(run.id, now=clock.now)
    assert store.get_workflow(run.id).state == "paused"
    clock.advance(120)
    assert store.promote(now=clock.now) == 0
    settle(store, clock.now, retry(held, ERROR, 0))
    assert take(store, clock.now) == []
    assert store.resume_workflow(run.id, now=clock.now)
    assert not store.resume_workflow(run.id, now=clock.now)
    assert sorted(run_all(store, clock.now)) == ["a", "b", "due", "gated"]
    assert states(store, run.id)["own"] is QUEUED  # held by somebody else
    assert store.unhold(run.nodes[2], now=clock.now)
    run_all(store, clock.now)
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_what_comes_into_a_paused_workflow_is_held_too(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"a": (), "b": ()})
    held = take_named(store, clock.now)
    settle(store, clock.now, failing(held["b"]))
    store.pause_workflow(run.id, now=clock.now)
    store.grow_workflow("w1", held["a"], [more("x"), more("y", after=(0,))], now=clock.now)
    assert store.replay(run.nodes[1], now=clock.now)
    finish(store, clock.now, held["a"])
    assert take(store, clock.now) == []
    store.resume_workflow(run.id, now=clock.now)
    assert sorted(run_all(store, clock.now)) == ["b", "x", "y"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_a_node_that_ended_during_a_pause_is_held_by_nobody_but_its_operator(
    store: Store, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "b": ()})
    [held] = take(store, clock.now, 1)
    store.pause_workflow(run.id, now=clock.now)
    finish(store, clock.now, held)
    store.resume_workflow(run.id, now=clock.now)
    assert store.replay(held.id, now=clock.now)
    assert store.hold(held.id, now=clock.now)
    store.pause_workflow(run.id, now=clock.now)
    store.resume_workflow(run.id, now=clock.now)
    assert store.get(held.id).held
    assert run_all(store, clock.now) == ["b"]


def test_a_hold_during_a_pause_outlasts_it(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"a": (), "b": ()})
    store.pause_workflow(run.id, now=clock.now)
    assert store.unhold(run.nodes[0], now=clock.now)
    assert store.hold(run.nodes[0], now=clock.now)
    store.resume_workflow(run.id, now=clock.now)
    assert run_all(store, clock.now) == ["b"]
    assert store.unhold(run.nodes[0], now=clock.now)
    assert run_all(store, clock.now) == ["a"]


@rule("replay-goes-down")
def test_a_failed_node_is_replayed_and_the_rest_continues(store: Store, clock: Clock) -> None:
    """Seen failing with the node alone replayed: its children stayed skipped."""
    run = added(store, clock.now, {**CHAIN, "d": ("c",), "other": ()}, finaliser="fin")
    run_all(store, clock.now, {"b": failing})
    assert outcome(store, run.id) is Outcome.FAILED
    assert store.replay(run.nodes[1], now=clock.now)
    assert states(store, run.id) == {
        "a": SUCCEEDED, "b": QUEUED, "c": WAITING, "d": WAITING, "other": SUCCEEDED,
        "fin": WAITING,
    }  # fmt: skip
    assert outcome(store, run.id) is None
    assert run_all(store, clock.now) == ["b", "c", "d", "fin"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_a_replay_waits_for_nobody_and_another_failed_node_stays_failed(
    store: Store, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "b": (), "c": ("a", "b")})
    run_all(store, clock.now, {"a": failing, "b": failing})
    assert store.replay(run.nodes[0], now=clock.now)
    assert run_all(store, clock.now) == ["a"]
    assert states(store, run.id) == {"a": SUCCEEDED, "b": FAILED, "c": SKIPPED}
    assert outcome(store, run.id) is Outcome.FAILED
    assert store.replay(run.nodes[1], now=clock.now)
    assert run_all(store, clock.now) == ["b", "c"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_after_a_stop_a_replay_brings_back_what_the_stop_has_cancelled(
    store: Store, clock: Clock
) -> None:
    parents = {"a": (), "b": (), "later": ("b",), "join": ("a", "later")}
    run = added(store, clock.now, parents, on_failure=OnFailure.STOP)
    [held] = take(store, clock.now, 1)
    settle(store, clock.now, failing(held))
    assert set(states(store, run.id).values()) == {FAILED, CANCELLED}
    assert store.replay(run.nodes[0], now=clock.now)
    assert sorted(run_all(store, clock.now)) == ["a", "b", "join", "later"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_after_a_cancel_the_first_replay_brings_back_what_the_cancel_has_cancelled(
    store: Store, clock: Clock
) -> None:
    """Seen failing with the node alone replayed: a child ran before its parent was replayed."""
    parents = {"a": (), "b": ("a",), "late": ("b",), "other": ()}
    run = added(store, clock.now, parents, {"late": When.ALL_FINISHED})
    assert store.cancel_workflow(run.id, now=clock.now)
    assert store.replay(run.nodes[2], now=clock.now)
    assert list(states(store, run.id).values()) == [QUEUED, WAITING, WAITING, QUEUED]
    assert not store.replay(run.nodes[0], now=clock.now)  # it is live
    assert sorted(run_all(store, clock.now)) == ["a", "b", "late", "other"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_a_node_that_is_replayed_waits_for_a_live_parent(store: Store, clock: Clock) -> None:
    """Seen failing with a ticket for the node at once: it ran beside its parent."""
    run = added(store, clock.now, {"a": (), "b": ("a",), "c": ("b",)})
    run_all(store, clock.now)
    assert store.replay(run.nodes[0], now=clock.now)
    held = take_named(store, clock.now)["a"]
    assert store.replay(run.nodes[1], now=clock.now)
    assert store.replay(run.nodes[2], now=clock.now)
    assert states(store, run.id) == {"a": RUNNING, "b": WAITING, "c": WAITING}
    finish(store, clock.now, held)
    assert run_all(store, clock.now) == ["b", "c"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


@pytest.mark.parametrize("held", [False, True])
def test_a_node_that_has_not_started_waits_again_when_its_parent_is_replayed(
    store: Store, plain: Plain, clock: Clock, held: bool
) -> None:
    """Seen failing with the ticket left in its queue: the child ran first."""
    run = added(store, clock.now, {"a": (), "b": ("a",), "c": ("b",)})
    run_all(store, clock.now)
    for n in (2, 1):
        assert store.replay(run.nodes[n], now=clock.now)
        if held and n == 1:
            assert store.hold(run.nodes[1], now=clock.now)
    assert store.replay(run.nodes[0], now=clock.now)
    assert states(store, run.id) == {"a": QUEUED, "b": WAITING, "c": WAITING}
    check(plain)
    if held:
        assert run_all(store, clock.now) == ["a"]
        assert store.unhold(run.nodes[1], now=clock.now)
        assert run_all(store, clock.now) == ["b", "c"]
    else:
        assert run_all(store, clock.now) == ["a", "b", "c"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_a_node_that_runs_is_left_alone_when_its_parent_is_replayed(
    store: Store, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "b": ("a",)})
    run_all(store, clock.now)
    assert store.replay(run.nodes[1], now=clock.now)
    held = take_named(store, clock.now)["b"]
    assert store.replay(run.nodes[0], now=clock.now)
    finish(store, clock.now, held)
    assert run_all(store, clock.now) == ["a"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_a_pause_does_not_forget_that_a_workflow_was_stopped(store: Store, clock: Clock) -> None:
    """What a clean-up has added since is not stopped by the failure of another clean-up."""
    rules = {"c1": When.ANY_FAILED, "c2": When.ANY_FAILED}
    parents = {"a": (), "c1": ("a",), "c2": ("a",)}
    run = added(store, clock.now, parents, rules, on_failure=OnFailure.STOP)
    settle(store, clock.now, failing(take_named(store, clock.now)["a"]))
    held = take_named(store, clock.now)
    store.grow_workflow("w1", held["c1"], [more("more")], now=clock.now)
    assert store.pause_workflow(run.id, now=clock.now)
    assert store.resume_workflow(run.id, now=clock.now)
    settle(store, clock.now, failing(held["c2"]))
    assert states(store, run.id)["more"] is QUEUED


def test_a_second_failure_stops_the_rest_again(store: Store, clock: Clock) -> None:
    """Another node that has failed, and stays so, does not count as the failure that stops."""
    run = added(store, clock.now, {"a": (), "b": (), "c": ()}, on_failure=OnFailure.STOP)
    first, second = take(store, clock.now, 2)
    settle(store, clock.now, failing(first))
    settle(store, clock.now, failing(second))
    assert store.replay(run.nodes[0], now=clock.now)
    assert states(store, run.id) == {"a": QUEUED, "b": FAILED, "c": QUEUED}
    [again] = take(store, clock.now, 1)
    settle(store, clock.now, failing(again))
    assert states(store, run.id) == {"a": FAILED, "b": FAILED, "c": CANCELLED}
    assert outcome(store, run.id) is Outcome.FAILED
    assert store.heal_workflows(now=clock.now) == 0


def test_a_parent_that_succeeds_in_the_end_is_seen_so_by_a_child_that_ran_before(
    store: Store, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "alarm": ("a",)}, {"alarm": When.ANY_FAILED})
    run_all(store, clock.now, {"a": failing})
    [before] = store.parent_ends(run.nodes[1])
    assert before.state is FAILED
    assert store.replay(run.nodes[0], now=clock.now)
    assert run_all(store, clock.now) == ["a"]
    [after] = store.parent_ends(run.nodes[1])
    assert after.state is SUCCEEDED


def test_a_finaliser_that_is_replayed_runs_alone(store: Store, clock: Clock) -> None:
    parents = {"a": (), "b": (), "later": ("b",)}
    run = added(store, clock.now, parents, on_failure=OnFailure.STOP, finaliser="fin")
    [held] = take(store, clock.now, 1)
    settle(store, clock.now, failing(held))
    assert run_all(store, clock.now) == ["fin"]
    before = states(store, run.id)
    assert run.finaliser is not None
    assert store.replay(run.finaliser, now=clock.now)
    assert states(store, run.id) == {**before, "fin": QUEUED}
    assert run_all(store, clock.now) == ["fin"]
    assert outcome(store, run.id) is Outcome.FAILED


def test_a_replay_while_others_run_reopens_only_what_hangs_on_it(
    store: Store, clock: Clock
) -> None:
    parents = {"a": (), "b": (), "join": ("a", "b"), "clean": ("a",)}
    run = added(store, clock.now, parents, {"clean": When.ALL_FINISHED})
    held = take_named(store, clock.now)
    settle(store, clock.now, failing(held["a"]))
    assert run_all(store, clock.now) == ["clean"]
    assert store.replay(run.nodes[0], now=clock.now)
    finish(store, clock.now, held["b"])
    assert states(store, run.id)["join"] is WAITING
    assert run_all(store, clock.now) == ["a", "join"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_a_zombie_of_a_skipped_past_cannot_settle_a_replayed_node(
    store: Store, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "b": ("a",)})
    run_all(store, clock.now, {"b": failing})
    [old] = [node for node in store.list_nodes(run.id).nodes if node.name == "a"]
    token = store.get(old.id).token
    store.replay(run.nodes[1], now=clock.now)
    assert store.get(run.nodes[1]).token > token
    run_all(store, clock.now)


def test_a_replay_is_refused_when_another_workflow_holds_the_key(
    store: Store, plain: Plain, clock: Clock
) -> None:
    first = added(store, clock.now, {"a": ()}, key="doc")
    run_all(store, clock.now, {"a": failing})
    second = added(store, clock.now, {"a": ()}, key="doc")
    before = plain.everything()
    with pytest.raises(KeyTaken, match=str(second.id)):
        store.replay(first.nodes[0], now=clock.now)
    assert plain.everything() == before
