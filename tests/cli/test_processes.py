"""`tenure worker --processes`: all processes log alike."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.terminal import PATIENCE_SECONDS, start

pytestmark = pytest.mark.slow  # processes

JOBS = """
import logging
from tenure import Tenure

app = Tenure()
log = logging.getLogger("jobs")


@app.on_start
def tell() -> None:
    log.warning("working on %s", app.url)
"""


def test_all_processes_log_json_and_no_passwords(pg_migrated_url: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    url = f"{pg_migrated_url}{'&' if '?' in pg_migrated_url else '?'}password=hunter2"
    words = ("worker", "jobs:app", "--processes", "2", "--log-format", "json")
    process = start(*words, url=url, folder=tmp_path)
    try:
        assert process.stderr is not None
        lines: list[str] = []
        while sum("serves" in line for line in lines) < 2:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    said = [json.loads(line)["message"] for line in [*lines, *rest.splitlines()]]
    told = [text for text in said if text.startswith("working on")]
    assert len(told) == 2
    assert all("password=***" in text for text in told)
