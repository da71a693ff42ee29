"""Both colours offer the same: every operation exists as `x` and as `x_async`."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import Gate, Handle, Running, Schedules, Task, Tenure, Workflow, WorkflowRun
from tenure.tasks import TaskWithOptions
from tenure.workflow import Growth

# What does not touch the database, or belongs to one colour by its nature.
COLOURLESS = {
    "Tenure": {
        "add", "around", "async_store", "close_loop", "declared_hooks", "declared_schedules",
        "find", "handle", "listen_everywhere", "on_failed",
        "in_use_by_worker", "include", "is_local", "listen", "on_start", "on_stop", "on_trial",
        "run_worker", "schedule", "schedules", "store", "task", "tenant", "transaction",
        "transaction_async", "url", "use_url",
        "whole_async_store", "whole_store", "workflow", "workflow_run",
    },
    "Handle": {"created", "gone", "id", "replaced", "same_args"},
    "Running": {
        "attempt", "cancelled", "check", "crashes", "created_at", "id", "lost", "max_attempts",
        "metadata", "progress", "queue", "stopping", "task", "tenant", "token", "worker",
        "workflow",
    },
    "Task": {"bind", "call", "options", "signature", "stored_retry"},
    "TaskWithOptions": {"call"},
    "Schedules": set(),
    "Workflow": {"add"},
    "WorkflowRun": {"created", "id"},
    "Growth": {"add"},
}  # fmt: skip
KINDS: tuple[type, ...] = (
    Tenure, Handle, Running, Task, TaskWithOptions, Schedules, Workflow, WorkflowRun, Growth,
)  # fmt: skip


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


PAIRS = [
    (kind, name.removesuffix("_async"))
    for kind in KINDS
    for name in sorted(public(kind))
    if name.endswith("_async") and name not in COLOURLESS[kind.__name__]
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_exists_in_both_colours(kind: type) -> None:
    paired = public(kind) - COLOURLESS[kind.__name__]
    awaited = {name for name in paired if name.endswith("_async")}
    assert paired - awaited == {name.removesuffix("_async") for name in awaited}


@pytest.mark.parametrize(
    ("kind", "name"), PAIRS, ids=[f"{kind.__name__}.{name}" for kind, name in PAIRS]
)
def test_both_colours_take_the_same_and_promise_the_same(kind: type, name: str) -> None:
    blocking, awaited = getattr(kind, name), getattr(kind, f"{name}_async")
    taken = [list(inspect.signature(each).parameters.values())[1:] for each in (blocking, awaited)]
    assert taken[0] == taken[1]
    assert blocking.__doc__
    assert awaited.__doc__
    assert inspect.iscoroutinefunction(awaited) or inspect.isasyncgenfunction(awaited)
    assert not inspect.iscoroutinefunction(blocking)


@pytest.mark.parametrize("name", sorted(public(Tenure) - COLOURLESS["Tenure"]))
def test_options_of_operations_are_given_by_name(name: str) -> None:
    """At most an id, a name, the calls, a filter or two times by position; the rest by name."""
    parameters = list(inspect.signature(getattr(Tenure, name)).parameters.values())[1:]
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position in (
        [],
        ["id"],
        ["queue"],
        ["name"],
        ["name", "position"],
        ["calls"],
        ["filter"],
        ["since", "until"],
        ["task", "key"],
    )


ID, LATER = object(), datetime.now(UTC) + timedelta(days=1)
STEPS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("migrate", (), {}),
    ("about", (), {}),
    ("get", (ID,), {}),
    ("progress", (ID,), {}),
    ("steps", (ID,), {}),
    ("hold", (ID,), {"reason": "wait"}),
    ("unhold", (ID,), {}),
    ("move", (ID,), {"queue": "other", "due_at": LATER}),
    ("why", (ID,), {}),
    ("oldest_ready", (), {}),
    ("list_jobs", (), {"queue": "other"}),
    ("count_live", (), {}),
    ("cancel", (ID,), {"reason": "no"}),
    ("wait", (ID,), {"timeout_seconds": 5}),
    ("timeline", (ID,), {}),
    ("attempts", (ID,), {}),
    ("replay", (ID,), {}),
    ("cancel", (ID,), {}),
    ("count_finished", (LATER - timedelta(days=2), LATER), {}),
    ("sample_depth", (), {"force": True}),
    ("depth", (), {}),
    ("statistics", (LATER - timedelta(days=2), LATER), {}),
    ("delete", (ID,), {}),
    ("workers", (), {}),
    ("pause", ("other",), {}),
    ("paused_queues", (), {}),
    ("resume", ("other",), {}),
    ("prune", (), {}),
    ("set_gate", ("narrow",), {"max_running": 3}),
    ("gates", (), {"name": "narrow"}),
    ("gate_lines", ("narrow",), {}),
    ("workflows", (), {"open": True}),
    ("workflow_of", (ID,), {}),
    ("failure_hooks", (), {}),
    ("remove_hook", ("no.hook",), {}),
]


def test_both_colours_do_the_same(app: Tenure) -> None:
    """Each operation once in each colour, on two jobs in the same state, with equal answers."""

    @app.task()
    def work() -> None: ...

    @app.task(gate=Gate("narrow", max_running=1))
    def pass_through() -> None: ...

    async def both() -> None:
        async with app:
            [one] = app.enqueue_many([work.call()])
            [other] = await app.enqueue_many_async([work.call()])
            for name, args, options in STEPS:
                if name == "resume":
                    app.pause("other")  # the second would find it resumed already
                blocked = getattr(app, name)(*_about(one, args), **options)
                if name == "resume":
                    app.pause("other")
                awaited = await getattr(app, f"{name}_async")(*_about(other, args), **options)
                assert _alike(blocked) == _alike(awaited), name
            keyed = work.options(key="k").enqueue()
            found = [app.get_by_key(work, "k"), await app.get_by_key_async(work, "k")]
            assert [each.id for each in found] == [keyed.id] * 2
            app.cancel(keyed)
            assert not app.free_key(work, "k")
            assert not await app.free_key_async(work, "k")
            assert app.add_reader("r")
            assert not await app.add_reader_async("r")
            app.cancel(work.enqueue())
            pages = [app.read_feed("r"), await app.read_feed_async("r")]
            assert len(pages[0].ends) == 1
            assert pages[0] == pages[1]
            assert list(app.feed("r", follow=False)) == list(pages[0].ends)
            app.cancel(work.enqueue())
            assert len([end async for end in app.feed_async("r", follow=False)]) == 1
            app.move_reader("r", pages[0].position)
            await app.move_reader_async("r", pages[0].position)
            assert app.readers()[0].unread == (await app.readers_async())[0].unread == 0
            assert await app.remove_reader_async("r")
            assert not app.remove_reader("r")
            assert app.reset_gate("narrow")
            assert not await app.reset_gate_async("narrow")

    asyncio.run(both())
    tried = {
        "enqueue_many",
        "close",
        "reset_gate",
        "get_by_key",
        "free_key",
        "feed",
        "add_reader",
        "read_feed",
        "move_reader",
        "readers",
        "remove_reader",
        *(name for name, _, _ in STEPS),
    }
    assert tried == {name for kind, name in PAIRS if kind is Tenure}


def _about(handle: Handle[None], args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(handle.id if each is ID else each for each in args)


def _alike(answer: Any) -> Any:
    """An answer without what must differ between two jobs: ids and times."""
    if isinstance(answer, list | tuple):
        return [_alike(each) for each in answer]
    if hasattr(answer, "__struct_fields__"):
        return {
            name: _alike(getattr(answer, name))
            for name in answer.__struct_fields__
            if name not in ("id", "age_seconds", "took_seconds")
        }
    return None if isinstance(answer, datetime) else answer
