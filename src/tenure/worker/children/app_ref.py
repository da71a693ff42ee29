"""How another process finds the same application: by the module and the name it is bound to.

Nothing is pickled. The other process imports the module. If the module is a script that was run
directly, its file is imported under another name than `__main__`, so that code under
`if __name__ == "__main__"` does not run again.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import msgspec

from tenure.client import Client
from tenure.errors import ConfigError

SCRIPT = "__mp_main__"
"""The name that multiprocessing gives to a script in its children; `tenure.tasks` knows it."""
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

    def load(self) -> Client:
        """Import it in this process. Raises the errors of the import, or `ConfigError`."""
        sys.argv[:] = self.argv  # a script may choose its database by its arguments
        sys.path[:] = self.search_path  # in the same order: the same names find the same modules
        with _while_importing():
            module = _load_script(self) if self.script else importlib.import_module(self.module)
        app = getattr(module, self.name, None)
        if not isinstance(app, Client):
            raise ConfigError(f"{self.module} has no application called {self.name}")
        app.use_url(self.url)
        return app


def locate(app: Client) -> AppRef:
    """Find the module-level name of an application. Other modules are preferred to the script."""
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
    return _ref(*min(homes, key=lambda home: home[0].__name__ in _SCRIPTS), app.url)


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
