"""Every command, in a real terminal and as --json, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from tenure.cli.main import cli
from tests.cli import cases
from tests.cli.gate_cases import GATE_CASES
from tests.cli.schedule_cases import SCHEDULE_CASES
from tests.cli.workflow_cases import WORKFLOW_CASES
from tests.cli.world import World

CASES = cases.CASES | GATE_CASES | SCHEDULE_CASES | WORKFLOW_CASES
ON_POSTGRES = ("db init", "db status", "db migrate", "db sql", "doctor", "ls", "enqueue", "worker",
               "top", "health", "prune", "errors", "bench", "schedule list", "schedule show",
               "schedule add", "schedule trigger", "workflow show", "workflow replay")  # fmt: skip


def commands(group: click.Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """All that can be called; a group that does nothing by itself is none."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        full = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands(command, full)
            if not command.invoke_without_command:
                continue
        yield full, command


def test_no_command_is_forgotten() -> None:
    assert set(CASES) == {name for name, _ in commands()}


def test_every_command_takes_json_and_explains_itself() -> None:
    for name, command in commands():
        words = {word for param in command.params for word in param.opts}
        assert "--json" in words, name
        assert command.help, name


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_in_a_terminal(name: str, world: World) -> None:
    CASES[name].in_terminal(world)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_as_json(name: str, world: World) -> None:
    CASES[name].as_json(world)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_POSTGRES)
def test_in_a_terminal_on_postgres(name: str, pg_world: World) -> None:
    CASES[name].in_terminal(pg_world)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_POSTGRES)
def test_as_json_on_postgres(name: str, pg_world: World) -> None:
    CASES[name].as_json(pg_world)
