"""How a command ends: every error is one line on stderr and an exit code, and the codes are stable.

With --json the line is an object: {"error": "...", "kind": "JobNotFound", "exit_code": 3}.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import click

from tenure.cli.output import echo, write_json
from tenure.cli.words import option_meant
from tenure.errors import (
    GateNotFound,
    InvalidInput,
    JobNotFound,
    ReaderNotFound,
    ScheduleNotFound,
    SchemaError,
    StoreError,
    TenureError,
    WorkflowNotFound,
)
from tenure.passwords import without_passwords

FAILED, USAGE, NOT_FOUND, UNREACHABLE, SCHEMA, INTERRUPTED = 1, 2, 3, 4, 5, 130
PIPE_CLOSED, TERMINATED = 141, 143

_json_asked = False


class TaskNotFound(TenureError):
    """The application has no task of this name."""


class NotConfirmed(TenureError):
    """The user did not confirm. Nothing was changed."""


class Interrupted(TenureError):
    """Ctrl-C, with a hint on how to continue."""


def write_errors_as_json() -> None:
    """From now on write errors as JSON."""
    global _json_asked  # noqa: PLW0603
    _json_asked = True


@contextmanager
def ending() -> Iterator[None]:
    """Turn every way in which a command can end into one line and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help())
        sys.exit(USAGE)
    except click.UsageError as error:
        _end(USAGE, "UsageError", _with_pointer(error))
    except click.ClickException as error:
        _end(error.exit_code, type(error).__name__, error.format_message())
    except (click.Abort, KeyboardInterrupt):
        _end(INTERRUPTED, "Interrupted", "interrupted")
    except BrokenPipeError:
        _leave_quietly()
    except TenureError as error:
        _end(code_of(error), type(error).__name__, str(error))
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        _end(FAILED, type(error).__name__, f"{what}{error.strerror or error}")


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay Ctrl-C until the block ends, so that its result is known. A second one acts at once."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # the parent process made us ignore it
        yield
        return
    came = False

    def note(_number: int, _frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def code_of(error: TenureError) -> int:
    """The exit code of an error."""
    match error:
        case JobNotFound() | TaskNotFound() | ScheduleNotFound():
            return NOT_FOUND
        case WorkflowNotFound() | GateNotFound() | ReaderNotFound():
            return NOT_FOUND
        case SchemaError():
            return SCHEMA
        case StoreError():
            return UNREACHABLE
        case InvalidInput():
            return USAGE
        case Interrupted():
            return INTERRUPTED
        case _:
            return FAILED


def one_line(error: object) -> str:
    """The text of an error on one line, without passwords."""
    return without_passwords(" ".join(str(error).split()))


def _with_pointer(error: click.UsageError) -> str:
    command = "tenure" if error.ctx is None else error.ctx.command_path
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        meant = option_meant(error.ctx.command, error.option_name)
        if meant is not None:
            message = f"No such option {error.option_name!r}; {meant}"
    pointer = " See" if message.endswith("?") else "; see"
    return f"{message}{pointer} `{command} --help`"


def _end(code: int, kind: str, message: str) -> NoReturn:
    message = one_line(message)
    with suppress(OSError):
        if code == INTERRUPTED and sys.stderr.isatty():
            echo(err=True)  # after the ^C that the terminal shows
        if _json_asked or "--json" in sys.argv[1:]:
            write_json({"error": message, "kind": kind, "exit_code": code}, err=True)
        else:
            echo(f"tenure: {message}", err=True)
    sys.exit(code)


def _leave_quietly() -> NoReturn:
    """The reader of our output has closed the pipe: exit as other programs do."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)
