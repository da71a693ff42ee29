"""With many live jobs, queues are shown as a worker has last counted them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.cli import queues
from tenure.cli.top import View
from tenure.client import Client
from tenure.rules.job import NewJob


def test_queues_are_counted_now_unless_that_would_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Client(url) as client:
        client.store.enqueue([NewJob(task="a.b")] * 2)
        client.sample_depth()
        client.store.enqueue([NewJob(task="a.b")])
        rows, counted_seconds = queues.queue_rows(client)
        assert (rows[0]["queued"], counted_seconds) == (3, None)
        assert not any("as counted" in line for line in View(client, url).lines())

        monkeypatch.setattr(queues, "SLOW_SECONDS", 0.0)
        rows, counted_seconds = queues.queue_rows(client)
        assert rows[0]["queued"] == 2
        assert counted_seconds is not None
        assert any("live jobs as counted" in line for line in View(client, url).lines())

        monkeypatch.setattr(queues, "OLD_SECONDS", 0.0)
        assert queues.queue_rows(client)[1] is None
