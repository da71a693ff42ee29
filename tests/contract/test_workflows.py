"""Workflows on every store: many jobs as one, ended once, and never forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.errors import (
    InvalidInput,
    InvalidWorkflow,
    JobNotFound,
    KeyTaken,
    TenantMismatch,
    WorkflowNotFound,
)
from tenure.rules.codec import encode
from tenure.rules.graph import NewNode, NewWorkflow, OnFailure, Outcome
from tenure.rules.job import State, Unique, When
from tenure.rules.lifecycle import abort, retry, skip, succeed
from tenure.store import LANDED, Store
from tests.support.flows import (
    CHAIN,
    added,
    failing,
    finish,
    flow,
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
from tests.support.work import ERROR, add, ids_of, job, settle, take

DIAMOND: dict[str, tuple[str, ...]] = {
    "split": (), "left": ("split",), "right": ("split",), "join": ("left", "right"),
}  # fmt: skip

SUCCEEDED, FAILED, SKIPPED = State.SUCCEEDED, State.FAILED, State.SKIPPED
CANCELLED, WAITING, QUEUED, RUNNING = (
    State.CANCELLED, State.WAITING, State.QUEUED, State.RUNNING,
)  # fmt: skip


def test_children_run_after_their_parents_and_the_workflow_ends(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, DIAMOND)
    assert states(store, run.id) == {
        "split": QUEUED, "left": WAITING, "right": WAITING, "join": WAITING,
    }  # fmt: skip
    assert run_all(store, clock.now) == ["split", "left", "right", "join"]
    seen = store.get_workflow(run.id)
    assert (seen.state, seen.ended_at) == ("succeeded", clock.now)
    assert (seen.finished, seen.total, seen.counts) == (4, 4, {SUCCEEDED: 4})


@rule("child-after-parents", "freed-token")
def test_a_node_waits_for_all_of_its_parents_and_is_freed_with_a_new_token(
    store: Store, clock: Clock
) -> None:
    """No ticket from before a replay may start it, hence the new token.

    Seen failing with the look at unfinished parents taken out: the node ran after the first parent;
    and with its token kept when it is freed: its ticket did not name the attempt, and nothing ran.
    """
    run = added(store, clock.now, {"a": (), "b": (), "c": ("a", "b")})
    before = store.get(run.nodes[2]).token
    held = take_named(store, clock.now)
    finish(store, clock.now, held["a"])
    assert take(store, clock.now) == []
    finish(store, clock.now, held["b"])
    assert [(job.id, job.token) for job in take(store, clock.now)] == [(run.nodes[2], before + 1)]


@rule("end-after-all")
def test_it_is_open_until_its_last_node_has_ended(store: Store, clock: Clock) -> None:
    """Seen failing with the look at unfinished nodes taken out: the workflow ended with the first
    of them."""
    run = added(store, clock.now, {"a": (), "b": ()})
    held = take_named(store, clock.now)
    finish(store, clock.now, held["a"])
    assert outcome(store, run.id) is None
    settle(store, clock.now, retry(held["b"], ERROR, 0))
    assert outcome(store, run.id) is None
    run_all(store, clock.now)
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_the_last_two_nodes_may_end_in_one_batch(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"a": (), "b": ()}, finaliser="fin")
    finish(store, clock.now, *take_named(store, clock.now).values())
    assert run_all(store, clock.now) == ["fin"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


@rule("skip-goes-down")
@pytest.mark.parametrize("end", [failing, skip, abort])
def test_what_depends_on_a_lost_node_is_skipped_all_the_way_down(
    store: Store, clock: Clock, end: Any
) -> None:
    """Seen failing with one generation only: the grandchild waited for ever, and so did the
    end."""
    run = added(store, clock.now, {**CHAIN, "other": ()})
    assert run_all(store, clock.now, {"a": end}) == ["a", "other"]
    became = states(store, run.id)
    assert (became["b"], became["c"], became["other"]) == (SKIPPED, SKIPPED, SUCCEEDED)
    expected = {failing: Outcome.FAILED, abort: Outcome.CANCELLED, skip: Outcome.SUCCEEDED}
    assert outcome(store, run.id) is expected[end]


@pytest.mark.parametrize(
    ("when", "ends", "runs"),
    [
        (When.ALL_SUCCEEDED, (succeed, succeed), True),
        (When.ALL_SUCCEEDED, (succeed, failing), False),
        (When.ALL_FINISHED, (failing, failing), True),
        (When.ALL_FINISHED, (skip, abort), True),
        (When.ANY_SUCCEEDED, (failing, succeed), True),
        (When.ANY_SUCCEEDED, (failing, skip), False),
        (When.ANY_FAILED, (succeed, failing), True),
        (When.ANY_FAILED, (succeed, succeed), False),
        (When.ANY_FAILED, (abort, skip), False),
    ],
)
def test_a_rule_says_which_ends_let_a_node_run(
    store: Store, clock: Clock, when: When, ends: tuple[Any, Any], runs: bool
) -> None:
    parents = {"a": (), "b": (), "c": ("a", "b"), "d": ("c",)}
    run = added(store, clock.now, parents, {"c": when})
    ran = run_all(store, clock.now, dict(zip("ab", ends, strict=True)))
    assert ran == ["a", "b", *(["c", "d"] if runs else [])]
    assert states(store, run.id)["d"] is (SUCCEEDED if runs else SKIPPED)
    assert store.get_workflow(run.id).ended_at == clock.now


@pytest.mark.parametrize(
    ("when", "end"), [(When.ANY_SUCCEEDED, succeed), (When.ANY_FAILED, failing)]
)
def test_one_end_may_be_enough_and_the_workflow_still_waits_for_the_other(
    store: Store, clock: Clock, when: When, end: Any
) -> None:
    run = added(store, clock.now, {"a": (), "b": (), "c": ("a", "b")}, {"c": when})
    held = take_named(store, clock.now)
    settle(store, clock.now, end(held["a"]))
    assert run_all(store, clock.now) == ["c"]
    assert (states(store, run.id)["b"], outcome(store, run.id)) == (RUNNING, None)
    finish(store, clock.now, held["b"])
    assert outcome(store, run.id) is not None
    assert take(store, clock.now) == []


@rule("freed-once")
def test_a_child_that_runs_is_not_freed_by_another_parent(store: Store, clock: Clock) -> None:
    """One parent was enough for it; the others must leave it alone.

    Seen failing with jobs looked at that do not wait: the child was queued a second time, and the
    success of the attempt that ran was stale.
    """
    parents = {"a": (), "b": (), "c": ("a", "b")}
    run = added(store, clock.now, parents, {"c": When.ANY_SUCCEEDED})
    held = take_named(store, clock.now)
    finish(store, clock.now, held["a"])
    [child] = take(store, clock.now)
    finish(store, clock.now, held["b"])
    assert take(store, clock.now) == []
    assert settle(store, clock.now, succeed(child)) == [LANDED]
    assert outcome(store, run.id) is Outcome.SUCCEEDED


def test_a_late_parent_completes_once_and_its_winner_frees_the_child(
    store: Store, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "b": ("a",)})
    [zombie] = take(store, clock.now)
    store.sweep(now=clock.advance(31))
    [winner] = take(store, clock.now, worker="w2")
    [answer] = settle(store, clock.now, succeed(zombie, encode("zombie")))
    assert answer.stale
    assert states(store, run.id)["b"] is WAITING
    settle(store, clock.now, succeed(winner, encode("winner")), worker="w2")
    [answer] = settle(store, clock.now, succeed(zombie, encode("zombie")))
    assert answer.stale
    [child] = take(store, clock.now)
    [end] = store.parent_ends(child.id)
    assert (end.result_json, end.name, end.state) == ('"winner"', "a", SUCCEEDED)
    finish(store, clock.now, child)
    assert take(store, clock.now) == []


def test_a_key_is_held_until_the_workflow_ends(store: Store, clock: Clock) -> None:
    first = added(store, clock.now, CHAIN, key="doc")
    second = added(store, clock.now, CHAIN, key="doc")
    assert (second.id, second.created, second.nodes) == (first.id, False, ())
    assert added(store, clock.now, CHAIN, key="doc", name="other").created
    assert store.get_workflow(first.id).total == 3
    run_all(store, clock.now)
    assert added(store, clock.now, CHAIN, key="doc").created


def test_a_node_whose_unique_key_is_held_refuses_the_whole_workflow(
    store: Store, plain: Plain, clock: Clock
) -> None:
    holder = add(store, clock.now, unique=Unique(key="k"))
    before = plain.everything()
    nodes = (*graph({"a": ()}), NewNode(name="b", job=job(unique=Unique(key="k")), after=(0,)))
    with pytest.raises(KeyTaken, match=f"node b .* job {holder}"):
        store.enqueue_workflow(NewWorkflow(name="flow", nodes=nodes), now=clock.now)
    assert plain.everything() == before


def test_a_nodes_unique_key_is_given_back_when_it_ends(store: Store, clock: Clock) -> None:
    nodes = (NewNode(name="a", job=job(unique=Unique(key="k"))),)
    store.enqueue_workflow(NewWorkflow(name="flow", nodes=nodes), now=clock.now)
    [held] = take(store, clock.now)
    finish(store, clock.now, held)
    assert add(store, clock.now, unique=Unique(key="k"))


@pytest.mark.parametrize(
    "broken",
    [
        lambda: flow({}),
        lambda: NewWorkflow(name="flow", nodes=(*graph({"a": ()}), *graph({"a": ()}))),
        lambda: NewWorkflow(name="flow", nodes=(NewNode(name="a", job=job(), after=(0,)),)),
        lambda: NewWorkflow(name="flow", nodes=(NewNode(name="a", job=job(), after=(7,)),)),
        lambda: NewWorkflow(name="flow", nodes=(NewNode(name="a", job=job(parents=(1,))),)),
        lambda: flow({"a": ()}, finaliser="a"),
        lambda: flow({"a": ()}, key=""),
        lambda: flow({"a": ()}, name="no name"),
        lambda: flow({"a": ()}, on_failure="explode"),
    ],
)
def test_a_graph_that_does_not_fit_together_is_refused_before_it_is_sent(broken: Any) -> None:
    with pytest.raises(InvalidInput):
        broken()


# --- the finaliser and the failure policy ---------------------------------------------------------


@pytest.mark.parametrize("end", [succeed, failing])
def test_the_finaliser_runs_once_after_all_others_however_they_ended(
    store: Store, clock: Clock, end: Any
) -> None:
    run = added(store, clock.now, CHAIN, finaliser="fin")
    ran = run_all(store, clock.now, {"b": end})
    assert ran[-1] == "fin"
    assert ran.count("fin") == 1
    assert outcome(store, run.id) is (Outcome.SUCCEEDED if end is succeed else Outcome.FAILED)


@rule("finaliser-last")
def test_the_finaliser_does_not_run_beside_another_node(store: Store, clock: Clock) -> None:
    """Seen failing with a finaliser for which one success was enough: it ran beside a node."""
    run = added(store, clock.now, {"a": (), "b": ()}, finaliser="fin")
    held = take_named(store, clock.now)
    finish(store, clock.now, held["a"])
    assert take(store, clock.now) == []
    settle(store, clock.now, failing(held["b"]))
    assert run_all(store, clock.now) == ["fin"]
    assert outcome(store, run.id) is Outcome.FAILED


def test_the_workflow_is_open_while_its_finaliser_runs(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"a": ()}, finaliser="fin")
    finish(store, clock.now, *take(store, clock.now))
    [final] = take(store, clock.now)
    assert outcome(store, run.id) is None
    settle(store, clock.now, failing(final))
    assert outcome(store, run.id) is Outcome.FAILED


def test_finish_lets_run_what_does_not_depend_on_the_failed_node(
    store: Store, clock: Clock
) -> None:
    added(store, clock.now, {"a": (), "b": (), "after-a": ("a",), "after-b": ("b",)})
    assert run_all(store, clock.now, {"a": failing}) == ["a", "b", "after-b"]


def test_stop_cancels_what_has_not_started_asks_the_rest_to_stop_and_lets_clean_ups_run(
    store: Store, clock: Clock
) -> None:
    parents = {
        "a": (), "b": (), "later": ("b",), "clean": ("a", "later"), "alarm": ("a",),
    }  # fmt: skip
    whens = {"clean": When.ALL_FINISHED, "alarm": When.ANY_FAILED}
    run = added(store, clock.now, parents, whens, on_failure=OnFailure.STOP, finaliser="fin")
    held = take_named(store, clock.now)
    settle(store, clock.now, failing(held["a"]))
    became = states(store, run.id)
    assert (became["later"], became["b"], became["alarm"]) == (CANCELLED, RUNNING, QUEUED)
    assert store.get(held["b"].id).cancel_requested
    settle(store, clock.now, retry(held["b"], ERROR, 0))
    assert states(store, run.id)["b"] is CANCELLED
    assert run_all(store, clock.now) == ["alarm", "clean", "fin"]
    assert outcome(store, run.id) is Outcome.FAILED


def test_a_sweep_that_fails_a_node_stops_the_rest(store: Store, clock: Clock) -> None:
    nodes = (NewNode(name="a", job=job(max_attempts=1)), *graph({"b": ()}))
    run = store.enqueue_workflow(
        NewWorkflow(name="flow", nodes=nodes, on_failure=OnFailure.STOP), now=clock.now
    )
    take(store, clock.now, 1)
    assert store.sweep(now=clock.advance(31)).finished == 1
    assert states(store, run.id) == {"a": FAILED, "b": CANCELLED}
    assert outcome(store, run.id) is Outcome.FAILED


def test_a_stop_that_was_left_undone_is_done_later(
    store: Store, plain: Plain, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "b": ()}, on_failure=OnFailure.STOP)
    assert store.heal_workflows(now=clock.now) == 0
    plain.rows("update tenure.workflow set failed = ?, stopping = ?", True, True)
    assert store.heal_workflows(now=clock.now) == 1
    assert states(store, run.id) == {"a": CANCELLED, "b": CANCELLED}
    assert outcome(store, run.id) is Outcome.FAILED
    assert store.heal_workflows(now=clock.now) == 0


# --- growing while it runs ------------------------------------------------------------------------


def test_a_running_node_adds_others_and_the_join_waits_for_them(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"split": (), "join": ("split",)})
    [split] = take(store, clock.now)
    nodes = [more("p1", before_names=("join",)), more("p2", after=(0,), before_names=("join",))]
    ids = store.grow_workflow("w1", split, nodes, now=clock.now)
    assert ids is not None
    finish(store, clock.now, split)
    assert states(store, run.id) == {
        "split": SUCCEEDED, "join": WAITING, "p1": QUEUED, "p2": WAITING,
    }  # fmt: skip
    assert run_all(store, clock.now) == ["p1", "p2", "join"]
    assert outcome(store, run.id) is Outcome.SUCCEEDED
    assert [node.added_by for node in store.list_nodes(run.id).nodes] == [None] * 2 + [split.id] * 2


@rule("grow-keeps-open")
def test_an_added_node_without_a_join_keeps_the_workflow_open(store: Store, clock: Clock) -> None:
    """Seen failing without the edge from the new node to the end: the workflow ended with the node
    that had added it."""
    run = added(store, clock.now, {"a": ()}, finaliser="fin")
    [held] = take(store, clock.now)
    store.grow_workflow("w1", held, [more("x"), more("y", after_names=("a",))], now=clock.now)
    [x] = take(store, clock.now)
    finish(store, clock.now, held)
    assert run_all(store, clock.now) == ["y"]
    assert outcome(store, run.id) is None
    finish(store, clock.now, x)
    assert run_all(store, clock.now) == ["fin"]


def test_a_second_attempt_may_repeat_what_the_first_has_added(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"split": (), "join": ("split",)})
    [first] = take(store, clock.now)
    nodes = [more("p1", before_names=("join",)), more("p2", after=(0,))]
    ids = store.grow_workflow("w1", first, nodes, now=clock.now)
    assert ids is not None
    settle(store, clock.now, retry(first, ERROR, 0))
    held = take_named(store, clock.now)
    finish(store, clock.now, held["p1"])
    nodes += [more("p3", after=(1,), before_names=("join",))]
    again = store.grow_workflow("w1", held["split"], nodes, now=clock.now)
    assert again is not None
    assert again[:2] == ids
    finish(store, clock.now, held["split"])
    assert run_all(store, clock.now) == ["p2", "p3", "join"]
    assert store.get_workflow(run.id).total == 5


@pytest.mark.parametrize(
    ("node", "match"),
    [
        (more("b"), "another node b"),
        (more("x", after_names=("nobody",)), "no node nobody"),
        (more("x", before_names=("nobody",)), "no node nobody"),
        (more("x", before_names=("a",)), "a has started"),
        (more("x", before_names=("done",)), "done has started"),
        (more("x", after_names=("c",), before_names=("b",)), "cycle"),
        (more("x", after_names=("b",), before_names=("b",)), "cycle"),
    ],
)
def test_what_does_not_fit_into_the_running_graph_is_refused_without_a_trace(
    store: Store, plain: Plain, clock: Clock, node: Any, match: str
) -> None:
    added(store, clock.now, {**CHAIN, "done": ()})
    held = take_named(store, clock.now)
    finish(store, clock.now, held["done"])
    before = plain.everything()
    with pytest.raises(InvalidWorkflow, match=match):
        store.grow_workflow("w1", held["a"], [node], now=clock.now)
    assert plain.everything() == before


def test_a_job_that_belongs_to_no_workflow_adds_nothing(store: Store, clock: Clock) -> None:
    add(store, clock.now)
    [held] = take(store, clock.now)
    with pytest.raises(InvalidWorkflow, match="no workflow"):
        store.grow_workflow("w1", held, [more("x")], now=clock.now)
    assert store.workflow_of(held.id) is None


@rule("grow-asked-to-stop")
def test_neither_a_finaliser_nor_one_that_is_asked_to_stop_adds_nodes(
    store: Store, clock: Clock
) -> None:
    """Seen failing with the request ignored: a cancelled workflow got new nodes, and went on."""
    run = added(store, clock.now, {"a": ()}, finaliser="fin")
    [held] = take(store, clock.now)
    store.cancel(held.id, now=clock.now)
    assert store.grow_workflow("w1", held, [more("x")], now=clock.now) is None
    settle(store, clock.now, abort(held))
    [final] = take(store, clock.now)
    with pytest.raises(InvalidWorkflow, match="finaliser"):
        store.grow_workflow("w1", final, [more("x")], now=clock.now)
    assert store.workflow_of(final.id) == (run.id, "fin")


# --- looking, tenants, retention ------------------------------------------------------------------


def test_workflows_and_nodes_are_listed_page_by_page(store: Store, clock: Clock) -> None:
    runs = [added(store, clock.now, CHAIN, name=name).id for name in ("x", "y", "x")]
    run_all(store, clock.now)
    runs.append(added(store, clock.now, CHAIN, name="x").id)
    assert [seen.id for seen in store.list_workflows(limit=2)] == runs[:1:-1]
    assert [seen.id for seen in store.list_workflows(before=runs[2])] == runs[1::-1]
    assert [seen.id for seen in store.list_workflows(name="x", open=True)] == runs[3:]
    page = store.list_nodes(runs[0], limit=2)
    assert [node.name for node in page.nodes] == ["a", "b"]
    assert page.next is not None
    rest = store.list_nodes(runs[0], after=page.next)
    assert ([node.name for node in rest.nodes], rest.next) == (["c"], None)
    assert store.node_named(runs[0], "b") == page.nodes[1].id
    with pytest.raises(WorkflowNotFound):
        store.node_named(runs[0], "nobody")


@pytest.mark.parametrize("id", [0, -1, 12345])
def test_a_workflow_that_does_not_exist_is_not_found(store: Store, clock: Clock, id: int) -> None:
    for act in (
        store.get_workflow, store.list_nodes, store.cancel_workflow, store.pause_workflow,
        store.resume_workflow,
    ):  # fmt: skip
        with pytest.raises(WorkflowNotFound):
            act(id, now=clock.now)


def test_a_tenant_sees_and_touches_its_own_workflows_only(store: Store, clock: Clock) -> None:
    mine, theirs = store.for_tenant("mine"), store.for_tenant("theirs")
    run = added(mine, clock.now, CHAIN, key="doc")
    assert added(theirs, clock.now, CHAIN, key="doc").created
    assert {store.get(id).tenant for id in run.nodes} == {"mine"}
    assert mine.get_workflow(run.id).tenant == "mine"
    assert [seen.id for seen in mine.list_workflows()] == [run.id]
    for act in (theirs.get_workflow, theirs.cancel_workflow, theirs.pause_workflow):
        with pytest.raises(WorkflowNotFound):
            act(run.id, now=clock.now)
    with pytest.raises(JobNotFound):
        theirs.replay(run.nodes[0], now=clock.now)
    assert theirs.workflow_of(run.nodes[0]) is None
    with pytest.raises(TenantMismatch):
        mine.enqueue_workflow(flow(CHAIN, tenant="theirs"), now=clock.now)
    assert added(store, clock.now, CHAIN).created


def test_nodes_that_are_added_belong_to_the_tenant_of_the_workflow(
    store: Store, clock: Clock
) -> None:
    added(store.for_tenant("mine"), clock.now, {"a": ()})
    [held] = take(store, clock.now)
    ids = store.grow_workflow("w1", held, [more("x")], now=clock.now)
    assert ids is not None
    assert store.get(ids[0]).tenant == "mine"


def test_the_jobs_of_a_workflow_are_kept_as_long_as_its_youngest(
    store: Store, plain: Plain, clock: Clock
) -> None:
    run = added(store, clock.now, {"a": (), "b": ("a",)})
    plain_job = add(store, clock.now, queue="other")
    finish(store, clock.now, *take(store, clock.now))
    finish(store, clock.now, *take(store, clock.now, queue="other"))
    clock.advance(8 * 86_400)
    store.prune(now=clock.now)
    with pytest.raises(JobNotFound):
        store.get(plain_job)
    assert states(store, run.id) == {"a": SUCCEEDED, "b": QUEUED}
    run_all(store, clock.now)
    clock.advance(6 * 86_400)
    store.prune(now=clock.now)
    assert store.get_workflow(run.id).total == 2
    clock.advance(2 * 86_400)
    assert store.prune(now=clock.now) == 2
    with pytest.raises(WorkflowNotFound):
        store.get_workflow(run.id)
    for table in ("history", "node", "parent", "workflow", "event"):
        assert plain.table(table) == [], table


def test_a_failed_workflow_is_kept_as_long_as_failed_jobs(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, CHAIN)
    run_all(store, clock.now, {"b": failing})
    store.prune(now=clock.advance(29 * 86_400))
    assert store.get_workflow(run.id).total == 3
    store.prune(now=clock.advance(2 * 86_400))
    with pytest.raises(WorkflowNotFound):
        store.get_workflow(run.id)


def test_a_node_is_not_deleted_while_its_workflow_is_open(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"a": (), "b": ("a",)})
    finish(store, clock.now, *take(store, clock.now))
    with pytest.raises(InvalidInput, match="workflow"):
        store.delete(run.nodes[0], now=clock.now)
    run_all(store, clock.now)
    store.delete(run.nodes[0], now=clock.now)
    assert list(states(store, run.id)) == ["b"]


def test_a_plain_job_may_wait_for_a_node(store: Store, clock: Clock) -> None:
    run = added(store, clock.now, {"a": ()})
    child = add(store, clock.now, parents=run.nodes)
    run_all(store, clock.now)
    assert store.get(child).state is SUCCEEDED
    assert [end.id for end in store.parent_ends(child)] == list(run.nodes)


def test_results_of_many_parents_come_in_order(store: Store, clock: Clock) -> None:
    count = 250
    parents: dict[str, tuple[str, ...]] = {f"p{n}": () for n in range(count)}
    run = added(store, clock.now, {**parents, "join": tuple(parents)})
    held = take(store, clock.now, 1000)
    assert ids_of(held) == list(run.nodes[:-1])
    settle(store, clock.now, *(succeed(each, encode(each.id)) for each in held))
    ends = store.parent_ends(run.nodes[-1])
    assert [end.result_json for end in ends] == [str(each.id) for each in held]
    assert [end.name for end in store.parent_ends(run.nodes[-1], task="app.p7")] == ["p7"]
