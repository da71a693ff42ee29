"""The reference names what users touch: options, settings, commands, members, hooks, log lines."""

from __future__ import annotations

import ast
import inspect
import re
import signal
from enum import Enum
from pathlib import Path
from types import FunctionType

import click
import msgspec
import pytest

import tenure
from scripts.make_reference import HIDDEN, public_members
from tenure import JobEvent, Tenure, control, testing
from tenure.cli import exit as endings
from tenure.cli.main import cli
from tenure.rules.job import FINAL_STATES
from tenure.rules.lifecycle import Outcome, after_settlement
from tenure.tasks import CallOptions, TaskOptions, TaskSet, TaskWithOptions
from tenure.worker import events as telling
from tenure.worker.running.attempt import Attempt
from tenure.worker.settings import WorkerSettings
from tenure.worker.signals import STOP_SIGNALS
from tests.docs.pages import ROOT, Page, page
from tests.docs.test_reference import STANDING, held

API = page("docs/reference/api.md")
CLI = page("docs/reference/cli.md")
LOG = page("docs/reference/log-lines.md")
SETTINGS = page("docs/reference/settings.md")
SOURCES = sorted((ROOT / "src/tenure").rglob("*.py"))

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def headings(of: Page) -> list[str]:
    return [section.title for section in of.sections]


def test_every_public_name_has_its_heading() -> None:
    shown = headings(API)
    for name in [*tenure.__all__, *testing.__all__]:
        assert shown.count(name) == 1, name
    for name in tenure.__all__:
        assert f"<!-- made: api tenure.{name} -->" in API.section(name).text


@pytest.mark.parametrize("name", tenure.__all__)
def test_every_member_has_its_heading(name: str) -> None:
    """Those for async code stand with their twins."""
    kind = getattr(tenure, name)
    if not isinstance(kind, type) or issubclass(kind, msgspec.Struct | Enum):
        return
    members = {
        each for each in public_members(kind) - HIDDEN.get(name, set())
        if isinstance(inspect.getattr_static(kind, each), property | FunctionType)
    }  # fmt: skip
    alone = {each for each in members if each.removesuffix("_async") not in members - {each}}
    shown = [title for title in headings(API) if title.startswith(f"{name}.")]
    assert sorted(shown) == sorted(f"{name}.{each}" for each in alone)
    text = (ROOT / API.name).read_text("utf-8")
    for twin in members - alone:
        how = "async for each in" if twin == "feed_async" else "await"
        assert f"\n{how} {twin}(" in text


def test_what_is_hidden_is_there_to_be_hidden() -> None:
    for name, hidden in HIDDEN.items():
        assert hidden <= public_members(getattr(tenure, name))


def test_the_application_takes_the_arguments_shown() -> None:
    text = API.section("Tenure").text
    parameters = inspect.signature(Tenure).parameters.values()
    assert f"`Tenure({', '.join(f'{p.name}={p.default!r}' for p in parameters)})`" in text


def test_every_command_has_its_heading() -> None:
    """Click's own list is the measure, not the one of the page's maker."""
    paths = ["tenure"]
    groups: list[tuple[str, click.Group]] = [("tenure", cli)]
    for path, group in groups:
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            paths.append(f"{path} {name}")
            if isinstance(command, click.Group):
                groups.append((f"{path} {name}", command))
    assert sorted(title for title in headings(CLI) if title.startswith("tenure")) == sorted(paths)


def test_every_exit_code_has_its_row() -> None:
    codes = {value for name, value in vars(endings).items() if name.isupper()}
    assert {int(row[0]) for row in CLI.section("Exit codes").rows} == {0, *codes}


@pytest.mark.parametrize(
    ("title", "maker", "heading", "struct"),
    [
        ("Task options", "task", "task({}=)", TaskOptions),
        ("Call options", "call", "options({}=)", CallOptions),
        ("Worker settings", "worker", "{}", WorkerSettings),
    ],
)
def test_every_setting_has_its_heading(
    title: str, maker: str, heading: str, struct: type[msgspec.Struct]
) -> None:
    """In the order of the code, with type and default made from it, and a sentence by hand."""
    sections = SETTINGS.under(title)
    assert [section.title for section in sections] == list(map(heading.format, fields(struct)))
    for section, name in zip(sections, fields(struct), strict=True):
        assert f"<!-- made: {maker} {name} -->" in section.text
        assert section.text.rpartition("<!-- end -->")[2].strip().endswith("."), section.title


def test_a_task_takes_the_options_shown() -> None:
    named = inspect.signature(TaskSet.task).parameters.values()
    keywords = {each.name for each in named if each.kind is each.KEYWORD_ONLY}
    assert keywords == {*fields(TaskOptions), "name"}


def test_headings_of_settings_and_errors_can_be_linked_to() -> None:
    """No two of one page have the same anchor."""
    for each in sorted((ROOT / "docs/reference").glob("*.md")):
        titles = headings(Page(each))
        assert len(titles) == len(Page(each).anchors), each.name


def fields(struct: type[msgspec.Struct]) -> list[str]:
    return list(struct.__struct_fields__)


def test_a_task_with_options_has_the_three_that_the_reference_promises() -> None:
    assert public_members(TaskWithOptions) == {"call", "enqueue", "enqueue_async"}


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
    rows = API.section("Ends of a handler").rows
    assert {row[0].strip("`"): row[2] for row in rows} == charged


def test_every_signal_has_its_row() -> None:
    shown = set(re.findall(r"`(SIG\w+)`", API.section("Signals").text))
    assert shown == {each.name for each in STOP_SIGNALS} | {signal.SIGUSR1.name}


def test_every_hook_has_its_row() -> None:
    registering = {name for name, each in vars(Tenure).items() if _takes(each, "hook")}
    assert set(API.section("Hooks").names) == registering


def _takes(function: object, parameter: str) -> bool:
    return inspect.isfunction(function) and parameter in inspect.signature(function).parameters


def test_every_event_of_a_job_has_its_row_and_every_field_is_named() -> None:
    told = {
        ast.literal_eval(call.args[0]) for _, call in calls_of("event")
        if call.args and isinstance(call.args[0], ast.Constant)
    }  # fmt: skip
    kinds = told | set(telling._REQUEUED.values()) | set(map(str, FINAL_STATES))
    shown = API.section("JobEvent").names
    assert shown == [*fields(JobEvent), *(name for name in shown if name in kinds)]
    assert kinds <= set(shown)
    assert set(telling._REQUEUED) <= set(Outcome)


def test_every_line_of_the_log_has_its_row_with_its_level() -> None:
    written = {(_level(call.args[0]), _text(call.args[2])) for _, call in calls_of("say")}
    for name, call in calls_of(*LEVELS):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "log":
            written.add(("error" if name == "exception" else name, _text(call.args[0])))
    shown = {(row[0], row[1].strip("`")) for row in LOG.section("Log lines").rows}
    assert shown == written


def test_every_logger_is_named() -> None:
    used = {
        each for path in SOURCES
        for each in re.findall(r'getLogger\("(.+?)"\)', path.read_text("utf-8"))
    }  # fmt: skip
    text = LOG.section("Log lines").text
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
    return re.sub("…+", "…", text).replace("\n…", "")  # a stack below the line
