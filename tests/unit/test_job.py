"""What `NewJob` and `Unique` refuse."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InvalidInput, InvalidName, OutOfRange
from tenure.rules.job import FINAL_STATES, LIVE_STATES, NewJob, State, Unique, Until
from tenure.rules.limits import (
    KNOWN_NAMES_LIMIT,
    MAX_ATTEMPTS_LIMIT,
    MAX_ID,
    MAX_KEY_BYTES,
    MAX_NAME_LENGTH,
    MAX_PARENTS,
    MAX_PRIORITY,
    MAX_SECONDS,
    MIN_PRIORITY,
    check_name,
    check_text,
    known_names,
)

BAD_NAMES = [
    "",
    " ",
    "a b",
    "x" * 10_240,
    "x" * (MAX_NAME_LENGTH + 1),
    "📮",
    "../etc/passwd",
    "..",
    "a/b",
    "it's",
    'say "hi"',
    "100%",
    "line\nbreak",
    "trailing\n",
    "nul\0",
    "\ud800",
    "\u202eltr",
    "naïve",
    "\u0661",
    "; drop table job --",
    "-starts-with-a-dash",
]
NOT_STRINGS: list[object] = [None, 7, 0, False, b"bytes", [], ["a"], {}, 1.5]
HUGE = [
    2**63,
    -(2**63),
    # With a name of its own, because pytest cannot write so many digits either.
    pytest.param(10**5000, id="10**5000"),
    pytest.param(-(10**5000), id="-10**5000"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_queue_task_and_scope_take_only_plain_names(name: str) -> None:
    with pytest.raises(InvalidName):
        NewJob(task=name)
    with pytest.raises(InvalidName):
        NewJob(task="t", queue=name)
    with pytest.raises(InvalidName):
        Unique(key="k", scope=name)


@pytest.mark.parametrize("name", NOT_STRINGS, ids=repr)
def test_every_name_must_be_a_string(name: object) -> None:
    with pytest.raises(InvalidName, match="must be a string"):
        NewJob(task=name)  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="must be a string"):
        NewJob(task="t", queue=name)  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="must be a string"):
        NewJob(task="t", tenant=name)  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="must be a string"):
        Unique(key=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["a", "_", "9", "shop.orders:send_mail", "f.<locals>.g", "A-b_c.d", "x" * 200]
)
def test_ordinary_names_pass(name: str) -> None:
    job = NewJob(task=name, queue=name)
    assert (job.task, job.queue) == (name, name)


def test_names_in_use_stay_cheap_after_any_number_of_others() -> None:
    for n in range(KNOWN_NAMES_LIMIT + 1):
        check_name("task", f"other-{n}")
    for _ in range(2):
        check_name("task", "in-use")
        check_name("queue", "default")
    assert {"in-use", "default"} <= known_names
    assert len(known_names) <= KNOWN_NAMES_LIMIT


@given(st.text())
def test_a_name_that_passes_is_plain_ascii_of_bounded_length(name: str) -> None:
    try:
        check_name("task", name)
    except InvalidName:
        return
    assert name.isascii()
    assert 1 <= len(name) <= MAX_NAME_LENGTH
    assert not set(name) & set(" /\\'\"%;\n\r\t\0")


@given(st.text(st.characters()))
def test_a_text_that_passes_can_be_stored_and_shown_on_one_line(text: str) -> None:
    try:
        check_text("key", text, MAX_KEY_BYTES)
    except InvalidName:
        return
    assert "\0" not in text
    assert len(text.splitlines()) <= 1
    text.encode()


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY_BYTES + 1), "a\0", "a\nb", "\udfff", "\u202e"])
def test_unique_keys_are_printable_text(key: str) -> None:
    with pytest.raises(InvalidName):
        Unique(key=key)


@pytest.mark.parametrize("key", ["order 7", "📮", 'it\'s 100% "fine"', "../x", "naïve"])
def test_unique_keys_and_tenants_may_be_human_text(key: str) -> None:
    assert Unique(key=key).key == key
    assert NewJob(task="t", tenant=key).tenant == key


def test_a_refusal_does_not_repeat_a_long_name_in_full() -> None:
    with pytest.raises(InvalidName) as caught:
        NewJob(task="x y" * 60)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "priority", [MIN_PRIORITY - 1, MAX_PRIORITY + 1, *HUGE, True, 1.0, math.nan, "1", None]
)
def test_priority_is_a_whole_number_in_range(priority: object) -> None:
    with pytest.raises(OutOfRange, match="priority must be a whole number from -100 to 100"):
        NewJob(task="t", priority=priority)  # type: ignore[arg-type]


@pytest.mark.parametrize("attempts", [0, -1, MAX_ATTEMPTS_LIMIT + 1, *HUGE, True, 1.5])
def test_max_attempts_is_a_whole_number_in_range(attempts: object) -> None:
    with pytest.raises(OutOfRange, match="max_attempts"):
        NewJob(task="t", max_attempts=attempts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, MAX_SECONDS + 1, *HUGE, True, "1", []]
)
def test_durations_are_finite_numbers_of_seconds(value: object) -> None:
    with pytest.raises(OutOfRange, match="delay_seconds"):
        NewJob(task="t", delay_seconds=value)  # type: ignore[arg-type]
    with pytest.raises(OutOfRange, match="timeout_seconds"):
        NewJob(task="t", timeout_seconds=value)  # type: ignore[arg-type]
    with pytest.raises(OutOfRange, match="period_seconds"):
        Unique(key="k", until=Until.PERIOD, period_seconds=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [0, 0.0, 0.5, MAX_SECONDS])
def test_a_delay_is_up_to_a_hundred_years(delay: float) -> None:
    assert NewJob(task="t", delay_seconds=delay).delay_seconds == delay


@pytest.mark.parametrize("delay", [-1, -0.5, -MAX_SECONDS])
def test_a_negative_delay_is_refused(delay: float) -> None:
    with pytest.raises(OutOfRange, match="delay_seconds must be from 0"):
        NewJob(task="t", delay_seconds=delay)


@pytest.mark.parametrize("timeout", [0, -1, 0.0001])
def test_a_timeout_leaves_time_to_run(timeout: float) -> None:
    with pytest.raises(OutOfRange, match="timeout_seconds"):
        NewJob(task="t", timeout_seconds=timeout)


def test_the_bounds_themselves_are_accepted() -> None:
    for priority in (MIN_PRIORITY, MAX_PRIORITY):
        assert NewJob(task="t", priority=priority).priority == priority
    for attempts in (1, MAX_ATTEMPTS_LIMIT):
        assert NewJob(task="t", max_attempts=attempts).max_attempts == attempts


@pytest.mark.parametrize(
    "due_at",
    [
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(9000, 1, 1, 0, 0, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ],
)
def test_due_times_lie_where_every_store_can_keep_them(due_at: datetime) -> None:
    with pytest.raises(OutOfRange, match="due_at must be between"):
        NewJob(task="t", due_at=due_at)


def test_a_naive_due_time_is_refused_with_the_fix() -> None:
    with pytest.raises(OutOfRange, match=r"no time zone; use datetime\.now\(timezone\.utc\)"):
        NewJob(task="t", due_at=datetime(2030, 1, 1))  # noqa: DTZ001 - the subject


@pytest.mark.parametrize("due_at", ["2030-01-01T00:00:00Z", 1_900_000_000, date(2030, 1, 1)])
def test_a_due_time_is_a_datetime(due_at: object) -> None:
    with pytest.raises(OutOfRange, match="due_at must be a datetime"):
        NewJob(task="t", due_at=due_at)  # type: ignore[arg-type]


def test_a_job_is_due_once() -> None:
    with pytest.raises(InvalidInput, match="not both"):
        NewJob(task="t", delay_seconds=1, due_at=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("value", ["{}", {}, None, bytearray(b"{}")])
def test_arguments_must_be_encoded_first(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"args must be encoded first: use tenure\.rules\.codec"):
        NewJob(task="t", args=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["{}", {}, 0, bytearray(b"{}")])
def test_metadata_and_retry_policy_must_be_encoded_first(value: object) -> None:
    with pytest.raises(
        InvalidInput, match=r"metadata must be encoded first: use tenure\.rules\.codec"
    ):
        NewJob(task="t", metadata=value)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match=r"retry must be encoded first: use tenure\.rules\.retry"
    ):
        NewJob(task="t", retry=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("parent", [0, MAX_ID + 1, *HUGE, True, "7", None, 1.0])
def test_parents_are_job_ids(parent: object) -> None:
    with pytest.raises(OutOfRange, match="a parent's id"):
        NewJob(task="t", parents=(1, parent))  # type: ignore[arg-type]


@pytest.mark.parametrize("parents", [None, [], [1], {1}, 7])
def test_parents_come_as_a_tuple(parents: object) -> None:
    with pytest.raises(InvalidInput, match="parents must be a tuple"):
        NewJob(task="t", parents=parents)  # type: ignore[arg-type]


def test_the_number_of_parents_is_bounded() -> None:
    most = tuple(range(1, MAX_PARENTS + 1))
    assert NewJob(task="t", parents=most).parents == most
    with pytest.raises(OutOfRange, match="at most 10000 parents"):
        NewJob(task="t", parents=(*most, MAX_ID))


@pytest.mark.parametrize("until", ["period", "finished", None, 1])
def test_how_long_a_key_is_held_is_one_of_four(until: object) -> None:
    with pytest.raises(InvalidInput, match=r"until must be one of Until"):
        Unique(key="k", until=until)  # type: ignore[arg-type]


def test_a_period_goes_with_its_policy_and_with_no_other() -> None:
    assert Unique(key="k", until=Until.PERIOD, period_seconds=60).period_seconds == 60
    with pytest.raises(InvalidInput, match="give both or none"):
        Unique(key="k", until=Until.PERIOD)
    with pytest.raises(InvalidInput, match="give both or none"):
        Unique(key="k", period_seconds=60)


def test_a_value_that_cannot_be_shown_is_refused_all_the_same() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise LookupError("no")

    with pytest.raises(OutOfRange, match="not this Rude"):
        NewJob(task="t", priority=Rude())  # type: ignore[arg-type]


def test_records_are_frozen() -> None:
    job = NewJob(task="t")
    with pytest.raises(AttributeError):
        job.task = "u"  # type: ignore[misc]


def test_every_state_is_either_live_or_final() -> None:
    assert frozenset(State) == LIVE_STATES | FINAL_STATES
    assert not LIVE_STATES & FINAL_STATES
    assert {state for state in State if state.final} == FINAL_STATES
