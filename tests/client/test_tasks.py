"""Tasks: what can be one, under which name, and in which application."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tenure import Running, TaskSet, Tenure
from tenure.errors import InvalidInput
from tests.support.working import working

# --- what can be a task -------------------------------------------------------------------------


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class Callable:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (functools.partial(print), "a task must be a function, not functools.partial"),
        (Callable, "a task must be a function"),
        (Callable(), "a task must be a function"),
        (5, "a task must be a function, not 5"),
        (generator, "generator is a generator"),
        (async_generator, "return a list, or enqueue a job for each item"),
    ],
)
def test_a_task_is_a_function(local: Tenure, thing: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        local.task()(thing)
    assert list(local) == []


def test_a_lambda_needs_a_name(local: Tenure) -> None:
    with pytest.raises(InvalidInput, match="a lambda has no name: write task"):
        local.task()(lambda: None)
    assert local.task(name="shop.send")(lambda: None).name == "shop.send"


def test_a_task_of_a_task_is_refused(local: Tenure) -> None:
    @local.task()
    def work() -> None: ...

    with pytest.raises(InvalidInput, match="a task must be a function, not <Task"):
        local.task()(work)  # type: ignore[call-overload]


def test_the_decorator_needs_its_parentheses(local: Tenure) -> None:
    with pytest.raises(InvalidInput, match=r"write @app.task\(\) with parentheses"):

        @local.task  # type: ignore[arg-type]
        def work() -> None: ...


def test_calling_a_task_says_what_to_do_instead(local: Tenure) -> None:
    @local.task(name="work")
    def work() -> int:
        return 7

    with pytest.raises(TypeError, match=r"use .enqueue\(...\) .* or .fn\(...\)"):
        work()  # type: ignore[operator]
    assert work.fn() == 7


def not_importable(x: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821


def callback(x: Any, then: dict[bytes, Running]) -> None: ...


def second(x: int, job: Running) -> None: ...


def optional(job: Running | None, x: int) -> None: ...


def keyword(*, job: Running) -> None: ...


def both_ways(x: bytes | str) -> None: ...


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (not_importable, "name 'Nowhere' is not defined; .* not only under TYPE_CHECKING"),
        (callback, "parameter 'then' of .* cannot receive the running job"),
        (second, "parameter 'job' of .* make it the first one, and annotate it Running"),
        (optional, "parameter 'job'"),
        (keyword, "parameter 'job'"),
        (both_ways, "parameter 'x' of .* has no JSON form"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_an_error_before_anything_runs(
    local: Tenure, fn: Any, message: str
) -> None:
    task = local.task()(fn)
    with pytest.raises(InvalidInput, match=message):
        task.enqueue(1)
    with pytest.raises(InvalidInput, match=message), working(local):
        pass  # a worker does not even start
    assert local.list_jobs().jobs == ()


def test_annotations_may_name_what_is_defined_further_down(local: Tenure) -> None:
    task = local.task()(ahead)
    assert local.get(task.enqueue(Later(5)).id).args_json == '{"x":{"n":5}}'


def ahead(x: Later) -> None: ...


@dataclass
class Later:
    n: int


# --- names --------------------------------------------------------------------------------------


def test_the_name_is_module_and_function(local: Tenure) -> None:
    @local.task()
    def nested() -> None: ...

    assert local.task()(second).name == "tests.client.test_tasks.second"
    assert nested.name == (
        "tests.client.test_tasks.test_the_name_is_module_and_function.<locals>.nested"
    )
    assert local.get(nested.enqueue().id).task == nested.name


def test_a_second_task_of_the_same_name_is_refused(local: Tenure) -> None:
    @local.task(name="send")
    def first() -> None: ...

    with pytest.raises(
        InvalidInput, match="two tasks are named send; give one of them another name="
    ):

        @local.task(name="send")
        def second() -> None: ...

    assert local.find("send") is first
    others = TaskSet()

    @others.task(name="send")
    def third() -> None: ...

    with pytest.raises(InvalidInput, match="two tasks are named send"):
        local.include(others)


SCRIPT = """
import multiprocessing
import sys
from tenure import TaskSet

