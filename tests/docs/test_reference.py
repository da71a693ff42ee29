"""The reference names what the code has: nothing is missing, and nothing is invented."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scripts import make_reference
from tenure import errors
from tenure.cli import exit as endings
from tenure.rules import codec, job, lifecycle, limits
from tenure.rules.claim import Claimed
from tenure.rules.lifecycle import TRANSITIONS, Outcome, Settlement
from tenure.store import AsyncStore, Store, open_async_store, open_store, url
from tenure.store.jobs import claim
from tenure.store.look import jobs as looks
from tests.docs.pages import ROOT, Section, page
from tests.support.plain import Plain

STATES = page("docs/reference/states.md")
ERRORS = page("docs/reference/errors.md")
SETTINGS = page("docs/reference/settings.md")
STORE = page("docs/reference/store.md")
TABLES = page("docs/reference/tables.md")
SQLITE, POSTGRES = "*(SQLite)*", "*(PostgreSQL)*"
STANDING = lifecycle.Standing(0, 5, cancel_requested=False)

Columns = dict[str, list[str]]


def test_the_parts_that_are_made_are_as_the_code_is_now() -> None:
    for path in sorted(make_reference.FOLDER.glob("*.md")):
        text = path.read_text("utf-8")
        fresh = make_reference.filled_in(text)
        assert text == fresh, f"run python scripts/make_reference.py: {path.name}"


def test_every_state_has_its_heading() -> None:
    states = [
        section for section in STATES.sections[1:] if section.title not in ("Transitions", "Events")
    ]
    assert [section.title for section in states] == list(job.State)
    assert all(f"<!-- made: state {section.title} -->" in section.text for section in states)


def test_every_transition_has_its_row_and_the_row_is_true() -> None:
    shown = {
        name: (_set(row[1]), _set(row[2]), row[3], row[4])
        for name, row in zip(
            STATES.section("Transitions").names,
            STATES.section("Transitions").rows,
            strict=True,
        )
    }
    assert shown == {
        name: (set(map(str, each.sources)), set(map(str, each.targets)), each.by, each.presents)
        for name, each in TRANSITIONS.items()
    }


def _set(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_event_has_its_row() -> None:
    kinds = {*lifecycle.KIND_OF.values(), lifecycle.UNKNOWN_TASK, *job.FINAL_STATES}
    kind_at = {"NewEvent": 2, "Event": 1}
    for path in (ROOT / "src/tenure/store").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                place = kind_at.get(call.func.id)
                if place is not None and isinstance(call.args[place], ast.Constant):
                    kinds.add(ast.literal_eval(call.args[place]))
    names = STATES.section("Events").names
    assert sorted(names) == sorted(kinds)


def test_every_outcome_has_its_row_and_its_function() -> None:
    rows = STORE.section("Settlements")
    assert sorted(rows.names) == sorted(Outcome)
    one, error, later = held(), codec.encode("bad"), 1.0
    made = {
        Outcome.SUCCEED: lifecycle.succeed(one),
        Outcome.RETRY: lifecycle.retry(one, error, later),
        Outcome.FAIL: lifecycle.fail(one, error),
        Outcome.SKIP: lifecycle.skip(one),
        Outcome.SNOOZE: lifecycle.snooze(one, later),
        Outcome.RELEASE: lifecycle.release(one),
        Outcome.ABORT: lifecycle.abort(one),
    }
    charged = {name: row[2] for name, row in zip(rows.names, rows.rows, strict=True)}
    assert charged == {outcome: _charged(settlement) for outcome, settlement in made.items()}


def held() -> Claimed:
    """A job in a worker's hands."""
    return Claimed(
        1, 1, 1, "t", "{}", "q", 0, "", 0, 5, 0, datetime.now(UTC), None, None, None, 0
    )  # fmt: skip


def _charged(settlement: Settlement) -> str:
    return "yes" if lifecycle.after_settlement(STANDING, settlement).charged else "no"


def test_every_error_has_its_heading_with_its_fix() -> None:
    raised = [
        name for module in (errors, endings) for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, errors.TenureError)
        and each.__module__ == module.__name__
    ]  # fmt: skip
    sections = ERRORS.sections[1:]
    assert [section.title for section in sections] == raised
    for section in sections:
        assert f"<!-- made: error {section.title} -->" in section.text
        assert re.search(r"^\*\*Fix\*\*: \S", section.text, re.MULTILINE), section.title


def test_every_operation_has_its_row_in_both_colours() -> None:
    public = {name for name in dir(Store) if not name.startswith("_")}
    suspending = {name for name in dir(AsyncStore) if not name.startswith("_")}
    assert public - {"in_threads"} == suspending
    section = STORE.section("Operations")
    assert sorted(section.names) == sorted(public)
    assert all(row[1].endswith(".") for row in section.rows)


def test_every_option_of_the_url_has_its_heading() -> None:
    shown = [section.title for section in SETTINGS.under("URL options")]
    known = url._SQLITE_OPTIONS | url._POSTGRES_OPTIONS
    assert sorted(shown) == sorted(f"?{name}=" for name in known)


