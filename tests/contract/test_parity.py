"""Nothing is written twice by hand: both colours and both dialects offer the same."""

from __future__ import annotations

import inspect
import re
from importlib.resources import files

import pytest

from tenure.rules.lifecycle import TRANSITIONS
from tenure.store import AsyncStore, Store
from tenure.store.statements import TOPICS, Dialect, statements

# The hot steps: each database takes its own statements here, behind one method of `Tx`.
ONLY = {
    "postgres": {"notify_cancels", "insert_jobs", "copy_jobs", "copy_tickets", "highest_position",
                 "lowest_positions", "position_drawers", "notify", "look_at_gates",
                 "free_nodes", "write_edges", "take_spots"},
    "sqlite": {"count_cancels", "succeed_keeping", "feed_batch", "feed_finished", "has_readers",
               "insert_job", "insert_plain_job", "insert_due",
               "insert_tickets", "take_suspect", "drop_tickets",
               "drop_suspect",
               "insert_lease", "drop_started_keys",
               "lease_of_worker", "open_batch", "add_to_batch", "drop_batch", "any_featured",
               "moved_jobs", "drop_live", "queue_signs", "set_gate_of", "due_turns",
               "live_at_gate", "live_in_line", "passed_gate", "shares", "look_at_bucket",
               "head_of_line", "drop_gated", "hold_at_gates", "featured_in_batch",
               "features_of_batch", "free", "free_tickets", "look_at_lanes", "look_at_special",
               "size_of_lane",
               "head_of_lane", "head_of_suspects"},
}  # fmt: skip

# Ways from a store to something else. An async store has no use for `in_threads`.
AROUND = {"for_tenant", "in_threads", "run", "bell", "transaction"}

# What is done to the store that is no transition of a job.
OTHER_VERBS = {
    "extend", "pause", "resume", "prune", "progress", "checkpoint", "annotate", "start_once",
    "step", "announce", "retire", "sample_depth",
    "copy", "every transition", "gate", "fire", "trigger", "schedule",
    "add_reader", "read_feed", "move_reader", "remove_reader", "declare_hooks",
}  # fmt: skip

MUTATES = re.compile(r"(?:^|\()\s*(insert|update|delete|copy)\b", re.MULTILINE)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_both_colours_have_the_same_names() -> None:
    assert public(Store) - {"in_threads"} == public(AsyncStore)


@pytest.mark.parametrize("name", sorted(public(Store) - AROUND))
def test_both_colours_take_the_same_and_promise_the_same(name: str) -> None:
    sync, suspending = getattr(Store, name), getattr(AsyncStore, name)
    assert sync.__doc__ == suspending.__doc__
    assert sync.__doc__
    parameters = [
        list(inspect.signature(method).parameters.values())[1:] for method in (sync, suspending)
    ]
    assert parameters[0] == parameters[1]
    assert inspect.iscoroutinefunction(suspending)
    assert not inspect.iscoroutinefunction(sync)


def test_the_bell_is_the_same_in_both_colours() -> None:
    assert Store.bell.__doc__ == AsyncStore.bell.__doc__
    assert inspect.signature(Store.bell) == inspect.signature(AsyncStore.bell)
    assert not inspect.iscoroutinefunction(AsyncStore.bell)


@pytest.mark.parametrize("name", sorted(public(Store) - AROUND - {"migrate", "close"}))
def test_every_operation_takes_now_by_name_only(name: str) -> None:
    now = inspect.signature(getattr(Store, name)).parameters["now"]
    assert now.kind is inspect.Parameter.KEYWORD_ONLY
    assert now.default is None


def test_both_dialects_have_the_same_statements() -> None:
    names = {dialect: set(statements(dialect, "tenure")) for dialect in ("postgres", "sqlite")}
    assert names["postgres"] - ONLY["postgres"] == names["sqlite"] - ONLY["sqlite"]
    for dialect, only in ONLY.items():
        assert only <= names[dialect]


def entries(dialect: Dialect) -> dict[str, tuple[str, str]]:
    """name -> (comment, SQL), from the files as they are written."""
    found = {}
    for topic in TOPICS:
        path = files("tenure.store").joinpath(dialect, "sql", f"{topic}.sql")
        parts = re.split(r"^-- name: (\w+)\n", path.read_text("utf-8"), flags=re.MULTILINE)[1:]
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            lines = text.splitlines()
            comment = " ".join(line.strip(" -") for line in lines if line.startswith("--"))
            sql = "\n".join(line for line in lines if not line.startswith("--"))
            found[name] = (comment, sql)
    return found


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_every_statement_that_writes_names_its_transition(dialect: Dialect) -> None:
    verbs = re.compile(rf"\b({'|'.join([*TRANSITIONS, *OTHER_VERBS])})\b")
    silent = [
        name
        for name, (comment, sql) in entries(dialect).items()
        if MUTATES.search(sql) and not verbs.search(comment)
    ]
    assert silent == []


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_every_transition_is_named_by_some_statement(dialect: Dialect) -> None:
    told = " ".join(comment for comment, sql in entries(dialect).values() if MUTATES.search(sql))
    assert [name for name in TRANSITIONS if not re.search(rf"\b{name}\b", told)] == []