tasks = TaskSet()

@tasks.task()
def top() -> None: ...

def make():
    @tasks.task()
    def nested() -> None: ...

def names():
    print(__name__, *sorted(task.name for task in tasks), flush=True)

make()
if __name__ == "__main__":
    names()
    child = multiprocessing.get_context("spawn").Process(target=names)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def names_of(command: list[str], folder: Path, stdin: str | None = None) -> list[str]:
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=folder, input=stdin, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_script_is_called_by_its_file_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    assert names_of(["shop.py"], tmp_path) == [
        "__main__ shop.make.<locals>.nested shop.top",
        "__mp_main__ shop.make.<locals>.nested shop.top",
    ]


def test_a_module_has_the_same_name_whether_it_is_imported_or_run(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(SCRIPT)
    expected = "shop.jobs.make.<locals>.nested shop.jobs.top"
    assert names_of(["-m", "shop.jobs"], tmp_path) == [
        f"__main__ {expected}",
        f"__mp_main__ {expected}",
    ]
    imported = names_of(["-c", "import shop.jobs; shop.jobs.names()"], tmp_path)
    assert imported == [f"shop.jobs {expected}"]


def test_what_is_typed_in_is_called_main(tmp_path: Path) -> None:
    typed = SCRIPT.partition("if __name__")[0] + "names()"
    assert names_of(["-"], tmp_path, typed) == ["__main__ main.make.<locals>.nested main.top"]
    assert names_of(["-c", typed], tmp_path) == ["__main__ main.make.<locals>.nested main.top"]


# --- applications -------------------------------------------------------------------------------


def test_two_applications_in_one_process(tmp_path: Path) -> None:
    with (
        Tenure(f"sqlite:///{tmp_path / 'shop.db'}") as shop,
        Tenure(f"sqlite:///{tmp_path / 'blog.db'}") as blog,
    ):

        @shop.task(name="work")
        def sell() -> str:
            return "sold"

        @blog.task(name="work")
        def publish() -> str:
            return "published"

        sold, published = sell.enqueue(), publish.enqueue()
        with working(shop), working(blog):
            assert sold.wait(timeout_seconds=30) == "sold"
            assert published.wait(timeout_seconds=30) == "published"
        assert len(shop.list_jobs().jobs) == len(blog.list_jobs().jobs) == 1


def test_a_task_without_an_application_cannot_be_enqueued(local: Tenure) -> None:
    tasks = TaskSet()

    @tasks.task(name="send")
    def send(to: str) -> None: ...

    with pytest.raises(InvalidInput, match=r"send belongs to no application; use app.include"):
        send.enqueue("ada")
    local.include(tasks)
    local.include(tasks)  # twice is once
    assert local.get(send.enqueue("ada").id).task == "send"


def test_a_task_of_two_applications_is_enqueued_by_naming_one(tmp_path: Path) -> None:
    tasks = TaskSet()

    @tasks.task(name="send")
    def send(to: str) -> str:
        return to

    with (
        Tenure(f"sqlite:///{tmp_path / 'a.db'}") as first,
        Tenure(f"sqlite:///{tmp_path / 'b.db'}") as second,
    ):
        first.include(tasks)
        second.include(tasks)
        with pytest.raises(InvalidInput, match="send belongs to several applications"):
            send.enqueue("ada")
        [handle] = second.enqueue_many([send.call("ada")])
        assert first.list_jobs().jobs == ()
        with working(second):
            assert handle.wait(timeout_seconds=30) == "ada"


@pytest.mark.parametrize("thing", [sys, [], None])
def test_include_takes_a_set_of_tasks(local: Tenure, thing: Any) -> None:
    with pytest.raises(InvalidInput, match="include takes a TaskSet"):
        local.include(thing)


def test_an_application_without_tasks_is_true() -> None:
    assert bool(Tenure("sqlite:///unused.db"))
