"""Fill in the parts of the reference that the code itself knows best.

python scripts/make_reference.py            writes them
python scripts/make_reference.py --check    says which pages are not as the code is now

A page is written by hand, around parts such as this one, which are replaced as a whole:

    <!-- made: worker lease_seconds -->

    what the maker called "worker" says about lease_seconds

    <!-- end -->
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
PART = re.compile(r"(<!-- made: (\w+) ?([\w. -]*) -->\n).*?(<!-- end -->)", re.DOTALL)

HIDDEN = {
    "Tenure": {
        "close_loop", "declared_hooks", "declared_schedules", "in_use_by_worker", "is_local",
        "on_trial", "whole_async_store", "whole_store",
    },
    "TaskSet": {"declared_hooks", "declared_schedules"},
    "Task": {"bind", "signature", "stored_retry"},
    "Transaction": {"check", "end"},
    "AsyncTransaction": {"check", "end", "lent"},
}  # fmt: skip
"""Public because other modules of the package need them, and of no use to users."""

SPOKEN_DEFAULTS = {"process_slots": "the number of CPUs"}


def command(path: str) -> Iterator[str]:
    """The help of a command, as a terminal of 80 columns shows it."""
    from tenure.cli.main import cli

    first, *names = path.split()
    context = click.Context(
        cli, info_name=first, terminal_width=80, max_content_width=80, **cli.context_settings
    )
    for name in names:
        assert isinstance(context.command, click.Group)
        sub = context.command.get_command(context, name)
        assert sub is not None, path
        context = click.Context(sub, parent=context, info_name=name)
    yield f"```text\n{context.get_help()}\n```"


def commands(_: str) -> Iterator[str]:
    """Every command under a heading of its own."""
    from tenure.cli.main import cli

    for path in paths_of(cli, "tenure"):
        yield f"## {path}"
        yield from command(path)


def paths_of(group: click.Command, path: str) -> Iterator[str]:
    """The commands below this one, in the order of its help."""
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            sub = group.get_command(context, name)
            assert sub is not None
            yield f"{path} {name}"
            yield from paths_of(sub, f"{path} {name}")


def worker(name: str) -> Iterator[str]:
    """Type and default of a worker's setting, and how the command line takes it."""
    from tenure.cli.worker import worker as of_cli
    from tenure.worker.settings import WorkerSettings

    line = _type_and_default(WorkerSettings, name)
    for option in of_cli.params:
        if option.name == name and isinstance(option, click.Option):
            variable = f"TENURE_WORKER_{name.upper()}"
            line += f" Command line: `{option.opts[-1]}`, or `{variable}` in the environment."
    yield line


def task(name: str) -> Iterator[str]:
    """Type and default of an option of a task."""
    from tenure.tasks import TaskOptions

    yield _type_and_default(TaskOptions, name)


def call(name: str) -> Iterator[str]:
    """The type of an option of a call."""
    from tenure import tasks

    kind = tasks._CallOptions.__annotations__[name]
    yield f"`{kind.__forward_arg__ if isinstance(kind, typing.ForwardRef) else _type_text(kind)}`."


def url(name: str) -> Iterator[str]:
    """For which store this option is."""
    from tenure.store import url as options

    assert name in options._SQLITE_OPTIONS | options._POSTGRES_OPTIONS, name
    yield f"For {'SQLite' if name in options._SQLITE_OPTIONS else 'PostgreSQL'}."


def error(name: str) -> Iterator[str]:
    """What an error means, what it is a kind of, and how the command line ends with it."""
    from tenure import errors
    from tenure.cli import exit as endings

    kind = getattr(errors, name, None) or getattr(endings, name)
    parents = " and ".join(f"`{base.__name__}`" for base in kind.__bases__)
    given: dict[str, Any] = {}
    if kind is errors.JobFailed:
        given = {"state": "failed", "error": None}
    elif kind is errors.WorkflowFailed:
        given = {"outcome": "failed"}
    code = endings.code_of(kind("", **given))
    yield f"{_doc(kind)} A kind of {parents}. Exit code of `tenure`: {code}."


def filters(_: str) -> Iterator[str]:
    """The filter language, as `tenure ls --help` shows it."""
    from tenure.rules.filters import describe

    yield f"```text\n{describe()}```"


def state(name: str) -> Iterator[str]:
    """Which transitions lead to a state, and which lead on."""
    from tenure.rules.lifecycle import TRANSITIONS

    to = [f"`{key}`" for key, each in TRANSITIONS.items() if name in each.targets]
    away = [f"`{key}`" for key, each in TRANSITIONS.items() if name in each.sources]
    yield f"Transitions that lead here: {', '.join(to)}; that start here: {', '.join(away)}."


