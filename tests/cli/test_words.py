"""What an event says of itself, for people."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from tenure.cli.show import duration, in_words, when

ERROR = {"type": "ValueError", "message": "no tea\nand no cake", "traceback": "..."}


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        (None, None),
        ({}, None),
        ({"claimed_at": "2030-01-01T00:00:00Z", "reason": None}, None),
        ({"reason": "shutdown", "claimed_at": "2030-01-01T00:00:00Z"}, "shutdown"),
        ({"reason": "error", "error": ERROR, "delay_seconds": 1.25, "duration_seconds": 0.1},
         "ValueError: no tea, again in 1.2 s"),
        ({"reason": "lease lost", "charged": True}, "its worker died; the attempt is charged"),
        ({"reason": "cancelled", "charged": False},
         "its worker died; the attempt is not charged, cancelled"),
        ({"reason": "error", "error": {**ERROR, "type": "tenure.errors.NotCommitted"}},
         "NotCommitted: no tea"),
        ({"queue": "mail", "priority": None}, 'queue "mail"'),
    ],
)  # fmt: skip
def test_the_detail_of_an_event_in_words(detail: dict[str, object] | None, words: str) -> None:
    assert in_words(None if detail is None else json.dumps(detail)) == words


def test_a_duration_in_words() -> None:
    assert [duration(s) for s in (1.89e-05, 0.0042, 12.3456)] == [
        "less than 1 ms", "0.0042 s", "12.3 s",
    ]  # fmt: skip


def test_a_time_of_utc_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    try:
        for zone, shown in (("UTC", "12:00:00 UTC"), ("XYZ-1", "13:00:00+01:00")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert when(at) == f"2026-03-01 {shown}"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["error", "half of it", "[1]", "12", ""])
def test_a_detail_that_is_text_already_stays_as_it_is(text: str) -> None:
    assert in_words(text) == text
