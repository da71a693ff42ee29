"""An enqueue that replaces a waiting job, and whose COMMIT gets no answer."""

from __future__ import annotations

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, Replace, State, Unique
from tenure.store import Store
from tests.support.proxy import Proxy
from tests.support.stores import Clock
from tests.support.work import add, job


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
    assert (answer.id, answer.created, answer.replaced) == (waiting, False, True)
    assert isinstance(answer, Enqueued)
    seen = near.get(waiting)
    assert (seen.state, seen.token, seen.args_json) == (State.SCHEDULED, 2, "2")
    kinds = [event.kind for event in near.timeline(waiting)]
    assert kinds == ["enqueued", "replaced"]
