"""The machine notices a broken rule: each rule is taken out of the real store, and stories differ.

Without this, a machine that never looks where a rule matters would pass as well. A rule is taken
out of the SQL of SQLite, or out of the Python that both stores share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from tenure.rules import lifecycle
from tenure.store import moves
from tenure.store.jobs import choose, claim, settle, sweep
from tenure.store.records import SeenTicket
from tenure.store.sqlite import tx as sqlite_tx
from tenure.store.sqlite.tx import SCHEMA
from tenure.store.statements import statements
from tests.model.machine import Story, fails, steps_of
from tests.model.sides import Side, open_sides

Broken = Callable[[], AbstractContextManager[Any]]
STORIES = 120


def sql(name: str, pattern: str, instead: str = "") -> Broken:
    """A statement without the words that are its rule."""

    def broken() -> AbstractContextManager[Any]:
        found = statements("sqlite", SCHEMA)
        changed = tuple(re.sub(pattern, instead, part, flags=re.DOTALL) for part in found[name])
        assert changed != found[name], f"{name} does not say {pattern!r} any more"
        return patch.dict(found, {name: changed})

    return broken


def nothing(name: str, columns: int = 1) -> Broken:
    """A statement that does nothing."""
    idle = f"select {', '.join('1' * columns)} where false"
    return lambda: patch.dict(statements("sqlite", SCHEMA), {name: (idle,)})


def python(module: object, name: str, instead: object) -> Broken:
    """A function that forgets its rule."""
    return lambda: patch.object(module, name, instead)


def _deaf(standing: lifecycle.Standing, settlement: lifecycle.Settlement) -> lifecycle.Move:
    deaf = msgspec.structs.replace(standing, cancel_requested=False)
    return lifecycle.after_settlement(deaf, settlement)


def _harsh(standing: lifecycle.Standing, *, charged: bool) -> lifecycle.Move:  # noqa: ARG001
    return lifecycle.after_crash(standing, charged=True)


def _mild(standing: lifecycle.Standing, *, charged: bool) -> lifecycle.Move:  # noqa: ARG001
    return lifecycle.after_crash(standing, charged=False)


def _first(seen: list[SeenTicket], wanted: object, tasks: object, most: int) -> object:  # noqa: ARG001
    return seen[:most]


async def _idle(*_: object) -> None:
    pass


def _patient(
    standing: lifecycle.Standing, settlement: lifecycle.Settlement, waited: float
) -> lifecycle.Move:  # fmt: skip
    return lifecycle.after_unknown(standing, settlement, min(waited, 0) - 1)


RULES: dict[str, Broken] = {
    "a success presents its token": sql("succeed", r"and j\.token = b\.token"),
    "a success presents a lease of its worker": sql("lease_of_worker", r"and worker = :worker"),
    "a retry presents a lease of its worker": sql("lock_leased", r"and l\.worker = :worker"),
    "a repeated settlement has landed": nothing("recorded_ends", 10),
    "another settlement has not landed": python(settle, "is_recorded", lambda *_: True),
    "a lease goes with its last job": python(settle, "drop_leases", _idle),
    "a heartbeat never shortens a lease": sql("extend", r"max\(expires_tick, (.*?\))\)", r"\1"),
    "a claim by tasks takes no other": python(choose, "_choose", _first),
    "a lease in use is not dropped": sql("drop_leases", r"and not exists .*?\n(?=returning)"),
    "a heartbeat is refused after the deadline": sql("extend", r"and lease\.expires_tick > :tick"),
    "a heartbeat names its worker": sql("extend", r"and lease\.worker = :worker"),
    "a lease expires at its deadline": sql("expired_leases", r"expires_tick <= :tick",
                                           "expires_tick < :tick"),
    "a job is promoted when it is due": sql("promote", r"due_at <= :now", "due_at < :now"),
    "a retry grows the token": sql("add_tickets", r"token = token \+ 1,", "token = token,"),
    "a retry counts": sql("add_tickets", r"attempts = attempts \+ [^,]*,[^,]*,",
                          "attempts = attempts,"),
    "a replay starts at no attempts": sql("replay", r"0, h\.max_attempts",
                                          "h.attempts, h.max_attempts"),
    "a replay grows the token": sql("replay", r"h\.token \+ 1", "h.token"),
    "a replayed parent is unfinished": nothing("reopen_edges"),
    "a finished job gives its key back": nothing("release_keys"),
    "a started job gives its key back": nothing("drop_started_keys"),
    "a key belongs to one tenant": sql("key_holders", r"k\.tenant = b\.value ->> 'tenant' and"),
    "a child waits for all its parents": sql("freed_children",
                                             r"p\.parent_state is null", "false"),
    "a paused queue is left alone": sql("look_at_lanes", r"and not exists [^\n;]*"),
    "one suspect at a time": sql("add_tickets", r"j\.crashes > 0", "0"),
    "a held job gets no ticket": sql("add_tickets", r"and j\.parked is null"),
    "a tenant cannot touch another's job": sql("lock_job", r"and \(:tenant.*"),
    "a cancelled job does not go on": python(settle, "after_settlement", _deaf),
    "an innocent job is not charged for a crash": python(sweep, "after_crash", _harsh),
    "a started job is charged for a crash": python(sweep, "after_crash", _mild),
    "the last attempt is the last": python(lifecycle, "is_last_attempt", lambda a, most: a >= most),
    "suspects are tried alone": python(sqlite_tx, "_blocks", lambda rows: [rows] if rows else []),
    "a claim of void tickets goes on": python(claim, "_VOID_ROUNDS", 1),
    "a job that says how long it is kept stays": sql("prune_finished", r"and keep_until is null"),
    "a job that is kept for a time goes": nothing("prune_kept", 3),
    "a job stays while its child may want its result": sql("prune_kept", r"or not exists .*?\)\)",
                                                           "or true)"),
    "a success that is not kept goes": sql("succeed_keeping", r"\nwhere coalesce.*"),
    "another end that is not kept goes": sql("finish", r"\n  and \(coalesce.*"),
    "a job that is not kept leaves no story": python(moves, "_forget_unkept", _idle),
    "a replay keeps what the task says": sql(
        "replay", r"h\.keep_succeeded_seconds, h\.keep_other_seconds", "null, null"),
    "a deleted job gives its key back": nothing("free_keys"),
    "a key notes how its job has ended": sql("release_keys", r"set outcome = .*? as b",
                                             "set outcome = null from json_each(:rows) as b"),
    "a replayed job holds its key": sql("hold_key", r"outcome = null, "),
    "the key of a live job is not freed": sql("free_key", r"and not exists [^\n]*"),
    "tries without the task are one event": nothing("last_events", 5),
    "a task is not unknown for ever": python(settle, "after_unknown", _patient),
}  # fmt: skip


@pytest.fixture(scope="module")
def sides() -> Iterator[list[Side]]:
    with open_sides(("sqlite-apsw",), None) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_the_machine_notices_when_a_rule_is_broken(rule: str, sides: list[Side]) -> None:
    with RULES[rule]():
        noticed = next((n for n in range(STORIES) if fails(steps_of(n), sides)), None)
    assert noticed is not None, f"nobody notices: {rule}"
    Story(sides).tell(steps_of(noticed))  # with the rule in place, the same story is all right
