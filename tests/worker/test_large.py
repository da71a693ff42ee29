"""Large arguments, results and errors: a worker stays small, whatever its jobs carry."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import State, Tenure
from tests.worker.scripts import large
from tests.worker.support import Script, eventually

MAX_MB = 300
SIZE = 300_000
JOBS = 1000


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("what", ["arguments", "results", "errors"])
def test_a_worker_stays_small(
    what: str, app: Tenure, run_script: Callable[..., Script], url: str
) -> None:
    """300 MB go through it, far more than its bound allows to be in hand at once."""
    calls: dict[str, Any] = {
        "arguments": large.swallow.call("x" * SIZE),
        "results": large.produce.call(SIZE),
        "errors": large.fail.call(SIZE),
    }
    for _ in range(JOBS // 50):
        app.enqueue_many([calls[what]] * 50)
    script = run_script("large", store=url)
    eventually(lambda: not app.count_live())
    script.signal(signal.SIGTERM)
    script.ends()
    found = re.search(r"peak (\d+) kB", script.output)
    assert found is not None, script.output
    assert int(found[1]) / 1000 < MAX_MB
    states = {count.state for count in app.count_finished(*_all_times())}
    assert states == {State.FAILED if what == "errors" else State.SUCCEEDED}


def _all_times() -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    return now - timedelta(days=1), now + timedelta(days=1)