def api(name: str) -> Iterator[str]:
    """A public name with its signature, its docstring, its fields and its members."""
    module, _, name = name.rpartition(".")
    value = getattr(import_module(module), name)
    if inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, BaseException)):
        yield f"```text\n{name}{_signature(value)}\n```"
    yield _doc(value)
    if inspect.isclass(value) and issubclass(value, Enum):
        yield ", ".join(f"`{name}.{each.name}`" for each in value) + "."
    if inspect.isclass(value) and issubclass(value, msgspec.Struct):
        yield _fields(value)
    elif inspect.isclass(value):
        yield from _members(name, value)


def everything(module: str) -> Iterator[str]:
    """Every public name of a module, under a heading of its own."""
    for name in import_module(module).__all__:
        yield f"### {name}"
        yield from api(f"{module}.{name}")


def _fields(struct: type[msgspec.Struct]) -> str:
    lines = ["| field | type | default |", "|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        default = "" if field.required else f"`{field.default!r}`"
        value = getattr(struct, field.name.removesuffix("_json"), None)
        if isinstance(value, cached_property):
            kind = _type_text(typing.get_type_hints(value.func)["return"])
            lines.append(f"| `{value.attrname}` | `{kind}` | |")
        lines.append(f"| `{field.name}` | `{_type_text(field.type)}` | {default} |")
    return "\n".join(line.replace(" | None", " or None") for line in lines)


def _members(owner: str, kind: type[Any]) -> Iterator[str]:
    for name in sorted(public_members(kind) - HIDDEN.get(owner, set())):
        member = inspect.getattr_static(kind, name)
        if name.endswith("_async") and hasattr(kind, name.removesuffix("_async")):
            continue  # stands with its twin
        if isinstance(member, property):
            yield f"### {owner}.{name}"
            yield _doc(member)
        elif inspect.isfunction(member):
            yield f"### {owner}.{name}"
            yield f"```text\n{_calls(kind, name)}\n```"
            yield _doc(member)


def public_members(kind: type[Any]) -> set[str]:
    """The public members of a class of ours and of its bases of ours."""
    return {
        name for base in kind.__mro__ if base.__module__.startswith("tenure") for name in vars(base)
        if not name.startswith("_")
    }  # fmt: skip


def _calls(kind: type[Any], name: str) -> str:
    """How to call a method, and its twin for async code."""
    lines = [f"{name}{_signature(getattr(kind, name), implied=1)}"]
    if twin := getattr(kind, f"{name}_async", None):
        how = "async for each in" if inspect.isasyncgenfunction(twin) else "await"
        lines.append(f"{how} {name}_async{_signature(twin, implied=1)}")
    return "\n".join(lines)


def _signature(function: Any, implied: int = 0) -> str:
    """Without annotations, and without the first parameters, which the caller does not give."""
    signature = inspect.signature(function)
    params = [p.replace(annotation=p.empty) for p in signature.parameters.values()][implied:]
    text = str(signature.replace(parameters=params, return_annotation=signature.empty))
    return re.sub(r"<class '(\w+)'>", r"\1", text)


def _type_and_default(struct: type[msgspec.Struct], name: str) -> str:
    [field] = [each for each in msgspec.structs.fields(struct) if each.name == name]
    default = SPOKEN_DEFAULTS.get(name) or _default_text(getattr(struct(), name))
    return f"`{_type_text(field.type)}`, default {default}."


def _default_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        inside = ", ".join(kind.__name__ for kind in value)
        return f"`({inside},)`" if inside else "`()`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value!r}`".replace("'", '"')


def _type_text(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    text = re.sub(r"\b(?:[a-z_]+\.)+([A-Z]\w*)", r"\1", text)
    return text.replace("datetime.datetime", "datetime").replace(" | None", " or None")


def _doc(value: Any) -> str:
    text = inspect.getdoc(value)
    assert text, value
    return text


MAKERS: dict[str, Callable[[str], Iterator[str]]] = {
    "api": api, "call": call, "command": command, "commands": commands, "error": error,
    "everything": everything, "filters": filters, "state": state, "task": task, "url": url,
    "worker": worker,
}  # fmt: skip


def filled_in(page: str) -> str:
    """The text of a page with its parts made anew."""
    return PART.sub(lambda part: f"{part[1]}\n{_made(part[2], part[3])}\n\n{part[4]}", page)


def _made(maker: str, argument: str) -> str:
    return "\n\n".join(MAKERS[maker](argument))


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    for file in sorted(FOLDER.glob("*.md")):
        text = file.read_text("utf-8")
        if (made := filled_in(text)) != text:
            stale.append(file.name)
            if "--check" not in sys.argv:
                file.write_text(made, "utf-8")
    if stale and "--check" in sys.argv:
        print(f"stale: {', '.join(stale)}; run python scripts/make_reference.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