@pytest.mark.parametrize("opened", [open_store, open_async_store])
def test_the_defaults_of_opening_a_store_are_the_ones_shown(opened: object) -> None:
    assert callable(opened)
    text = STORE.section("Opening a store").text
    for name, parameter in inspect.signature(opened).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            assert f"`{name}={parameter.default}`" in text


def test_the_limits_are_the_ones_in_the_code() -> None:
    section = SETTINGS.section("Limits")
    shown = {row[0]: row[1] for row in section.rows}
    numbers = {
        "priority": (limits.MIN_PRIORITY, limits.MAX_PRIORITY, job.NewJob(task="t").priority),
        "attempts": (1, limits.MAX_ATTEMPTS_LIMIT, job.NewJob(task="t").max_attempts),
        "names of tasks, queues, workers": (limits.MAX_NAME_LENGTH,),
        "tenant": (limits.MAX_NAME_LENGTH,),
        "unique key": (limits.MAX_KEY_BYTES,),
        "parents of a job": (limits.MAX_PARENTS,),
        "steps of a job": (
            limits.MAX_STEPS,
            limits.MAX_STEP_BYTES // 2**20,
            limits.MAX_NAME_LENGTH,
        ),
        "one encoded value": (
            codec.MAX_BYTES // 2**20,
            codec.MAX_DEPTH,
            sys.int_info.default_max_str_digits,
        ),
        "one claim": (claim.MAX_BLOCK,),
        "one page of a list": (looks.MAX_PAGE,),
        "durations": (limits.MAX_SECONDS // (366 * 86_400),),
        "times": (limits.LONG_AGO.year, limits.FAR_FUTURE.year),
    }
    found = {what: tuple(map(_number, re.findall(r"-?\d[\d,]*", shown[what]))) for what in shown}
    assert found == numbers


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def test_every_table_view_and_column_is_explained(tmp_path: Path, pg_migrated_url: str) -> None:
    """Of both stores, and what only one of them has is marked as such."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with open_store(url):
        pass
    sqlite, postgres = _sqlite_columns(url), _postgres_columns(pg_migrated_url)
    sections = {
        section.title: section
        for section in TABLES.under("Tables")
        if section.title != "SQL functions"
    }
    assert sections.keys() == sqlite.keys() | postgres.keys()
    for name, section in sections.items():
        assert _mark(section.text.strip()) == _only_in(name, sqlite, postgres), name
        here, there = sqlite.get(name, []), postgres.get(name, [])
        explained = _explained(section, sections)
        assert sorted(explained) == sorted({*here, *there}), name
        if here and there:
            for column, meaning in explained.items():
                assert _mark(meaning) == _only_in(column, here, there), f"{name}.{column}"


def _explained(section: Section, sections: dict[str, Section]) -> dict[str, str]:
    if borrowed := re.search(r"columns\s+are\s+those\s+of\s+`(\w+)`", section.text):
        section = sections[borrowed[1]]
    return {name: row[1] for name, row in zip(section.names, section.rows, strict=True)}


def _mark(text: str) -> str | None:
    return next((mark for mark in (SQLITE, POSTGRES) if text.startswith(mark)), None)


def _only_in(name: str, sqlite: object, postgres: object) -> str | None:
    assert isinstance(sqlite, dict | list)
    assert isinstance(postgres, dict | list)
    if name in sqlite and name in postgres:
        return None
    return SQLITE if name in sqlite else POSTGRES


def _sqlite_columns(url: str) -> Columns:
    with Plain(url) as plain:
        names = plain.rows(
            "select name from sqlite_schema where type in ('table', 'view') "
            "and name not like 'sqlite%'"
        )
        return {
            name.removeprefix("tenure_"): [
                row[0] for row in plain.rows("select name from pragma_table_info(?)", name)
            ]
            for (name,) in names
        }


def _postgres_columns(url: str) -> Columns:
    found: Columns = {}
    with Plain(url) as plain:
        for table, column in plain.rows(
            "select table_name, column_name from information_schema.columns "
            "where table_schema = 'tenure'"
        ):
            found.setdefault(table, []).append(column)
    return found


def test_every_function_and_sequence_of_the_schema_is_named(pg_migrated_url: str) -> None:
    with Plain(pg_migrated_url) as plain:
        functions = plain.rows(
            "select proname from pg_proc where pronamespace = 'tenure'::regnamespace"
        )
        sequences = plain.rows(
            "select relname from pg_class where relnamespace = 'tenure'::regnamespace "
            "and relkind = 'S' and relname not like '%_seq'"
        )
    assert sorted(TABLES.section("SQL functions").names) == sorted(name for (name,) in functions)
    [counter] = [section for section in TABLES.under("Tables") if section.title == "counter"]
    assert all(f"`{name}`" in counter.text for (name,) in sequences)


def test_the_bits_of_features_are_explained() -> None:
    [table] = [section for section in TABLES.under("Tables") if section.title == "job"]
    meaning = _explained(table, {})["features"]
    assert list(map(_number, re.findall(r"\d+", meaning))) == [*job.FEATURES.values()]
