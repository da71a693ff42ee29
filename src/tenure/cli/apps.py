"""Import the application that a command names: MODULE:NAME, or MODULE if it holds only one."""

import inspect
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from tenure.client import Client
from tenure.errors import ConfigError

_LISTS = ("list", "ls", "ps", "show", "status")
"""What users type to see the workers."""
_OURS = str(Path(__file__).parents[1])


def load_app(path: str | None) -> Client:
    """Import the application, or raise an error that names the fix."""
    module_name, _, name = (path or "").partition(":")
    if not module_name:
        raise ConfigError(
            f"no application is given: write MODULE:NAME, as in `tenure {_command()} "
            "shop.jobs:app`, set TENURE_APP, or write app = ... under [tool.tenure] in "
            "pyproject.toml"
        )
    _refuse_path(module_name, name)
    module = _import(module_name)
    app = _app_of(module, module_name, name)
    app.module = module_name
    return app


def _command() -> str:
    context = click.get_current_context(silent=True)
    return "worker" if context is None else context.info_name or "worker"


def _app_of(module: ModuleType, module_name: str, name: str) -> Client:
    apps = {key: value for key, value in vars(module).items() if isinstance(value, Client)}
    if name in apps:
        return apps[name]
    several = len({id(app) for app in apps.values()}) > 1
    if apps and not name and not several:
        return next(iter(apps.values()))
    if not apps:
        raise ConfigError(_no_app(module, module_name, name))
    choices = " or ".join(f"{module_name}:{key}" for key in apps)
    if not name:
        raise ConfigError(f"{module_name} has several applications; write {choices}")
    raise ConfigError(f"{module_name} has no application called {name}; write {choices}")


def _no_app(module: ModuleType, module_name: str, name: str) -> str:
    """Why this module gives no application: mostly because a function makes it."""
    given = name.partition("(")[0]
    value = getattr(module, given, None) if given else None
    factory = given if inspect.isfunction(value) else _factory_in(module)
    if factory is not None:
        app = "jobs" if factory == "app" else "app"
        option = "--app " if _command() == "enqueue" else ""
        return (
            f"{factory} is a function; write `{app} = {factory}()` in {module_name}, then `tenure "
            f"{_command()} {option}{module_name}:{app}`"
        )
    if value is not None:
        kind = type(value).__name__
        return (
            f"{module_name}:{given} is of type {kind}, not Tenure; add app = Tenure(...) to "
            f"{module_name}"
        )
    return f"{module_name} has no application; add app = Tenure(...) to it"


def _factory_in(module: ModuleType) -> str | None:
    """The name of a function of this module that seems to make an application."""
    for name, value in vars(module).items():
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        if own and (name == "app" or name.endswith("_app")):
            return name
    return None


def _refuse_path(given: str, name: str) -> None:
    """MODULE is a module, not a file and not a name relative to a package."""
    if given.startswith(".") and os.sep not in given:
        module = given.lstrip(".").removesuffix(".py")
        full = f"{module}{f':{name}' if name else ''}" if module else "shop.jobs:app"
        raise ConfigError(f"{given} is a relative name; write the whole name of the module: {full}")
    if os.sep not in given:
        return
    file = Path(given)
    folder = str(file.parent) if file.is_absolute() or ".." in file.parts else ""
    parts = [file.name] if folder else [part for part in file.parts if part != "."]
    module = ".".join(parts).removesuffix(".py")
    where = f" in the folder {folder}" if folder else ""
    raise ConfigError(
        f"{given} is a path; write the module{where}: {module}{f':{name}' if name else ''}"
    )


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        parent, _, last = name.rpartition(".")
        if last == "py":
            raise ConfigError(f"there is no module {name}; write {parent}") from error
        if isinstance(getattr(sys.modules.get(parent), last, None), Client):
            raise ConfigError(f"there is no module {name}; write {parent}:{last}") from error
        if name in _LISTS:
            raise ConfigError(
                f"there is no module {name}; to see the workers, use `tenure workers`"
            ) from error
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name}; run the command in the folder that contains it, "
                "or set PYTHONPATH"
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> ConfigError:
    return ConfigError(f"{name} cannot be imported: {type(error).__name__}: {error}{_place(error)}")


def _place(error: BaseException) -> str:
    """File and line of the user's own code that raised; a SyntaxError already names them."""
    not_theirs = (f"{sys.base_prefix}/lib", "<frozen", f"{_OURS}/")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(not_theirs)
    ]
    if isinstance(error, SyntaxError) or not frames:
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"
