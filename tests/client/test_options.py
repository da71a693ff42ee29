"""Options: of a task, of a call; checked, resolved at enqueue, and stored with the job."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tenure import Exponential, Fixed, Handle, Tenure, Unique, Until
from tenure.errors import InvalidInput, InvalidName, JobNotFound, OutOfRange, PayloadInvalid
from tenure.rules.retry import load_policy
from tenure.tasks import CallOptions, Task, TaskOptions, _CallOptions
from tests.support.working import working


def test_an_unknown_option_of_a_call_is_an_error_that_lists_the_known_ones(local: Tenure) -> None:
    @local.task()
    def work() -> None: ...

    with pytest.raises(InvalidInput) as refusal:
        work.options(dely_seconds=3)  # type: ignore[call-arg]
    assert "dely_seconds" in str(refusal.value)
    for option in CallOptions.__struct_fields__:
        assert option in str(refusal.value)


def test_an_unknown_option_of_a_task_is_an_error_that_lists_the_known_ones(local: Tenure) -> None:
    with pytest.raises(InvalidInput, match="a task has no option 'retries'") as refusal:
        local.task(retries=3)  # type: ignore[arg-type]
    for option in ("name", *TaskOptions.__struct_fields__):
        assert option in str(refusal.value)


def test_type_checkers_know_the_same_options_as_the_code() -> None:
    assert set(CallOptions.__struct_fields__) == set(_CallOptions.__annotations__)


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"delay_seconds": "5"}, OutOfRange, "delay_seconds must be a number of seconds, not '5'"),
    ({"delay_seconds": float("nan")}, OutOfRange, "delay_seconds"),
    ({"due_at": datetime(2026, 3, 1)}, OutOfRange, "due_at has no time zone"),  # noqa: DTZ001
    ({"due_at": datetime.now(UTC), "delay_seconds": 1}, InvalidInput, "not both"),
    ({"priority": 101}, OutOfRange, "from -100 to 100, not 101"),
    ({"priority": True}, OutOfRange, "not True"),
    ({"queue": "a b"}, InvalidName, "'a b' is not a valid name"),
    ({"queue": ""}, InvalidName, "queue"),
    ({"max_attempts": 0}, OutOfRange, "max_attempts"),
    ({"timeout_seconds": 0}, OutOfRange, "timeout_seconds"),
    ({"tenant": 5}, InvalidName, "tenant must be a string"),
    ({"key": ""}, InvalidName, "leave the key out"),
    ({"key": "a", "unique": Unique(key="b")}, InvalidInput, "key= or unique=, not both"),
    ({"unique": "a"}, InvalidInput, "give a string as key="),
    ({"metadata": 5}, InvalidInput, "metadata must be a mapping from names to values"),
    ({"metadata": {"a": object()}}, PayloadInvalid, r"metadata cannot be stored: \$.a"),
    ({"parents": 5}, InvalidInput, re.escape("parents=[5]")),
    ({"parents": "5"}, InvalidInput, "a list of handles or ids"),
    ({"parents": ["x"]}, OutOfRange, "a parent's id must be a whole number"),
    ({"parents": [404]}, JobNotFound, "parent 404 does not exist"),
    ({"on": "connection"}, InvalidInput, "on= takes what transaction"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_CALLS)
def test_a_bad_option_of_a_call_is_refused(
    local: Tenure, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    @local.task()
    def work() -> None: ...

    with pytest.raises(error, match=message):
        work.options(**cast(Any, options)).enqueue()
    assert local.list_jobs().jobs == ()


BAD_TASKS: list[tuple[dict[str, Any], str]] = [
    ({"queue": "a b"}, "queue 'a b' is not a valid name"),
    ({"priority": 1000}, "from -100 to 100"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"timeout_seconds": -1}, "timeout_seconds"),
    ({"retry": 3}, "to limit attempts, use max_attempts"),
    ({"retry_on": ValueError}, "retry_on must be a tuple of exception classes"),
    ({"fail_on": ["ValueError"]}, "fail_on must be a tuple of exception classes"),
    ({"fail_on": ("ValueError",)}, "fail_on must be a tuple of exception classes"),
    ({"isolation": "thread"}, 'isolation must be "none" or "process"'),
    ({"name": "a b"}, "task 'a b' is not a valid name"),
    ({"name": ""}, "task '' is not a valid name"),
]


@pytest.mark.parametrize(("options", "message"), BAD_TASKS)
def test_a_bad_option_of_a_task_is_refused_when_it_is_declared(
    local: Tenure, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):

        @local.task(**options)
        def work() -> None: ...

    assert list(local) == []


def test_on_belongs_to_the_whole_batch(local: Tenure) -> None:
    @local.task()
    def work() -> None: ...

    with sqlite3.connect(":memory:") as connection:
        tuned = work.options(on=connection)
    connection.close()
    with pytest.raises(InvalidInput, match="give on= to app"):
        tuned.call()


def test_options_are_resolved_at_enqueue_and_stored(app: Tenure) -> None:
    def declare(**options: Any) -> Task[[], None]:
        with Tenure(app.url) as producer:

            @producer.task(name="work", **options)
            def work() -> None: ...

            handle = work.enqueue()
        stored.append(handle)
        return work

    stored: list[Handle[None]] = []
    declare(queue="a", priority=3, max_attempts=7, timeout_seconds=9, retry=Fixed(60))
    declare()
    old, new = (app.get(handle.id) for handle in stored)
    assert (old.queue, old.priority, old.max_attempts, old.timeout_seconds) == ("a", 3, 7, 9)
    assert load_policy(old.retry_json) == Fixed(60)
    assert (new.queue, new.priority, new.max_attempts, new.timeout_seconds) == (
        "default", 0, 5, None,
    )  # fmt: skip
    assert load_policy(new.retry_json) == Exponential()


def test_a_job_keeps_its_own_number_of_attempts_and_back_off(app: Tenure) -> None:
    """Not those of the code that runs it, which may be newer."""
    with Tenure(app.url) as producer:

        @producer.task(name="work", max_attempts=2, retry=Fixed(0))
        def old() -> None: ...

        handle = old.enqueue()

    @app.task(name="work", max_attempts=9, retry=Fixed(3600))
    def new() -> None:
        raise ConnectionError

    with working(app):
        assert app.wait(handle.id, timeout_seconds=30).attempts == 2


def test_every_option_of_a_call_is_stored(app: Tenure) -> None:
    @app.task()
    def work() -> None: ...

    parent = work.enqueue()
    due = datetime.now(UTC) + timedelta(days=1)
    chosen: _CallOptions = {
        "queue": "q", "priority": -7, "due_at": due, "tenant": "", "max_attempts": 3,
        "timeout_seconds": 1.5, "metadata": {"a": [1]}, "parents": (parent.id,),
        "unique": Unique(key="k", scope="s", until=Until.PERIOD, period_seconds=60),
    }  # fmt: skip
    job = app.get(work.options(**chosen).enqueue().id)
    assert (job.queue, job.priority, job.due_at, job.tenant) == ("q", -7, due, "")
    assert (job.max_attempts, job.timeout_seconds, job.metadata_json) == (3, 1.5, '{"a":[1]}')
    assert (job.unique_scope, job.unique_key, job.unique_until) == ("s", "k", "period")
    assert job.unfinished_parents == 1


PARENTS: list[Callable[[Handle[None]], Any]] = [
    lambda handle: [handle],
    lambda handle: (handle.id,),
    lambda handle: {handle},
    lambda handle: (each for each in [handle, handle.id]),
]


@pytest.mark.parametrize("parents", PARENTS)
def test_parents_are_handles_or_ids_in_any_collection(
    local: Tenure, parents: Callable[[Handle[None]], Any]
) -> None:
    @local.task()
    def work() -> None: ...

    child = work.options(parents=parents(work.enqueue())).enqueue()
    assert local.get(child.id).unfinished_parents == 1
