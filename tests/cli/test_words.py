"""What an event says of itself, for people."""

from __future__ import annotations

import json

import pytest

from tenure.cli.show import in_words

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
        ({"reason": "lease expired", "charged": True}, "lease expired, charged true"),
        ({"queue": "mail", "priority": None}, 'queue "mail"'),
    ],
)  # fmt: skip
def test_the_detail_of_an_event_in_words(detail: dict[str, object] | None, words: str) -> None:
    assert in_words(None if detail is None else json.dumps(detail)) == words


@pytest.mark.parametrize("text", ["error", "half of it", "[1]", "12", ""])
def test_a_detail_that_is_text_already_stays_as_it_is(text: str) -> None:
    assert in_words(text) == text
