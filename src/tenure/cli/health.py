"""`tenure health` for probes, `tenure doctor` for people."""

import platform
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from tenure import __version__
from tenure.cli.desk import Desk, json_option, with_desk
from tenure.cli.endings import FAILED
from tenure.cli.show import write_json
from tenure.errors import TenureError
from tenure.store import About, Store, open_store
from tenure.store.migrate import VERSION

CLOCK_SECONDS = 2.0
BELL_SECONDS = 3.0


@click.command()
@click.option("--file", "file", help="Look at the age of a worker's --health-file instead.")
@click.option("--max-age-seconds", default=30.0, show_default=True,
              help="A health file or a head of line older than this is unhealthy.")  # fmt: skip
@click.option("--workers", "least", default=0, show_default=True, help="So many must be alive.")
@json_option
@with_desk
def health(
    desk: Desk, *, file: str | None, max_age_seconds: float, least: int, as_json: bool
) -> None:
    """Exit 0 when jobs make progress, else 1 with the reason."""
    problem = _stale(Path(file), max_age_seconds) if file else _stuck(desk, max_age_seconds, least)
    if as_json:
        write_json({"healthy": problem is None, "problem": problem})
    else:
        click.echo(problem or "healthy")
    if problem:
        raise click.exceptions.Exit(FAILED)


def _stale(file: Path, max_age_seconds: float) -> str | None:
    try:
        age = time.time() - file.stat().st_mtime
    except OSError as error:
        return f"{file}: {error.strerror}; does the worker run with --health-file?"
    return f"{file} was touched {age:.0f} s ago" if age > max_age_seconds else None


def _stuck(desk: Desk, max_age_seconds: float, least: int) -> str | None:
    alive = sum(worker.alive for worker in desk.client.workers())
    if alive < least:
        return f"{alive} workers are alive, not {least}"
    paused = {queue.name for queue in desk.client.paused_queues()}
    for head in desk.client.oldest_ready():
        if head.age_seconds > max_age_seconds and head.queue not in paused:
            return f"queue {head.queue} has had a job ready for {head.age_seconds:.0f} s"
    return None


@click.command()
@json_option
@with_desk
def doctor(desk: Desk, *, as_json: bool) -> None:
    """Check engine, connection, schema and clock; exit 1 when something is wrong."""
    checks: list[tuple[str, bool, str]] = [
        ("tenure", True, f"{__version__} on Python {platform.python_version()}")
    ]
    try:
        with open_store(desk.checked_url()) as store:
            about = store.about()
            checks += _checks(store, about)
    except TenureError as error:
        checks.append(("database", False, " ".join(str(error).split())))
    for name, good, text in checks:
        if as_json:
            write_json({"check": name, "ok": good, "text": text})
        else:
            mark = click.style("ok  ", fg="green") if good else click.style("FAIL", fg="red")
            click.echo(f"{mark}  {name:10} {text}")
    if not all(good for _, good, _ in checks):
        raise click.exceptions.Exit(FAILED)


def _checks(store: Store, about: About) -> list[tuple[str, bool, str]]:
    skew = abs((datetime.now(UTC) - about.now).total_seconds())
    wakes = _rings(store.bell)
    return [
        ("engine", True, f"{about.engine} {about.engine_version}"),
        ("schema", about.schema_version == VERSION,
         f"version {about.schema_version}; this code writes {VERSION}"),
        ("clock", skew < CLOCK_SECONDS, f"{skew:.1f} s between the database's clock and this one"),
        ("wake-ups", wakes, "arrive" if wakes else "do not arrive; workers find jobs by polling"),
    ]  # fmt: skip


def _rings(new_bell: Callable[[Callable[[], None]], object]) -> bool:
    rung = threading.Event()
    bell = new_bell(rung.set)
    bell.start()  # type: ignore[attr-defined]
    try:
        return rung.wait(BELL_SECONDS)
    finally:
        bell.stop()  # type: ignore[attr-defined]
