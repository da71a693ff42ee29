"""The reference names what users touch: options, settings, operations, hooks, events, log lines."""

from __future__ import annotations

import ast
import inspect
import re
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import Handle, JobEvent, Running, Task, Tenure, Worker, control
from tenure.job import FINAL_STATES
from tenure.lifecycle import Outcome, after_settlement
from tenure.tasks import CallOptions, TaskOptions, TaskSet, TunedTask
from tenure.worker import telling
from tenure.worker.attempt import Attempt
from tenure.worker.settings import WorkerSettings, _cpus
from tenure.worker.worker import STOP_SIGNALS
from tests.docs.pages import ROOT, page
from tests.docs.test_reference import STANDING, held

REFERENCE = page("docs/reference.md")
SOURCES = sorted((ROOT / "src/tenure").rglob("*.py"))

# Public because other modules of the package need them, and of no use to users.
INTERNAL = {
    Tenure: {"close_loop", "in_use_by_worker", "is_local", "whole_store", "whole_async_store"},
    Task: {"bind", "check", "decode_args", "result_type", "wants_running"},
}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def names(title: str) -> list[str]:
    return REFERENCE.section(title).names


def members(kind: type[Any]) -> set[str]:
    """The public members of a class of ours and of its bases of ours."""
    found = {
        name for base in kind.__mro__ if base.__module__.startswith("tenure") for name in vars(base)
        if not name.startswith("_")
    }  # fmt: skip
    return found - INTERNAL.get(kind, set())


def test_every_member_of_the_application_has_its_row_and_its_colours() -> None:
    rows = REFERENCE.section("Application").rows
    shown = {row[0].strip("`"): row[1] if row[1] == "both" else "" for row in rows}
    public = members(Tenure)
    twins = {name.removesuffix("_async") for name in public if name.endswith("_async")}
    assert twins <= public
    assert shown == {
        name: "both" if name in twins else "" for name in public if not name.endswith("_async")
    }


def test_the_application_takes_the_arguments_shown() -> None:
    text = REFERENCE.section("Application").text
    parameters = inspect.signature(Tenure).parameters.values()
    assert f"`Tenure({', '.join(f'{p.name}={p.default!r}' for p in parameters)})`" in text


def test_every_option_of_a_task_has_its_row_with_its_default() -> None:
    shown = {row[0].strip("`"): row[1] for row in REFERENCE.section("Task options").rows}
    assert shown == {name: as_shown(TaskOptions, name) for name in fields(TaskOptions)}
    named = inspect.signature(TaskSet.task).parameters.values()
    assert {each.name for each in named if each.kind is each.KEYWORD_ONLY} == {*shown, "name"}


def test_every_option_of_a_call_has_its_row() -> None:
    assert names("Call options") == fields(CallOptions)


def test_every_setting_of_a_worker_has_its_row_with_its_default() -> None:
    shown = {row[0].strip("`"): row[1] for row in REFERENCE.section("Worker settings").rows}
    assert shown == {name: as_shown(WorkerSettings, name) for name in fields(WorkerSettings)}


def fields(struct: type[msgspec.Struct]) -> list[str]:
    return list(struct.__struct_fields__)


def as_shown(struct: type[msgspec.Struct], name: str) -> str:
    """The default of a field, as the reference writes it."""
    default = getattr(struct(), name)
    number = struct.__struct_fields__.index(name) - len(fields(struct))
    factory = struct.__struct_defaults__[number]
    if getattr(factory, "factory", None) is _cpus:
        return "the number of CPUs"
    if default is None:
        return "none"
    if isinstance(default, tuple):
        inside = ", ".join(kind.__name__ for kind in default)
        return f"`({inside},)`" if inside else "`()`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default!r}`".replace("'", '"')


