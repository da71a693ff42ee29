"""An application whose handlers run in child processes; its store comes from TENURE_URL."""

from __future__ import annotations

import threading

from tenure import Tenure
from tests.statements.raising import raise_it

app = Tenure()


@app.task(isolation="process", max_attempts=1)
def raising(name: str) -> None:
    """Raise the exception of this name."""
    raise_it(name)


@app.task(isolation="process")
def fine() -> str:
    """Return."""
    return "fine"


@app.task(isolation="process", max_attempts=1, timeout_seconds=0.3)
def endless() -> None:
    """Never return."""
    threading.Event().wait()
