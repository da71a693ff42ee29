"""What every command shares: the client, and some options."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote

import click

from tenure.client import Client
from tenure.errors import ConfigError, StoreUnavailable

P = ParamSpec("P")
R = TypeVar("R")


class Desk:
    """The database that a command works on, opened when it is first needed."""

    def __init__(self, url: str | None, tenant: str | None, settings: dict[str, Any]) -> None:
        self.url = url
        self.tenant = tenant
        self.settings = settings
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The client; closed when the command ends."""
        if self._client is None:
            url = self.checked_url()
            refuse_missing_file(url)
            self._client = Client(url, tenant=self.tenant)
        return self._client

    def checked_url(self) -> str:
        """The URL, or an error that says where to put one."""
        if not self.url:
            raise ConfigError(
                "no database is named: use --url sqlite:///jobs.db, set TENURE_URL, or write "
                "url = ... under [tool.tenure] in pyproject.toml"
            )
        return self.url

    def close(self) -> None:
        """Close what was opened."""
        if self._client is not None:
            self._client.close()


def refuse_missing_file(url: str) -> None:
    """To look at jobs must not create an empty file beside the one that was meant."""
    if url.startswith("sqlite:///"):
        file = Path(unquote(url.removeprefix("sqlite:///").partition("?")[0]))
        if not file.exists():
            raise StoreUnavailable(f"there is no file {file}; `tenure db init` creates it")


def with_desk(command: Callable[Concatenate[Desk, P], R]) -> Callable[P, R]:
    """Give a command the desk as its first argument, and tidy up after it."""

    @wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        desk: Desk = click.get_current_context().find_object(Desk)  # type: ignore[assignment]
        try:
            return command(desk, *args, **kwargs)
        finally:
            desk.close()

    return call


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write JSON, one object per line."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
