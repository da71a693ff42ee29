"""`tenure health` for probes, `tenure doctor` for people."""

import platform
import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click
import msgspec

from tenure import __version__
from tenure.cli.context import CliContext, Number, json_option, require_schema, with_context
from tenure.cli.exit import FAILED, one_line
from tenure.cli.output import echo, style
from tenure.cli.show import write_json
from tenure.cli.troubles import of_database, of_file
from tenure.errors import SchemaError, StoreError, TenureError
from tenure.passwords import shown_url

if TYPE_CHECKING:
    from tenure.store import About, Store

CLOCK_SECONDS = 2.0
BELL_SECONDS = 10.0
JOB_SECONDS = 30.0
SHOWN = 5
"""How many names one check lists."""


@click.command()
@click.option("--file", "file", help="Check the age of a worker's --health-file instead.")
@click.option("--max-age-seconds", default=30.0, show_default=True, type=Number(0),
              help="Unhealthy when the health file, a ready or due job, an expired lease "
                   "or a due tick is older.")  # fmt: skip
@click.option("--workers", "least", default=0, show_default=True,
              help="Unhealthy when fewer workers are alive.")  # fmt: skip
@click.option("--allow-paused", is_flag=True, help="A paused queue with jobs is healthy.")
@json_option
@with_context
def health(
    context: CliContext, *, file: str | None, max_age_seconds: float, least: int,
    allow_paused: bool, as_json: bool,
) -> None:  # fmt: skip
    """Exit with 0 when jobs make progress, else print the reasons and exit with 1."""
    if file:
        problem = of_file(Path(file), max_age_seconds)
        problems = [] if problem is None else [problem]
    else:
        problems = list(
            of_database(context.client, max_age_seconds, least=least, allow_paused=allow_paused)
        )
    if as_json:
        first = problems[0] if problems else None
        write_json({"healthy": not problems, "problem": first, "problems": problems})
    else:
        for problem in problems or ["healthy"]:
            echo(problem)
    if problems:
        raise click.exceptions.Exit(FAILED)


class Check(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    ok: bool
    text: str


@click.command()
@json_option
@with_context
def doctor(context: CliContext, *, as_json: bool) -> None:
    """Check engine, connection, schema, clock and wake-ups; exit with 1 when one check fails."""
    all_good = True
    for check in _checks(context):
        all_good &= check.ok
        if as_json:
            write_json(check)
        else:
            mark = style("ok  ", fg="green") if check.ok else style("FAIL", fg="red")
            echo(f"{mark}  {check.check:10} {check.text}")
    if not all_good:
        raise click.exceptions.Exit(FAILED)


def _progress_of(context: CliContext) -> Iterator[Check]:
    """Do jobs make progress? Not asked if the schema is incomplete."""
    with suppress(StoreError):
        problems = list(of_database(context.client, JOB_SECONDS))
        yield Check("jobs", not problems, "; ".join(problems) or "none waits without a cause")


def _checks(context: CliContext) -> Iterator[Check]:
    from tenure.store import open_store

    url = context.checked_url()
    yield Check("tenure", True, f"{__version__} on Python {platform.python_version()}")
    try:
        require_schema(url)
        with open_store(url, give_up_seconds=context.give_up_seconds) as store:
            yield from _checks_of(store, url)
    except SchemaError as error:
        yield Check("database", True, shown_url(url))
        yield Check("schema", False, one_line(error))
    except TenureError as error:
        yield Check("database", False, one_line(error))
    else:
        yield from _progress_of(context)


def _checks_of(store: "Store", url: str) -> Iterator[Check]:
    before = datetime.now(UTC)
    about = store.about()
    after = datetime.now(UTC)  # a slow reply is not a wrong clock
    yield Check("database", True, shown_url(url))
    yield _engine(about)
    if url.startswith("sqlite:"):
        yield _file_system(url)
        trouble = store.storage_trouble()
        yield Check("log", trouble is None, trouble or "the write-ahead log can be emptied")
    schema = _schema(about, store.missing_tables())
    yield schema
    if not schema.ok:
        return  # whatever else is read may be missing
    skew = max(0.0, (before - about.now).total_seconds(), (about.now - after).total_seconds())
    text = f"{skew:.1f} s between the database's clock and this one"
    yield Check("clock", skew < CLOCK_SECONDS, text)
    yield _wake_ups(store)
    alive = sum(worker.alive for worker in store.workers())
    yield Check("workers", True, f"{alive} alive")


def _engine(about: "About") -> Check:
    """On SQLite, check for the bug that can lose committed writes."""
    from tenure.store.sqlite.driver import is_affected

    text = f"{about.engine} {about.engine_version}"
    if about.engine != "SQLite":
        return Check("engine", True, text)
    if is_affected(about.engine_version):
        return Check("engine", False, f"{text} can lose committed writes (the WAL-reset bug)")
    return Check("engine", True, f"{text}, without the WAL-reset bug")


def _file_system(url: str) -> Check:
    from tenure.store.sqlite.driver import NETWORK_FILE_SYSTEMS, file_system_of

    kind = file_system_of(unquote(urlsplit(url).path).removeprefix("/"))
    if kind in NETWORK_FILE_SYSTEMS:
        return Check("disk", False, f"{kind} is a network file system; use a local disk")
    return Check("disk", True, f"{kind or 'unknown'}; not a known network file system")


def _schema(about: "About", missing: list[str]) -> Check:
    from tenure.store.migrate import VERSION

    text = f"version {about.schema_version}; this code writes {VERSION}"
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        text += f"; missing: {', '.join(missing[:SHOWN])}{more}; restore the database from a backup"
    return Check("schema", about.schema_version == VERSION and not missing, text)


def _wake_ups(store: "Store") -> Check:
    """Listen, send a notification, and wait for it."""
    from tenure.store.bell import SilentBell

    rung = threading.Event()
    bell = store.bell(rung.set)
    if isinstance(bell, SilentBell):
        return Check("wake-ups", True, "off because of the URL; workers find jobs by polling")
    bell.start()
    try:
        arrive = rung.wait(BELL_SECONDS)  # it rings once when it starts to listen
        if arrive and store.about().engine != "SQLite":
            rung.clear()
            _tell(store)
            arrive = rung.wait(BELL_SECONDS)
    finally:
        bell.stop()
    return Check("wake-ups", arrive,
                 "arrive" if arrive else "do not arrive; workers find jobs by polling")  # fmt: skip


def _tell(store: "Store") -> None:
    """Resume a queue that has no jobs: this notifies all listeners and leaves no rows."""
    queue = f"tenure-doctor-{secrets.token_hex(8)}"
    store.pause(queue, reason="tenure doctor")
    store.resume(queue)
