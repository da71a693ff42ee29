"""Write the pages of the reference that the code itself knows best.

python scripts/make_reference.py            writes docs/reference/cli.md and api.md
python scripts/make_reference.py --check    says whether they are as the code is now
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Made by scripts/make_reference.py; change the code instead. -->\n"


def cli_page() -> str:
    """Every command with its help, as a terminal of 80 columns shows it."""
    from tenure.cli.main import cli

    parts = [NOTE, "# The command line\n", _help(cli, ["tenure"])]
    context = click.Context(cli, info_name="tenure")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts.append(_command(command, ["tenure", name]))
    return "\n".join(parts)


def _command(command: click.Command, path: list[str]) -> str:
    parts = [f"## {' '.join(path)}\n", _help(command, path)]
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            parts.append(_command(sub, [*path, name]))
    return "\n".join(parts)


def _help(command: click.Command, path: list[str]) -> str:
    context = click.Context(
        command, info_name=" ".join(path), terminal_width=80, max_content_width=80
    )
    return f"```text\n{command.get_help(context)}\n```\n"


def api_page() -> str:
    """Every public name with its signature and its docstring."""
    import tenure

    parts = [NOTE, "# Python API\n", "Everything here is imported from `tenure`.\n"]
    parts += [_name(name, getattr(tenure, name)) for name in tenure.__all__]
    testing = import_module("tenure.testing")
    parts += ["# For tests\n", "Everything here is imported from `tenure.testing`.\n"]
    parts += [_name(name, getattr(testing, name)) for name in testing.__all__]
    return "\n".join(parts)


def _name(name: str, value: Any) -> str:
    lines = [f"## {name}\n"]
    if inspect.isfunction(value):
        lines.append(f"```text\n{name}{_signature(value)}\n```\n")
    lines.append(f"{_doc(value)}\n")
    if inspect.isclass(value):
        lines += _members(value)
    return "\n".join(lines)


def _members(kind: type[Any]) -> list[str]:
    lines = []
    for name, member in sorted(inspect.getmembers(kind)):
        if name.startswith("_") or not _is_ours(kind, name):
            continue
        if inspect.isfunction(member) or inspect.ismethod(member):
            lines.append(f"**`{name}{_signature(member)}`**  \n{_doc(member)}\n")
        elif isinstance(member, property):
            lines.append(f"**`{name}`**  \n{_doc(member)}\n")
    return lines


def _is_ours(kind: type[Any], name: str) -> bool:
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    return owner is not None and owner.__module__.startswith("tenure")


def _signature(function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    params = [
        p for p in signature.parameters.values() if p.name not in ("self", "scope", "tx", "side")
    ]
    plain = [p.replace(annotation=p.empty) for p in params]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def _doc(value: Any) -> str:
    return inspect.getdoc(value) or ""


PAGES = {"cli.md": cli_page, "api.md": api_page}


def main() -> int:
    """Write the pages, or compare them."""
    stale = []
    for name, make in PAGES.items():
        text, file = make().rstrip() + "\n", FOLDER / name
        if not file.exists() or file.read_text("utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                FOLDER.mkdir(parents=True, exist_ok=True)
                file.write_text(text, "utf-8")
    if stale and "--check" in sys.argv:
        print(f"stale: {', '.join(stale)}; run python scripts/make_reference.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
