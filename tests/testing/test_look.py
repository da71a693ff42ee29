"""What stands in line, and what a failed assertion says of it."""

from __future__ import annotations

from datetime import date
from typing import Any, cast

import pytest

from tenure import Tenure
from tenure.errors import InvalidInput
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.testing import Clock, assert_enqueued, drain, enqueued
from tenure.testing.look import PAGE


@pytest.fixture
def send(app: Tenure) -> Any:
    @app.task(name="send")
    def send(to: str, on: date = date(2030, 1, 31), *, copies: int = 1) -> None: ...

    return send


def test_the_live_jobs_oldest_first(app: Tenure, send: Any, tenure_clock: Clock) -> None:
    @app.task(name="other", queue="low", priority=7)
    def other() -> None: ...

    send.enqueue("ada")
    other.options(delay_seconds=60, tenant="acme", key="k").enqueue()
    drain(app)
    send.enqueue("bob", copies=2)
    assert [job.task for job in enqueued(app)] == ["other", "send"]
    [mail] = enqueued(app, send)
    assert (mail.args, mail.state, mail.queue) == ({"to": "bob", "copies": 2}, "queued", "default")
    [job] = enqueued(app, "other")
    assert (job.queue, job.priority, job.tenant, job.key) == ("low", 7, "acme", "k")
    assert job.due_at is not None
    assert (job.due_at - tenure_clock.now).total_seconds() == 60
    assert job.job == app.get(job.id)


def test_a_page_is_not_the_end(local: Tenure) -> None:
    @local.task(name="many")
    def many(number: int) -> None: ...

    local.enqueue_many([many.call(number) for number in range(PAGE + 1)])
    assert [job.args["number"] for job in enqueued(local)] == list(range(PAGE + 1))


def test_a_call_matches_whatever_stands_for_its_defaults(app: Tenure, send: Any) -> None:
    send.enqueue("ada")
    send.enqueue("bob", copies=2)
    assert [job.id for job in assert_enqueued(app, send.call("ada"))] == [1]
    assert_enqueued(app, send.call("ada", date(2030, 1, 31), copies=1), times=1)
    assert_enqueued(app, send.call("bob", copies=2), queue="default")
    assert_enqueued(app, send.call("bob"), times=0)
    assert len(assert_enqueued(app, send, times=2)) == 2
    assert_enqueued(app, "send", args={"copies": 2}, times=1)
    assert_enqueued(app, send, args={"to": "nobody"}, times=0)


def test_arguments_are_compared_as_json(app: Tenure, send: Any) -> None:
    send.enqueue("ada", date(2030, 2, 1))
    assert_enqueued(app, send, args={"on": date(2030, 2, 1)})
    assert_enqueued(app, send, args={"on": "2030-02-01"})
    assert_enqueued(app, send.call("ada", date(2030, 2, 1)))
    assert_enqueued(app, send, args={"on": date(2030, 2, 2)}, times=0)


def test_options_narrow_it_down(app: Tenure, send: Any) -> None:
    send.options(queue="mail", key="welcome:1", tenant="acme").enqueue("ada")
    assert_enqueued(app, send, queue="mail", key="welcome:1", tenant="acme")
    for wrong in ({"queue": "default"}, {"key": "welcome:2"}, {"tenant": "other"}):
        with pytest.raises(AssertionError, match=next(iter(wrong))):
            assert_enqueued(app, send, **cast(Any, wrong))


def test_an_error_shows_what_is_there(app: Tenure, send: Any) -> None:
    send.enqueue("ada")
    drain(app)
    send.options(key="k", delay_seconds=60, tenant="acme").enqueue("bob")
    with pytest.raises(AssertionError) as failed:
        assert_enqueued(app, send.call("eve"), queue="mail")
    assert str(failed.value).replace('": "', '":"') == (
        '0 live jobs match, at least 1 was expected: send with {"to":"eve"}, queue \'mail\'\n'
        "live jobs:\n"
        "  2: send with {\"to\":\"bob\"}, scheduled, queue 'default', key 'k', tenant 'acme', "
        "due 2030-01-01 12:01:00\n"
        "finished jobs:\n"
        '  1: send with {"to":"ada"}, succeeded, queue \'default\''
    )
    with pytest.raises(AssertionError, match="1 live jobs match, 3 were expected: send with"):
        assert_enqueued(app, send, args={"to": "bob"}, times=3)


def test_an_error_about_many_jobs_stays_short(local: Tenure) -> None:
    @local.task(name="many")
    def many(number: int) -> None: ...

    with pytest.raises(AssertionError, match="live jobs: none\nfinished jobs: none"):
        assert_enqueued(local, many)
    local.enqueue_many([many.call(number) for number in range(30)])
    with pytest.raises(AssertionError, match=r"\n  \.\.\. and 10 more\n"):
        assert_enqueued(local, many.call(99))


def test_what_other_code_has_enqueued_does_not_match(app: Tenure, send: Any) -> None:
    app.store.enqueue([NewJob(task="send", args=encode({"other": 1}))])
    assert_enqueued(app, send.call("ada"), times=0)
    assert_enqueued(app, send, args={"other": 1})


def test_only_tasks_names_and_calls_are_asked_for(local: Tenure) -> None:
    @local.task(name="send")
    def send() -> None: ...

    with pytest.raises(InvalidInput, match=r"give a task, its name, or task\.call"):
        assert_enqueued(local, cast(Any, send.options(queue="x")))


def test_a_tenants_application_sees_its_own(url: str) -> None:
    with Tenure(url) as whole, Tenure(url, tenant="acme") as ours:
        whole.migrate()

        @whole.task(name="send")
        def send() -> None: ...

        send.options(tenant="acme").enqueue()
        send.options(tenant="other").enqueue()
        assert_enqueued(ours, "send", times=1)
        assert_enqueued(whole, "send", times=2)
