"""How the processes of `tenure worker` log: all in the same format, and without passwords.

The library itself configures no logging. A supervisor tells its worker processes the format that it
was told. If it was told none, the application configures logging when it is imported.
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
    handler = logging.StreamHandler(sys.stderr)
    text = TextLines("%(asctime)s %(levelname)-8s %(message)s")
    handler.setFormatter(JsonLines() if format == "json" else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def told_format() -> Format | None:
    """The format that this process was told to use; None if it was told none."""
    return _told
