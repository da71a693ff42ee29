"""How the processes of a worker log: all in the same format, with the running job, no passwords.

The library itself configures no logging. `tenure worker` does, and its worker processes and child
processes do as it does. If a process was not told a format, the application configures logging
when it is imported; a process without any configuration then logs to stderr.
"""

import json
import logging
import os
import sys
from typing import Any, Literal

import msgspec

from tenure.passwords import without_passwords
from tenure.running import current

Format = Literal["text", "terminal", "json"]
_COLOURS = {"DEBUG": 2, "INFO": 32, "WARNING": 33, "ERROR": 31, "CRITICAL": 31}
_told: Format | None = None


class LogSetup(msgspec.Struct, frozen=True):
    """How a process logs. A worker sends it to the processes that it starts."""

    level: int
    format: Format | None = None
    """None: the application configures logging."""

    def before_import(self) -> None:
        """Configure logging, if a format is told. Called before the application is imported."""
        if self.format is not None:
            configure_logging(self.level, self.format)

    def after_import(self) -> None:
        """If neither this process nor the application has configured logging, log to stderr."""
        if not logging.getLogger().handlers:
            logging.basicConfig(level=self.level, handlers=[_handler(None)])


def log_setup() -> LogSetup:
    """How this process logs."""
    return LogSetup(logging.getLogger().getEffectiveLevel(), _told)


class JobFacts(logging.Filter):
    """Adds the running job to each record that its handler logs, as `record.tenure`.

    A filter of a handler, not of a logger: a logger's filters do not see records of its children.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = current()
        if job is not None and not hasattr(record, "tenure"):
            record.tenure = job_facts(job.id, job.task, job.queue, job.attempt, job.worker)
            record.in_handler = True
        return True


def job_facts(id: int, task: str, queue: str, attempt: int, worker: str) -> dict[str, Any]:
    """What identifies an attempt in structured logs."""
    return {"job": id, "task": task, "queue": queue, "attempt": attempt, "worker": worker}


class TextLines(logging.Formatter):
    """Lines for people, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if getattr(record, "in_handler", False):
            facts = record.tenure  # type: ignore[attr-defined]
            head, _, trace = text.partition("\n")
            head += f" [job {facts['job']} of {facts['task']}, attempt {facts['attempt']}]"
            text = f"{head}\n{trace}" if trace else head
        return without_passwords(text)


class TerminalLines(TextLines):
    """Short lines for a terminal, in the colour of their level if it shows colours.

    Text of jobs cannot control the terminal: only the colours are escape sequences.
    """

    def __init__(self, *, colours: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-8s %(message)s", "%H:%M:%S")
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        text = "".join(
            c if c.isprintable() or c == "\n" else " " for c in super().format(record).expandtabs()
        )
        if not self._colours:
            return text
        at, level, rest = text.partition(record.levelname)
        return f"\x1b[2m{at}\x1b[0m\x1b[{_COLOURS.get(level, 1)}m{level}\x1b[0m{rest}"


class JsonLines(logging.Formatter):
    """One JSON object per line; each fact about a job is a field."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname,
            "logger": record.name, "message": without_passwords(record.getMessage()),
            **getattr(record, "tenure", {}),
        }  # fmt: skip
        if record.exc_info:
            line["error"] = without_passwords(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging(level: str | int, format: Format) -> None:
    """Log to stderr."""
    global _told  # noqa: PLW0603
    _told = format
    logging.basicConfig(level=level, handlers=[_handler(format)], force=True)


def _handler(format: Format | None) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(format))
    handler.addFilter(JobFacts())
    return handler


def _formatter(format: Format | None) -> logging.Formatter:
    match format:
        case "json":
            return JsonLines()
        case "terminal":
            plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
            return TerminalLines(colours=sys.stderr.isatty() and not plain)
        case _:
            return TextLines("%(asctime)s %(levelname)-8s %(name)s: %(message)s")
