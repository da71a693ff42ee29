"""What every command shares: the client, confirmation, and common options."""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote

import click

from tenure.cli.exit import NotConfirmed
from tenure.cli.output import echo
from tenure.errors import ConfigError, InvalidInput, StoreUnavailable
from tenure.passwords import absolute_url, remember, shown_url

if TYPE_CHECKING:
    from tenure.client import Client

log = logging.getLogger("tenure.client")

P = ParamSpec("P")
R = TypeVar("R")


class CliContext:
    """The settings of a command, and its client, which is opened at the first use."""

    def __init__(
        self,
        url: str | None,
        tenant: str | None,
        settings: dict[str, Any],
        *,
        give_up_seconds: float,
        url_is_given: bool = False,
    ) -> None:
        self.url = url
        self._url_is_given = url_is_given
        self.tenant = tenant
        self.give_up_seconds = give_up_seconds
        self.settings = settings
        self._client: Client | None = None
        if url:
            remember(url)

    @property
    def client(self) -> "Client":
        """The client; closed when the command ends."""
        from tenure.client import Client

        if self._client is None:
            url = self.checked_url()
            require_schema(url)
            self._client = Client(tenant=self.tenant, give_up_seconds=self.give_up_seconds)
            self._client.use_url(url)
        return self._client

    def agree_on_url(self, app: "Client") -> None:
        """For a command that imports an application: both use one database.

        That is --url, else the address in the code, else TENURE_URL, else pyproject.toml.
        """
        if app.url_in_code and not self._url_is_given:
            self.url = app.url
            project = self.settings.get("url")
            if project and absolute_url(project) != absolute_url(self.url):
                log.warning(
                    "url under [tool.tenure] in pyproject.toml names %s, but the code names %s, "
                    "and the code wins; write Tenure() to use the other",
                    shown_url(project), shown_url(self.url),
                )  # fmt: skip
        elif self.url:
            app.use_url(self.url)
        else:
            with suppress(ConfigError):  # the code may have set TENURE_URL
                self.url = app.url
        remember(self.checked_url())

    def checked_url(self) -> str:
        """The URL, or an error that says where to set one."""
        if not self.url:
            raise ConfigError(
                "no database is given: use --url sqlite:///jobs.db, set TENURE_URL, or write "
                "url = ... under [tool.tenure] in pyproject.toml"
            )
        return self.url

    def close(self) -> None:
        """Close the client, if it was opened."""
        if self._client is not None:
            self._client.close()


def refuse_missing_file(url: str, fix: str = "`tenure db init` creates it") -> None:
    """A command that reads jobs must not create an empty file when the path is misspelt."""
    if url.startswith("sqlite:///"):
        file = Path(unquote(url.removeprefix("sqlite:///").partition("?")[0]))
        if not file.parent.is_dir():
            raise StoreUnavailable(f"there is no folder {file.parent}; create it first")
        if not file.exists():
            raise StoreUnavailable(f"there is no file {file}; {fix}")


def require_schema(url: str) -> None:
    """A command that reads jobs must not write to the SQLite file of another program."""
    refuse_missing_file(url)
    if url.startswith("sqlite:"):
        from tenure.store.sqlite.inspect_file import require_schema
        from tenure.store.url import sqlite_driver, sqlite_path

        require_schema(sqlite_path(url), sqlite_driver(url))


def refuse_other_program(url: str) -> None:
    """A worker creates its tables in a new SQLite file, but not in the file of another program."""
    if url.startswith("sqlite:"):
        from tenure.store.sqlite.inspect_file import refuse_other_program
        from tenure.store.url import sqlite_driver, sqlite_path

        refuse_other_program(sqlite_path(url), sqlite_driver(url))


def with_context(command: Callable[Concatenate[CliContext, P], R]) -> Callable[P, R]:
    """Pass the context as the first argument of a command, and close it afterwards."""

    @wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        context: CliContext = click.get_current_context().find_object(CliContext)  # type: ignore[assignment]
        try:
            return command(context, *args, **kwargs)
        finally:
            context.close()

    return call


def confirm(question: str, *, yes: bool) -> None:
    """Ask at the terminal. Without a terminal --yes is required."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(f"{question} Use --yes to confirm without a terminal")
    echo(f"{question[0].upper()}{question[1:]} [y/N]: ", nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("nothing was changed")


class Number(click.FloatRange):
    """A number within its range; NaN is refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:  # noqa: PLR0124 - NaN, which is in every range
            self.fail("nan is not allowed; give a number", param, ctx)
        return number


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write JSON, one object per line."
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
