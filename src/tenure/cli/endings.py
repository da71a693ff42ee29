"""How a command ends: every error is one line and an exit code, and the codes are stable."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import click

from tenure.errors import (
    InvalidInput,
    JobFailed,
    JobNotFound,
    SchemaError,
    StoreError,
    TenureError,
)

FAILED, USAGE, NOT_FOUND, UNREACHABLE, SCHEMA, INTERRUPTED = 1, 2, 3, 4, 5, 130


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
        error.show()
        sys.exit(USAGE)
    except click.ClickException as error:
        _say(error.format_message())
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _leave_quietly()
    except TenureError as error:
        _say(" ".join(str(error).split()))
        sys.exit(code_of(error))


def code_of(error: TenureError) -> int:
    """The exit code of an error."""
    match error:
        case JobNotFound():
            return NOT_FOUND
        case SchemaError():
            return SCHEMA
        case StoreError():
            return UNREACHABLE
        case JobFailed():
            return FAILED
        case InvalidInput():
            return USAGE
        case _:
            return FAILED


def _say(message: str) -> None:
    click.echo(f"tenure: {message}", err=True)


def _leave_quietly() -> NoReturn:
    """Whoever read our output has left: end as other programs do."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)
