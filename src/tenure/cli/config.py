"""Where settings come from: option > TENURE_* > pyproject.toml [tool.tenure] > default."""

import tomllib
from pathlib import Path
from typing import Any

from tenure.errors import ConfigError

FILE = "pyproject.toml"


def read_project(start: Path) -> dict[str, Any]:
    """The table [tool.tenure] of the nearest pyproject.toml, here or above; empty without one."""
    for folder in (start, *start.parents):
        file = folder / FILE
        if file.is_file():
            return _read(file)
    return {}


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("tenure", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"[tool.tenure] in {file} must be a table")
    return settings


def defaults_for_click(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as click's defaults: [tool.tenure.worker] is for `tenure worker`, and so on."""
    return {name.replace("_", "-"): _option_names(value) for name, value in settings.items()}


def _option_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {name.replace("-", "_"): item for name, item in value.items()}
    return value
