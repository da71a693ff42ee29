"""An enqueue that replaces a waiting job, and whose COMMIT gets no answer."""

from __future__ import annotations

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, Replace, State, Unique
from tenure.rules.lifecycle import succeed
from tenure.store import Store
from tests.faults.test_unanswered import ENQUEUE, meanwhile
from tests.support.proxy import Proxy
from tests.support.stores import Clock
from tests.support.work import add, job, settle, take, take_one


@pytest.mark.parametrize("landed", [True, False])
def test_a_waiting_job_is_replaced_once_and_the_answer_says_so(
    far: Store, near: Store, proxy: Proxy, clock: Clock, landed: bool
) -> None:
    waiting = add(near, clock.now, args=encode(1), unique=Unique(key="a"))
    far.paused_queues()
    cut = proxy.cut_commit("tenure.unique_key", landed=landed)
    unique = Unique(key="a", on_conflict=Replace(postpone=True))
    answers = far.enqueue([job(args=encode(2), unique=unique, delay_seconds=5)], now=clock.now)
    assert cut.done
    [answer] = answers
    assert answer == Enqueued(waiting, created=False, replaced=True)
    seen = near.get(waiting)
    assert (seen.state, seen.token, seen.args_json) == (State.SCHEDULED, 2, "2")
    kinds = [event.kind for event in near.timeline(waiting)]
    assert kinds == ["enqueued", "replaced"]


def test_a_replaced_job_that_ends_before_the_repeat_does_not_run_again(
    far: Store, near: Store, proxy: Proxy, clock: Clock
) -> None:
    """Seen failing when the repeat took the key that the job had given back."""
    waiting = add(near, clock.now, args=encode(1), unique=Unique(key="a"))
    far.paused_queues()
    cut = proxy.cut_commit("tenure.unique_key", landed=True)
    unique = Unique(key="a", on_conflict=Replace())

    def work() -> None:
        claimed = take_one(near, clock.now)
        assert claimed.args == "2"
        settle(near, clock.now, succeed(claimed))

    again = [job(args=encode(2), unique=unique)]
    [answer] = meanwhile(proxy, cut, lambda: far.enqueue(again, now=clock.now), work)
    assert answer == Enqueued(waiting, created=False, replaced=True)
    assert take(near, clock.now) == []


def test_an_enqueue_whose_job_was_replaced_before_the_repeat_is_answered_with_its_job(
    far: Store, near: Store, proxy: Proxy, clock: Clock
) -> None:
    """Seen failing when the new arguments counted as those of another job with the same id."""
    far.paused_queues()
    cut = proxy.cut_commit(ENQUEUE, landed=True)
    unique = Unique(key="a", on_conflict=Replace())

    def replace() -> None:
        [replaced] = near.enqueue([job(args=encode(2), unique=unique)], now=clock.now)
        assert replaced.replaced

    first = [job(args=encode(1), unique=unique)]
    [answer] = meanwhile(proxy, cut, lambda: far.enqueue(first, now=clock.now), replace)
    assert answer == Enqueued(answer.id)
    assert [found.args_json for found in near.list_jobs().jobs] == ["2"]
