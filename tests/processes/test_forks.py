"""A store that was used before a fork works in both processes, and they share no connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.processes import roles
from tests.processes.crew import Crew, Voice
from tests.support.audit import audit
from tests.support.plain import Plain


@pytest.mark.parametrize("role", [roles.fork_family, roles.fork_with_an_event_loop])
def test_parent_and_child_of_a_fork_lose_nothing(
    url: str, crew: Crew, role: Callable[[Voice, str], None]
) -> None:
    member = crew.start(role, url)
    crew.join()

    assert member.said("end") == [None]
    enqueued = sorted(member.said("enqueued"))
    assert len(enqueued) in (120, 15)
    with Plain(url) as plain:
        stored = sorted(row[0] for row in plain.rows("select id from tenure.jobs"))
        assert stored == enqueued
        finished = sorted(row[0] for row in plain.rows("select id from tenure.history"))
    assert finished == sorted(id for block in member.said("landed") for id in block)
    audit(url)
