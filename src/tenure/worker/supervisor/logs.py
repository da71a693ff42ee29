"""How the processes of `tenure worker` log: all of them in the same way, and without passwords.

The library itself configures no logging. A process that a supervisor has started asks it how it was
told to log; where that is the application's business, the application does it when it is imported.
"""

import json
import logging
import sys
from typing import Literal

from tenure.passwords import without_passwords

Format = Literal["text", "json"]
_told: Format | None = None


class TextLines(logging.Formatter):
    """Lines for people, without passwords."""

    def format(self, record: logging.LogRecord) -> str:
        return without_passwords(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per line; facts about a job are fields of their own."""

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
    handler = logging.StreamHandler(sys.stderr)
    text = TextLines("%(asctime)s %(levelname)-8s %(message)s")
    handler.setFormatter(JsonLines() if format == "json" else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def told_format() -> Format | None:
    """How this process was told to log; None when nobody has."""
    return _told
