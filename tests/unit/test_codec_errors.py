"""Error reports that can always be stored, whatever was raised."""

from __future__ import annotations

import re
from importlib import import_module

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import PayloadInvalid
from tenure.rules import codec
from tenure.rules.codec import (
    clean_text,
    decode,
    encode,
    encode_error,
)
from tenure.rules.job import ErrorInfo
from tests.support.values import (
    Text,
)


@given(st.text(st.characters()), st.integers(-1, 200))
def test_clean_text_is_always_storable_and_bounded(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned) <= max(0, limit)
    assert decode(encode(cleaned)) == cleaned
    if len(text) <= limit:
        assert cleaned == re.sub("[\0\ud800-\udfff]", "\ufffd", text)


def test_clean_text_keeps_head_and_tail_and_says_what_is_missing() -> None:
    assert clean_text("a\0b\ud800c", 10) == "a\ufffdb\ufffdc"
    cleaned = clean_text("HEAD" + "x" * 10_000 + "TAIL", 100)
    assert len(cleaned) == 100
    assert cleaned.startswith("HEADx")
    assert cleaned.endswith("xTAIL")
    assert "\n[... 10,008 characters in all ...]\n" in cleaned


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - of any kind
        return caught


class Report(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    module: str
    message: str
    traceback: str


def report(error: BaseException) -> Report:
    return decode(encode_error(error), Report)


def test_an_error_report_says_what_where_and_why() -> None:
    told = report(raised(LookupError("no such order")))
    assert told.type == "LookupError"
    assert told.message == "no such order"
    assert "test_codec_errors.py" in told.traceback
    assert "in raised" in told.traceback
    assert told.traceback.endswith("LookupError: no such order\n")
    assert report(PayloadInvalid("x")).type == "tenure.errors.PayloadInvalid"
    assert report(KeyboardInterrupt()).type == "KeyboardInterrupt"


class Outer:
    class Inner(Exception):
        """Its qualified name has a dot."""


@pytest.mark.parametrize("error", [ValueError("x"), PayloadInvalid("x"), Outer.Inner("x")])
def test_the_class_of_a_stored_error_can_be_found_again(error: Exception) -> None:
    stored = decode(encode_error(error), ErrorInfo)
    assert stored.module == type(error).__module__
    found: object = import_module(stored.module)
    for part in stored.full_type.removeprefix(f"{stored.module}.").split("."):
        found = getattr(found, part)
    assert found is type(error)


def test_messages_show_a_builtin_error_without_its_module() -> None:
    stored = decode(encode_error(ValueError("too hot")), ErrorInfo)
    assert (stored.type, stored.full_type) == ("ValueError", "builtins.ValueError")
    assert str(stored) == "ValueError: too hot"
    assert ErrorInfo("Old", "of an earlier version").full_type == "Old"


def test_an_error_report_is_always_storable() -> None:
    for text in ("a\0b", "\ud800", "x" * 5_000_000, ""):
        told = report(raised(ValueError(text)))
        assert decode(encode(msgspec.to_builtins(told))) is not None
        assert len(told.message) + len(told.traceback) <= codec.MAX_ERROR_CHARS
    told = report(ValueError("a\0b"))
    assert told.message == "a\ufffdb"


class Mute(Exception):
    def __str__(self) -> str:
        raise self.args[0]


@pytest.mark.parametrize("inner", [RuntimeError("x"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_that_cannot_speak_is_reported_all_the_same(inner: BaseException) -> None:
    told = report(raised(Mute(inner)))
    assert told.type.endswith("Mute")
    assert told.message == f"<not available: {type(inner).__name__}>"


def test_odd_errors_are_reported() -> None:
    class NotText(Exception):
        def __str__(self) -> str:
            return 7  # type: ignore[return-value]  # noqa: PLE0307 - the subject

    class Subtext(Exception):
        def __str__(self) -> str:
            return Text("sub")

    assert report(NotText()).message == "<not available: TypeError>"
    assert report(Subtext()).message == "sub"

    def endless() -> None:
        endless()

    with pytest.raises(RecursionError) as caught:
        endless()
    assert "endless" in report(caught.value).traceback

    chain: BaseException = ValueError("first")
    for _ in range(3000):
        outer = ValueError("later")
        outer.__cause__ = chain
        chain = outer
    assert report(chain).message == "later"
    loop = ValueError("loop")
    loop.__context__ = ValueError("other")
    loop.__context__.__context__ = loop
    assert "loop" in report(loop).traceback
    group = ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)])
    assert "many" in report(group).traceback


def test_an_error_report_has_no_values_of_local_variables() -> None:
    def handler(password: str) -> None:
        raise ValueError(f"{len(password)} characters")

    with pytest.raises(ValueError, match="characters") as caught:
        handler("hunter" + "2" * 3)
    assert "hunter222" not in report(caught.value).traceback


@pytest.mark.parametrize("limit", [0, 1, 10, 100])
def test_an_error_report_can_be_as_short_as_wished(limit: int) -> None:
    told = decode(encode_error(raised(ValueError("x" * 1000)), max_chars=limit), Report)
    assert len(told.message) + len(told.traceback) <= limit
    assert told.type == "ValueError"
