"""Where settings come from: option > TENURE_* > pyproject.toml [tool.tenure] > default.

[tool.tenure]
url = "sqlite:///jobs.db"       a relative path starts at the folder of pyproject.toml
app = "shop.jobs:app"

[tool.tenure.worker]            options of `tenure worker`, by their names
processes = 2
"""

import tomllib
from pathlib import Path
from typing import Any

import click

from tenure.errors import ConfigError

FILE = "pyproject.toml"
TEXTS = ("url", "tenant", "app")
_LOCAL = "sqlite:///"


def read_project(start: Path) -> dict[str, Any]:
    """The table [tool.tenure] of the nearest pyproject.toml, in this folder or above; else {}."""
    for folder in (start, *start.parents):
        file = folder / FILE
        if file.is_file():
            settings = _read(file)
            if folder != start and "url" in settings:
                settings["url"] = _beside(folder, settings["url"])
            return settings
    return {}


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("tenure", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"[tool.tenure] in {file} must be a table")
    for name in TEXTS:
        if not isinstance(settings.get(name, ""), str):
            raise ConfigError(f"{name} under [tool.tenure] in {file} must be a string")
    return settings


def _beside(folder: Path, url: str) -> str:
    """A relative SQLite path starts at the folder of pyproject.toml, not at a folder below."""
    file = url.removeprefix(_LOCAL)
    is_relative = url.startswith(_LOCAL) and not file.startswith("/")
    return f"{_LOCAL}{folder}/{file}" if is_relative else url


def check_names(settings: dict[str, Any], commands: list[str]) -> None:
    """Refuse a setting that has no meaning, such as a misspelt name."""
    known = [*TEXTS, *commands]
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"unknown setting {name!r} in [tool.tenure] of {FILE}; known settings: "
                f"{', '.join(known)}"
            )


def defaults_of(command: click.Command, table: Any, path: str) -> dict[str, Any]:
    """The table of one command as click's defaults. Its keys are the names of the options."""
    if not isinstance(table, dict):
        raise ConfigError(f"[{path}] in {FILE} must be a table of options")
    names = _names(command)
    subcommands = command.commands if isinstance(command, click.Group) else {}
    defaults: dict[str, Any] = {}
    for given, value in table.items():
        name = given.replace("_", "-")
        if name in subcommands:
            defaults[name] = defaults_of(subcommands[name], value, f"{path}.{name}")
        elif name in names:
            defaults[names[name]] = value
        else:
            known = ", ".join([*names, *subcommands])
            raise ConfigError(
                f"unknown option {given!r} in [{path}] of {FILE}; known options: {known}"
            )
    return defaults


def _names(command: click.Command) -> dict[str, str]:
    """The name of each option on the command line -> its name in click."""
    return {
        word.removeprefix("--"): param.name
        for param in command.params
        if isinstance(param, click.Option) and param.name
        for word in param.opts
        if word.startswith("--")
    }
