"""How another process finds the same application: by the module and the name it is bound to.

Nothing is pickled. The other process imports the module that the user named: the one given to
`tenure worker`, or the script that was run. A script is imported under another name than
`__main__`, so that code under `if __name__ == "__main__"` does not run again. If tasks are missing
after that, their own modules are imported too. A process that still lacks a task of its parent, or
has it as another kind, refuses to start: it would put back their jobs for ever. It may have more
tasks: a deployment may have changed the code since the parent started.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import msgspec

from tenure.client import Client
from tenure.errors import ConfigError
from tenure.rules.claim import Kind

SCRIPT = "__mp_main__"
"""The name that multiprocessing gives to a script in its children; `tenure.tasks` knows it."""
REFUSED = 78
"""The exit code of a process that refuses to start, EX_CONFIG of sysexits.h."""
_SCRIPTS = ("__main__", SCRIPT)
_importing = False


@contextmanager
def _while_importing() -> Iterator[None]:
    global _importing  # noqa: PLW0603
    _importing = True
    try:
        yield
    finally:
        _importing = False


class AppRef(msgspec.Struct, frozen=True):
    """Where an application lives."""

    module: str
    name: str
    url: str
    search_path: tuple[str, ...]
    argv: tuple[str, ...]
    script: str | None = None
    package: str | None = None
    tasks: Mapping[str, Kind] = {}
    """The tasks of the application, by name, with the kind of each."""
    task_modules: tuple[str, ...] = ()
    """The modules that define them."""

    def with_kind(self, kind: Kind) -> "AppRef":
        """The same for a process that runs only tasks of this kind."""
        tasks = {name: each for name, each in self.tasks.items() if each == kind}
        return msgspec.structs.replace(self, tasks=tasks)

    def load(self) -> Client:
        """Import it in this process. Raises the errors of the import, or `ConfigError`."""
        sys.argv[:] = self.argv  # a script may choose its database by its arguments
        sys.path[:] = self.search_path  # in the same order: the same names find the same modules
        with _while_importing():
            module = _load_script(self) if self.script else importlib.import_module(self.module)
            app = getattr(module, self.name, None)
            if not isinstance(app, Client):
                raise ConfigError(f"{self.module} has no application called {self.name}")
            for name in self.task_modules:
                if self.tasks.keys() <= {task.name for task in app}:
                    break
                importlib.import_module(name)
        _refuse_missing_tasks(self.tasks, _tasks(app))
        app.module = self.module
        app.use_url(self.url)
        return app


def locate(app: Client) -> AppRef:
    """Find a module that has the application as one of its names.

    The module that `tenure worker` was told to import comes first, then the script that was run.
    """
    homes = [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is app and isinstance(module, ModuleType)
    ]
    if not homes:
        raise ConfigError(
            "other processes must be able to import the application: assign it to a name at the "
            "top level of a module, such as app = Tenure(...)"
        )
    named = [home for home in homes if home[0].__name__ == app.module]
    script = [home for home in homes if home[0].__name__ in _SCRIPTS]
    modules = {task.fn.__module__: None for task in app if task.fn.__module__ not in _SCRIPTS}
    return msgspec.structs.replace(
        _ref(*[*named, *script, *homes][0], app.url), tasks=_tasks(app), task_modules=tuple(modules)
    )


def _tasks(app: Client) -> dict[str, Kind]:
    return {task.name: task.kind for task in app}


def _refuse_missing_tasks(wanted: Mapping[str, Kind], found: Mapping[str, Kind]) -> None:
    """Raise ConfigError if this process lacks a task of its parent, or has it as another kind."""
    different = [
        f"{name} (parent: {wanted[name]}, here: {found.get(name, 'missing')})"
        for name in sorted(wanted)
        if found.get(name) != wanted[name]
    ]
    if different:
        some = ", ".join(different[:5]) + (" ..." if len(different) > 5 else "")
        raise ConfigError(
            f"this process does not have the tasks of its parent: {some}. If the code has changed, "
            "restart the worker. Otherwise define tasks at the top level of a module that the "
            'module of the application imports, and not under if __name__ == "__main__":'
        )


def refuse_while_imported() -> None:
    """Refuse to start a worker in a process that only imports the application."""
    if _importing:
        raise ConfigError(
            "a worker imports this module in another process: put the code that starts the worker "
            'under if __name__ == "__main__":'
        )


def _ref(module: ModuleType, name: str, url: str) -> AppRef:
    path, argv = tuple(entry or str(Path.cwd()) for entry in sys.path), tuple(sys.argv)
    if module.__name__ not in _SCRIPTS:
        return AppRef(module.__name__, name, url, path, argv)
    if module.__spec__ is not None and module.__spec__.name != SCRIPT:  # python -m package.module
        return AppRef(module.__spec__.name, name, url, path, argv)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError(
            "the application is defined in an interactive session; put it into a file, so that "
            "other processes can import it"
        )
    return AppRef(
        module.__name__, name, url, path, argv, str(Path(file).resolve()), module.__package__
    )


def _load_script(ref: AppRef) -> ModuleType:
    assert ref.script is not None
    if SCRIPT in sys.modules:
        return sys.modules[SCRIPT]
    spec = importlib.util.spec_from_file_location(SCRIPT, ref.script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if ref.package is not None:
        module.__package__ = ref.package
    sys.modules[SCRIPT] = sys.modules["__main__"] = module
    spec.loader.exec_module(module)
    return module