@pytest.mark.parametrize(
    ("title", "kind", "more"),
    [
        ("Task", Task, {"name", "fn", "kind"}),
        ("Handle", Handle, set()),
        ("Running", Running, {"worker"}),
        ("Worker", Worker, set()),
    ],
    ids=["Task", "Handle", "Running", "Worker"],
)
def test_every_member_has_its_row(title: str, kind: type[Any], more: set[str]) -> None:
    section = REFERENCE.section(title)
    assert sorted(section.names) == sorted(members(kind) | more)
    assert all(row[1].endswith(".") for row in section.rows)


def test_a_task_with_options_has_the_three_that_the_reference_promises() -> None:
    assert members(TunedTask) == {"call", "enqueue", "enqueue_async"}


def test_every_answer_of_a_handler_has_its_row_and_is_charged_as_shown() -> None:
    answers = [control.Retry(), control.Snooze(1.0), control.Skip(), control.Cancel()]
    assert {type(answer) for answer in answers} == set(control.Control.__subclasses__())
    charged = {}
    for answer in answers:
        settlement = Attempt(held(), TaskOptions(), lambda: 0.5).raised(answer, 1.0)
        assert settlement is not None
        charged[type(answer).__name__] = (
            "yes" if after_settlement(STANDING, settlement).charged else "no"
        )
    rows = REFERENCE.section("Answers of a handler").rows
    assert {row[0].strip("`"): row[2] for row in rows} == charged


def test_every_signal_has_its_row() -> None:
    shown = set(re.findall(r"`(SIG\w+)`", REFERENCE.section("Signals").text))
    assert shown == {each.name for each in STOP_SIGNALS} | {signal.SIGUSR1.name}


def test_every_hook_has_its_row() -> None:
    registering = {name for name, each in vars(Tenure).items() if _takes(each, "hook")}
    assert set(names("Hooks")) == registering


def _takes(function: object, parameter: str) -> bool:
    return inspect.isfunction(function) and parameter in inspect.signature(function).parameters


def test_every_event_of_a_job_has_its_row_and_every_field_is_named() -> None:
    told = {
        ast.literal_eval(call.args[0]) for _, call in calls_of("event")
        if isinstance(call.args[0], ast.Constant)
    }  # fmt: skip
    kinds = told | set(telling._REQUEUED.values()) | set(map(str, FINAL_STATES))
    section = REFERENCE.section("Job events")
    assert set(section.names) == kinds
    assert set(telling._REQUEUED) <= set(Outcome)
    assert all(f"`{field}`" in section.text for field in fields(JobEvent))


def test_every_line_of_the_log_has_its_row_with_its_level() -> None:
    written = {(_level(call.args[0]), _text(call.args[2])) for _, call in calls_of("say")}
    for name, call in calls_of(*LEVELS):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "log":
            written.add(("error" if name == "exception" else name, _text(call.args[0])))
    shown = {(row[0], row[1].strip("`")) for row in REFERENCE.section("Log lines").rows}
    assert shown == written


def test_every_logger_is_named() -> None:
    used = {
        each for path in SOURCES
        for each in re.findall(r'getLogger\("(.+?)"\)', path.read_text("utf-8"))
    }  # fmt: skip
    text = REFERENCE.section("Log lines").text
    assert set(re.findall(r"`(tenure\.\w+)`", text)) == used


def calls_of(*functions: str) -> list[tuple[str, ast.Call]]:
    """Calls of methods with these names, anywhere in the package."""
    return [
        (call.func.attr, call)
        for path in SOURCES
        for call in ast.walk(_tree(path))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        and call.func.attr in functions
    ]  # fmt: skip


def _tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text("utf-8"))


def _level(node: ast.expr) -> str:
    """`logging.ERROR` -> error; a level that depends on the outcome -> by kind."""
    return node.attr.lower() if isinstance(node, ast.Attribute) else "by kind"


def _text(node: ast.expr) -> str:
    """The text of a line, with … for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else "…" for each in node.values]
        text = "".join(map(str, parts))
    else:
        text = re.sub(r"%[-.\d]*[sdgf]", "…", ast.literal_eval(node))
    return re.sub("…+", "…", text)
