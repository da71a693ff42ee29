"""The rules without which the engine would lose work or do it twice, each by name.

A model of the protocol broke without each of them. `@rule(name)` ties a test to a rule. Each rule
also has a patch in scripts/bugs/rules.py that takes it out of the code, so that its test can be
seen failing: `make bugs`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])
TESTS = Path(__file__).resolve().parents[1]

RULES = {
    "void-tickets": "a claim that took only void tickets claims again at once",
    "flagged-not-handed-out": "a claim cancels a job whose cancellation is requested",
    "lease-must-exist": "a settlement needs the worker's own lease row, whatever the token says",
    "token-guard": "a write about a running job needs the job's present token",
    "read-back": "a settlement that changed nothing looks whether it had landed before",
    "read-back-own": "only this worker's own settlement counts as landed; a sweep's does not",
    "read-back-same": "only a settlement that says the same as the recorded one has landed before",
    "lease-goes-with-its-last-job": "a lease goes with its last job, unless the worker keeps count",
    "never-shorter": "a heartbeat never moves a deadline to an earlier time",
    "read-back-not-in-callers": "in the caller's transaction a settlement landed before is refused",
    "lease-kept-while-live": "a lease goes only when none of its jobs is live under its token",
    "sweep-keeps-lease": "a sweep removes from a lease only the jobs that it requeued or finished",
    "charge-started": "a sweep charges jobs reported started, and those alone on their lease",
    "charge-block": "the last job that is left on a swept lease was not alone on it",
    "suspects-alone": "a job with a crash on record gets a lease of its own",
    "cancel-later-statement": "cancel looks for the ticket after it has the job's lock",
    "cancel-token": "cancel takes a ticket only when the ticket has the job's token",
    "bulk-token": "cancel of many takes a ticket only when the ticket has its job's token",
    "flagged-retry": "a retry of a job whose cancellation is requested cancels it",
    "flagged-release": "a snooze or release of a job whose cancellation is requested cancels it",
    "flagged-sweep": "a sweep cancels a job whose cancellation is requested",
    "flagged-free": "a child whose cancellation is requested is not freed by its parents' end",
    "replay-token": "replay gives the job a new token",
    "replay-attempts": "after a replay, attempts are counted from 0",
    "replay-key": "replay takes the unique key again, or is refused",
    "enqueue-repeat": "the repeat of an unanswered enqueue sees that its jobs have finished",
    "enqueue-compare": "the repeat of an unanswered enqueue takes no other job for its own",
    "keys-not-null": "no part of a unique key can be null",
    "key-mine": "a job gives back a key only while it is the holder",
    "lock-by-id": "jobs are locked in the order of their ids",
    "decide-after-locks": "whether a child is free is decided after its lock is held",
    "retry-deadlocks": "a transaction that the database sacrificed runs again as a whole",
    "pause-sees-claims": "pause returns when every claim from before it has ended",
    "one-ticket": "a ticket is valid only at the position that the job names",
    "late-heartbeat": "a heartbeat after the deadline is refused, swept or not",
    "skip-locked": "a claim passes over tickets that another session has locked",
    "one-comparison": "errors and crashes end a job by the same comparison",
    "token-grows": "a job gets a new token each time it goes back to its queue",
    "begin-immediate": "a writing transaction on SQLite takes the lock before its first read",
    "child-after-parents": "a child waits until all of its parents have ended",
    "skip-goes-down": "a job that depends on a skipped job is skipped, too, all the way down",
    "freed-once": "a child that does not wait any more is not freed by another parent",
    "freed-held": "a held child that is freed gets no ticket",
    "freed-token": "a child that is freed gets a new token",
    "end-after-all": "a workflow ends when its last nodes have all ended",
    "end-after-locks": "whether a workflow is over is decided after its lock is held",
    "finaliser-last": "the finaliser waits for all others, however they end",
    "grow-fence": "only a worker with the job's lease and token adds nodes to a workflow",
    "grow-asked-to-stop": "a job whose cancellation is requested adds nothing to its workflow",
    "grow-keeps-open": "the end of a workflow waits for the nodes that were added to it",
    "cancelled-outlasts-nobody": "the end waits for the parents of a node cancelled while it waits",
    "replay-goes-down": "a replay brings back the nodes that were skipped below the node",
    "step-fence": "only a worker with the job's lease and token records a step",
    "step-once": "the result of a step is never overwritten",
    "note-fence": "only a worker with the job's lease and token annotates it",
    "once": "a job that starts at most once, and has started, gets no other ticket",
    "once-fence": "a job that starts at most once starts only on a lease that has not expired",
    "gate-counts-others": "a limit counts the permits of all workers",
    "gate-counts-live": "a limit does not count jobs that have finished",
    "gate-one-claim": "one claim at a time looks at a gate and takes its permits",
    "gate-turn-at-end": "the end of an attempt at a gate gives its line a turn",
    "gate-order": "at a gate the head of a line goes first",
    "gate-starts-used": "a job that starts at a rate uses one start, and that is written down",
    "gate-clock-back": "a clock that goes back allows no starts",
    "gate-turns": "lines at a gate take turns",
    "gate-tenant": "the name of a line at a gate contains the tenant",
}


def rule(*names: str) -> Callable[[Test], Test]:
    """This test fails when one of these rules is taken out of the code."""
    unknown = set(names) - RULES.keys()
    assert names, "name a rule"
    assert not unknown, f"there is no rule {', '.join(sorted(unknown))}"
    return lambda test: test


def ties() -> Iterator[tuple[str, str]]:
    """Each (rule, test) that `@rule` ties together, in the order of the files."""
    for file in sorted(TESTS.rglob("test_*.py")):
        if "@rule(" in file.read_text("utf-8"):
            for test in functions(file).values():
                for name in _rules_of(test):
                    yield name, f"{file.relative_to(TESTS.parent).as_posix()}::{test.name}"


@cache
def functions(file: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file, by name."""
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _rules_of(test: ast.FunctionDef) -> Iterator[str]:
    for decorator in test.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="rule"), args=args):
                yield from (str(ast.literal_eval(argument)) for argument in args)
