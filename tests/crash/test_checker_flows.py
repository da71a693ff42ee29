"""The checker can fail, continued: parents and children, workflows, and who begins them anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.crash.forger import LEASE_SECONDS, Forger
from tests.crash.test_checker import found

Forgery = Callable[[Forger], None]


def child_before_parent(f: Forger) -> None:
    f.enqueue(1, 2)
    f.claim(1)
    f.run(1)
    f.ends_well(2)
    f.settle(1)
    f.row(1)
    f.flow(1, 2, after=[(2, 1)])


def child_of_one_that_never_ended(f: Forger) -> None:
    f.happy(2)
    f.enqueue(1)
    f.row(1, state="live", attempts=0)
    f.final.parents.append((2, 1))


def child_before_parent_and_once_more(f: Forger) -> None:
    f.enqueue(2)
    f.claim(2)
    f.run(2)
    f.settle(2)
    f.event(2, 1, "succeeded")
    f.happy(1)
    f.replay(2, 2)
    f.claim(2, 2)
    f.run(2, 2)
    f.settle(2, 2)
    f.row(2, 2)
    f.final.parents.append((2, 1))


def child_that_was_put_back_before_its_new_parent(f: Forger) -> None:
    f.enqueue(2)
    f.claim(2)
    f.settle(2, outcome="release")
    f.event(2, 1, "released")
    f.enqueue(1)
    created_at = f.now
    f.claim(2, 2)
    f.run(2, 2)
    f.settle(2, 2)
    f.row(2, 2)
    f.ends_well(1, created_at=created_at)
    f.final.parents.append((2, 1))


def child_without_its_parents(f: Forger) -> None:
    f.enqueue(1)
    f.row(1, state="cancelled", attempts=0)
    f.happy(2)
    f.final.parents.append((2, 1))


def child_of_one_that_succeeded_later(f: Forger) -> None:
    f.enqueue(1)
    f.event(1, 1, "cancelled", None)
    f.happy(2)
    f.replay(1, 2)
    f.claim(1, 2)
    f.run(1, 2)
    f.settle(1, 2)
    f.row(1, 2)
    f.final.parents.append((2, 1))


def child_of_a_failure_that_was_none(f: Forger) -> None:
    f.enqueue(1, 2)
    f.ends_well(1)
    f.ends_well(2)
    f.flow(1, 2, after=[(2, 1)])
    f.final.workflows[0].nodes[2] = "any_failed"  # type: ignore[index]


def node_gone_on_in_silence(f: Forger) -> None:
    f.enqueue(1)
    f.operate("resume_workflow")  # explains who stood in line, not who was at work
    f.claim(1)
    f.run(1)
    f.wait(LEASE_SECONDS)
    f.claim(1, 2, "w2")
    f.run(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2)
    f.flow(1)


def node_resumed_by_nobody(f: Forger) -> None:
    f.enqueue(1)
    f.operate("resume_workflow", said="False")
    f.claim(1, 2)
    f.run(1, 2)
    f.settle(1, 2)
    f.row(1, 2)
    f.flow(1)


def finaliser_not_called_back(f: Forger) -> None:
    f.enqueue(1, 2)
    f.claim(1)
    f.run(1)
    f.settle(1)
    f.event(1, 1, "succeeded")
    f.replay(1, 2)
    f.ends_well(2)
    f.claim(1, 2)
    f.run(1, 2)
    f.settle(1, 2)
    f.row(1, 2)
    f.flow(1, 2, finaliser=2)


def finaliser_early(f: Forger) -> None:
    f.enqueue(1, 2)
    f.claim(1)
    f.run(1)
    f.ends_well(2)
    f.settle(1)
    f.row(1)
    f.flow(1, 2, finaliser=2)


def workflow_ended_early(f: Forger) -> None:
    f.flow(1)
    f.happy(1)


def workflow_open(f: Forger) -> None:
    f.happy(1)
    f.flow(1, ended_at=None, outcome=None)


def wrong_outcome(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.settle(1, outcome="fail")
    f.row(1, state="failed")
    f.flow(1)


FORGERIES: list[tuple[Forgery, str, Mapping[str, Any]]] = [
    (child_before_parent, "child before parent", {}),
    (child_of_one_that_never_ended, "child before parent", {"drained": False}),
    (child_before_parent_and_once_more, "child before parent", {}),
    (child_that_was_put_back_before_its_new_parent, "child before parent", {}),
    (child_without_its_parents, "child without its parents", {}),
    (child_of_one_that_succeeded_later, "child without its parents", {}),
    (child_of_a_failure_that_was_none, "child without its parents", {}),
    (node_gone_on_in_silence, "unexplained run", {}),
    (node_resumed_by_nobody, "unexplained run", {}),
    (finaliser_not_called_back, "finaliser early", {}),
    (finaliser_early, "finaliser early", {}),
    (workflow_ended_early, "workflow ended early", {}),
    (workflow_open, "workflow open", {}),
    (wrong_outcome, "wrong outcome", {}),
]


@pytest.mark.parametrize(
    ("forgery", "name", "expected"), FORGERIES, ids=[forgery.__name__ for forgery, *_ in FORGERIES]
)
def test_a_forged_history_is_found_out(
    forgery: Forgery, name: str, expected: Mapping[str, Any]
) -> None:
    forger = Forger()
    forgery(forger)
    assert found(forger, **expected) == {name}


def a_workflow_in_order(f: Forger) -> None:
    f.enqueue(1, 2, 3)
    for id in (1, 2, 3):
        f.ends_well(id)
    f.flow(1, 2, 3, after=[(2, 1)], finaliser=3)


def one_parent_is_enough(f: Forger) -> None:
    f.enqueue(1, 2, 3)
    f.ends_well(1)
    f.ends_well(3)
    f.ends_well(2)
    f.flow(1, 2, after=[(3, 1), (3, 2)])
    f.final.workflows[0].nodes[3] = "any_succeeded"  # type: ignore[index]


def a_child_that_was_put_back_and_waits_for_a_new_parent(f: Forger) -> None:
    f.enqueue(2)
    f.claim(2)
    f.settle(2, outcome="release")
    f.event(2, 1, "released")
    f.enqueue(1)
    f.ends_well(1, created_at=f.now)
    f.claim(2, 2)
    f.run(2, 2)
    f.settle(2, 2)
    f.row(2, 2)
    f.final.parents.append((2, 1))


def a_child_that_an_operator_began_anew(f: Forger) -> None:
    f.enqueue(2)
    f.event(2, 1, "cancelled", None)
    f.replay(2, 2)
    f.claim(2, 2)
    f.run(2, 2)
    f.settle(2, 2)
    f.row(2, 2)
    f.happy(1)
    f.final.parents.append((2, 1))


def a_parent_that_an_operator_began_anew(f: Forger) -> None:
    f.enqueue(1, 2)
    f.claim(1)
    f.run(1)
    f.settle(1)
    f.event(1, 1, "succeeded")
    f.replay(1, 2)
    f.ends_well(2)
    f.claim(1, 2)
    f.run(1, 2)
    f.settle(1, 2)
    f.row(1, 2)
    f.final.parents.append((2, 1))


def a_workflow_that_an_operator_opened_again(f: Forger) -> None:
    """Node 1 has failed, the finaliser 2 has run; both wait again, under a token of their own, and
    a node that 1 adds, 3, comes before the finaliser."""
    f.enqueue(1, 2)
    f.claim(1)
    f.run(1)
    f.settle(1, outcome="fail")
    f.event(1, 1, "failed")
    f.claim(2, 2)
    f.run(2, 2)
    f.settle(2, 2)
    f.event(2, 2, "succeeded")
    f.replay(1, 2)
    f.replay(2, 3)
    f.claim(1, 3)
    f.run(1, 3)
    f.enqueue(3)
    f.settle(1, 3)
    f.row(1, 3)
    begun = f.now
    f.ends_well(3, created_at=begun)
    f.claim(2, 4)
    f.run(2, 4)
    f.settle(2, 4)
    f.row(2, 4)
    f.flow(1, 2, 3, after=[(2, 1), (2, 3)], finaliser=2)
    f.final.workflows[0].nodes[2] = "all_finished"  # type: ignore[index]


def a_node_that_somebody_resumed_and_did_not_live_to_tell(f: Forger) -> None:
    f.enqueue(1)
    f.operate("resume_workflow", said=None)
    f.claim(1, 2)
    f.run(1, 2)
    f.settle(1, 2)
    f.row(1, 2)
    f.flow(1)


@pytest.mark.parametrize(
    "story",
    [
        a_workflow_in_order,
        one_parent_is_enough,
        a_child_that_was_put_back_and_waits_for_a_new_parent,
        a_child_that_an_operator_began_anew,
        a_parent_that_an_operator_began_anew,
        a_workflow_that_an_operator_opened_again,
        a_node_that_somebody_resumed_and_did_not_live_to_tell,
    ],
)
def test_a_true_story_passes(story: Forgery) -> None:
    forger = Forger()
    story(forger)
    assert found(forger) == set()
