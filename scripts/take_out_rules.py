"""Take each marked rule out of the code, one at a time, and see its test fail.

    python scripts/take_out_rules.py                  all of them
    python scripts/take_out_rules.py read-back ...    some of them
    python scripts/take_out_rules.py --list           what there is

The tree is copied for each patch; nothing here changes a file of the project. It ends with status 1
when a patch no longer applies, when a test fails without any patch, or when a rule was taken out
and its test did not notice on each database that the patch is for. `make rules` runs it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORE = "src/tenure/store"
MARKED = "tests/statements/test_marked_rules.py"
RACES = "tests/statements/test_races.py"
FLOWS = "tests/statements/test_workflow_rules.py"
GATES = "tests/statements/test_gate_rules.py"
SQLITE, POSTGRES = "sqlite", "postgres"
BOTH = (SQLITE, POSTGRES)
LIMIT_SECONDS = 180
DEEP = " " * 16  # the indentation inside a case

# A patch that only breaks the code proves nothing: these are not how a missing rule looks.
BROKEN = re.compile(
    r"syntax error|SyntaxError|NameError|ImportError|no such column|UndefinedColumn"
)


@dataclass(frozen=True)
class Edit:
    """Replace a text that stands exactly once in a file, or in one named statement of it."""

    path: str
    old: str
    new: str
    statement: str | None = None

    def apply(self, root: Path) -> None:
        file = root / self.path
        text = file.read_text("utf-8")
        start, end = self._bounds(text)
        part = text[start:end]
        if part.count(self.old) != 1:
            raise DoesNotApply(f"{self.path}: {part.count(self.old)} times: {self.old!r:.90}")
        file.write_text(text[:start] + part.replace(self.old, self.new) + text[end:], "utf-8")

    def _bounds(self, text: str) -> tuple[int, int]:
        if self.statement is None:
            return 0, len(text)
        start = text.find(f"-- name: {self.statement}\n")
        if start < 0:
            raise DoesNotApply(f"{self.path}: there is no statement {self.statement}")
        end = text.find("\n-- name: ", start)
        return start, len(text) if end < 0 else end


class DoesNotApply(Exception):
    """The code has changed; the patch must be written anew."""


@dataclass(frozen=True)
class Patch:
    """One way to take a rule out, and the test that must notice on each of these databases."""

    rule: str
    how: str
    test: str
    edits: tuple[Edit, ...]
    noticed_on: tuple[str, ...] = BOTH


def python(file: str, old: str, new: str) -> Edit:
    return Edit(f"src/tenure/{file}.py", old, new)


def sql(dialect: str, topic: str, statement: str, old: str, new: str) -> Edit:
    return Edit(f"{STORE}/sql/{dialect}/{topic}.sql", old, new, statement)


AS_IT_CAME = python("store/settle", "in sorted(settlements, key=_by_id):", "in settlements:")

PATCHES = (
    Patch(
        "void-tickets", "claim gives up after its first round",
        f"{MARKED}::test_a_claim_that_took_only_void_tickets_goes_on_at_once",
        (python("store/claim", "if taken.leases or not taken.tickets:", "if True:"),),
    ),
    Patch(
        "flagged-not-handed-out", "claim hands out every live ticket",
        f"{MARKED}::test_a_job_asked_to_cancel_is_finished_by_the_claim_and_not_handed_out",
        (python("store/claim", "and not row[_FLAG]]", "]"),),
    ),
    Patch(
        "lease-must-exist", "a success needs no lease",
        f"{MARKED}::test_a_settlement_without_its_lease_row_is_stale",
        (
            sql(POSTGRES, "settle", "succeed",
                "lateral (select claimed_at from tenure.lease",
                "lateral (select max(claimed_at) as claimed_at from tenure.lease"),
            sql(SQLITE, "settle", "held_lease", "select claimed_at from tenure.lease",
                "select max(claimed_at) from tenure.lease"),
        ),
    ),
    Patch(
        "lease-must-exist", "a retry needs no lease",
        f"{MARKED}::test_a_settlement_without_its_lease_row_is_stale",
        (
            sql(POSTGRES, "settle", "lock_held",
                "lateral (select claimed_at from tenure.lease",
                "lateral (select coalesce(max(claimed_at), now()) as claimed_at from tenure.lease"),
            sql(SQLITE, "settle", "lock_held",
                "j.features, l.claimed_at", "j.features, coalesce(l.claimed_at, 0)"),
            sql(SQLITE, "settle", "lock_held",
                "cross join tenure.lease as l on", "left join tenure.lease as l on"),
        ),
    ),
    Patch(
        "token-guard", "a success looks at the id alone",
        f"{MARKED}::test_a_settlement_with_an_old_token_is_stale_even_on_a_live_lease",
        (
            sql(POSTGRES, "settle", "succeed", " and j.token = b.token", ""),
            sql(SQLITE, "settle", "succeed", " and j.token = b.token", ""),
        ),
    ),
    Patch(
        "token-guard", "a retry looks at the id alone",
        f"{MARKED}::test_a_settlement_with_an_old_token_is_stale_even_on_a_live_lease",
        (
            sql(POSTGRES, "settle", "lock_held", " and token = b.token", ""),
            sql(POSTGRES, "settle", "lock_held", "select j.id, j.token,", "select j.id, b.token,"),
            sql(SQLITE, "settle", "lock_held", " and j.token = b.value ->> 'token'", ""),
            sql(SQLITE, "settle", "lock_held", "select j.id, j.token,",
                "select j.id, b.value ->> 'token',"),
        ),
    ),
    Patch(
        "read-back", "nobody looks whether it had landed",
        f"{MARKED}::test_a_settlement_repeated_after_an_unanswered_commit_has_landed",
        (python("store/settle", "if len(landed) < len(batch) and read_back:", "if False:"),),
    ),
    Patch(
        "read-back-own", "anybody's settlement counts as one's own",
        f"{MARKED}::test_a_settlement_that_somebody_else_made_is_not_taken_for_ones_own",
        (
            sql(POSTGRES, "settle", "landed", " and h.worker = :worker", ""),
            sql(SQLITE, "settle", "landed", " and h.worker = :worker", ""),
        ),
    ),
    Patch(
        "read-back-own", "what a sweep ended counts as settled by the lost worker",
        f"{MARKED}::test_a_settlement_that_somebody_else_made_is_not_taken_for_ones_own",
        (
            sql(POSTGRES, "settle", "landed", "e.kind = 'crashed'", "e.kind = 'nothing'"),
            sql(SQLITE, "settle", "landed", "e.kind = 'crashed'", "e.kind = 'nothing'"),
        ),
    ),
    Patch(
        "read-back-not-in-callers", "a repeat in the caller's transaction has landed",
        f"{MARKED}::test_a_users_transaction_that_is_run_again_is_undone",
        (python("store/settle", ", read_back=False)", ", read_back=True)"),),
    ),
    Patch(
        "lease-kept-while-live", "the worker is believed that its lease is used up",
        f"{MARKED}::test_a_lease_is_kept_while_one_of_its_jobs_is_live",
        (
            sql(POSTGRES, "settle", "drop_leases", "and not exists (", "or false and exists ("),
            sql(SQLITE, "settle", "drop_leases", "and not exists (", "or false and exists ("),
        ),
    ),
    Patch(
        "sweep-keeps-lease", "the sweep deletes the lease whatever is left on it",
        f"{RACES}::test_a_sweep_leaves_a_job_that_is_being_settled_on_its_lease",
        (python("store/sweep", "    if left:\n", "    if False:\n"),),
        (POSTGRES,),
    ),
    Patch(
        "charge-started", "every job of a lost block is charged",
        f"{MARKED}::test_an_innocent_job_of_a_block_never_fails_without_having_run",
        (python("store/sweep", "charged = id in reported or", "charged = True or"),),
    ),
    Patch(
        "charge-started", "reports of started jobs are ignored",
        f"{MARKED}::test_an_innocent_job_of_a_block_never_fails_without_having_run",
        (python("store/sweep", "charged = id in reported or", "charged = False or"),),
    ),
    Patch(
        "charge-started", "a job alone on its lease is not charged",
        f"{MARKED}::test_a_job_alone_on_its_lease_is_charged_without_a_report",
        (python("store/sweep", "(len(pairs) == 1 and started is None)", "False"),),
    ),
    Patch(
        "charge-block", "the last one left on a lease counts as alone",
        f"{RACES}::test_a_job_left_on_a_swept_lease_is_not_charged_for_being_the_last",
        (python("store/sweep", "len(pairs) == 1 and started is None", "len(pairs) == 1"),),
        (POSTGRES,),
    ),
    Patch(
        "suspects-alone", "suspects share a lease with the others",
        f"{MARKED}::test_a_job_with_a_crash_on_record_is_tried_alone",
        (
            sql(POSTGRES, "claim", "take_tickets", "when j.crashes > 0 then j.id", ""),
            python("store/sqlite_tx", "trusted = [row for row in rows if not row[10] and",
                   "trusted = [row for row in rows if"),
            python("store/sqlite_tx", "[[row] for row in rows if row[10] and not row[16]]", "[]"),
        ),
    ),
    Patch(
        "cancel-later-statement", "cancel does not lock the job before it looks for the ticket",
        f"{RACES}::test_cancel_waits_for_a_promotion_in_flight_and_finds_the_new_ticket",
        (sql(POSTGRES, "operate", "lock_job", "for update", ""),),
        (POSTGRES,),
    ),
    Patch(
        "cancel-token", "cancel takes any ticket of the job",
        f"{MARKED}::test_cancel_takes_no_void_ticket_for_the_jobs_own",
        tuple(
            sql(dialect, "operate", f"take_{table}_ticket", " and token = :token", "")
            for dialect in BOTH for table in ("due", "ready")
        ),
    ),
    Patch(
        "flagged-retry", "a retry ignores the request to cancel",
        f"{MARKED}::test_a_job_asked_to_cancel_is_not_retried",
        (
            python("lifecycle",
                   f"if job.cancel_requested:\n{DEEP}return Move(State.CANCELLED, charged=True",
                   f"if False:\n{DEEP}return Move(State.CANCELLED, charged=True"),
        ),
    ),
    Patch(
        "flagged-release", "a snooze or release ignores the request to cancel",
        f"{MARKED}::test_a_job_asked_to_cancel_is_not_put_back",
        (
            python("lifecycle",
                   f"if job.cancel_requested:\n{DEEP}return Move(State.CANCELLED, reason",
                   f"if False:\n{DEEP}return Move(State.CANCELLED, reason"),
        ),
    ),
    Patch(
        "flagged-sweep", "a sweep ignores the request to cancel",
        f"{MARKED}::test_a_job_asked_to_cancel_is_not_requeued_by_a_sweep",
        (
            python("lifecycle",
                   "if job.cancel_requested:\n        return Move(State.CANCELLED, charged=charged",
                   "if False:\n        return Move(State.CANCELLED, charged=charged"),
        ),
    ),
    Patch(
        "flagged-free", "the end of a parent ignores the request to cancel its child",
        f"{MARKED}::test_a_child_asked_to_cancel_is_not_freed",
        (python("lifecycle", "if cancel_requested:\n", "if False:\n"),),
    ),
    Patch(
        "replay-token", "replay keeps the token",
        f"{MARKED}::test_replay_is_a_new_attempt_with_a_new_token",
        (
            sql(POSTGRES, "operate", "replay", "select id, token + 1,", "select id, token,"),
            sql(POSTGRES, "operate", "replay", "place, id, token + 1", "place, id, token"),
            sql(SQLITE, "operate", "replay", "h.token + 1", "h.token"),
        ),
    ),
    Patch(
        "replay-attempts", "replay keeps the attempts",
        f"{MARKED}::test_replay_is_a_new_attempt_with_a_new_token",
        (
            sql(POSTGRES, "operate", "replay", "priority, 0,\n", "priority, attempts,\n"),
            sql(SQLITE, "operate", "replay", " 0, h.max_attempts", " h.attempts, h.max_attempts"),
        ),
    ),
    Patch(
        "replay-key", "replay does not take the key",
        f"{MARKED}::test_replay_takes_the_unique_key_again_or_is_refused",
        (python("store/operate", "    await retake_key(tx, row)\n", ""),),
    ),
    Patch(
        "enqueue-repeat", "the repeat does not look into history",
        f"{MARKED}::test_an_enqueue_repeated_after_an_unanswered_commit_adds_no_second_job",
        (python("store/enqueue", "if tx.repeat and not tx.collided and", "if False and"),),
        (POSTGRES,),
    ),
    Patch(
        "enqueue-compare", "whatever has the id is taken for our own",
        f"{MARKED}::test_a_repeated_enqueue_takes_no_strangers_row_for_its_own",
        (
            python("store/enqueue",
                   "if not same or fingerprint(task, args.encode()) !=",
                   "if False and fingerprint(task, args.encode()) !="),
        ),
        (POSTGRES,),
    ),
    Patch(
        "keys-not-null", "a unique index over nullable columns",
        f"{MARKED}::test_no_part_of_a_unique_key_can_be_null",
        (
            Edit(f"{STORE}/sql/postgres/migrations/0001.sql",
                 '    tenant text collate "C" not null,\n    scope text collate "C" not null,\n'
                 '    key text collate "C" not null,\n',
                 "    tenant text,\n    scope text,\n    key text,\n"),
            Edit(f"{STORE}/sql/postgres/migrations/0001.sql",
                 "primary key (tenant, scope, key)", "unique (tenant, scope, key)"),
            Edit(f"{STORE}/sql/sqlite/migrations/0001.sql",
                 "    tenant text not null,\n    scope text not null,\n    key text not null,\n",
                 "    tenant text,\n    scope text,\n    key text,\n"),
            Edit(f"{STORE}/sql/sqlite/migrations/0001.sql",
                 "primary key (tenant, scope, key)\n) strict, without rowid",
                 "unique (tenant, scope, key)\n) strict"),
        ),
    ),
    Patch(
        "key-mine", "a key is given back whoever holds it",
        f"{MARKED}::test_a_job_gives_back_no_key_that_another_holds",
        (
            sql(POSTGRES, "settle", "release_keys", "  and k.job_id = f.id\n", ""),
            sql(SQLITE, "settle", "release_keys", "(tenant, scope, key, job_id)",
                "(tenant, scope, key)"),
            sql(SQLITE, "settle", "release_keys", "h.unique_key, h.id", "h.unique_key"),
        ),
    ),
    Patch(
        "lock-by-id", "successes lock in the order of the batch",
        f"{RACES}::test_settlements_lock_jobs_in_the_order_of_their_ids[succeed]",
        (sql(POSTGRES, "settle", "succeed", "    order by b.id\n", ""), AS_IT_CAME),
        (POSTGRES,),
    ),
    Patch(
        "lock-by-id", "retries lock in the order of the batch",
        f"{RACES}::test_settlements_lock_jobs_in_the_order_of_their_ids[retry]",
        (sql(POSTGRES, "settle", "lock_held", "\n      order by r.id) as b", ") as b"), AS_IT_CAME),
        (POSTGRES,),
    ),
    Patch(
        "decide-after-locks", "children are not locked before the decision",
        f"{RACES}::test_the_last_two_parents_that_finish_together_free_their_child_once",
        (sql(POSTGRES, "settle", "lock_freed", "\nfor update", ""),),
        (POSTGRES,),
    ),
    Patch(
        "retry-deadlocks", "a deadlock is an error like others",
        f"{RACES}::test_a_write_that_met_a_deadlock_lands[progress]",
        (python("store/postgres", "    psycopg.errors.DeadlockDetected,\n", ""),),
        (POSTGRES,),
    ),
    Patch(
        "pause-sees-claims", "pause does not wait for claims in flight",
        f"{RACES}::test_pause_returns_only_when_no_claim_from_before_is_open",
        (python("store/operate", "while older:", "while False:"),),
        (POSTGRES,),
    ),
    Patch(
        "one-ticket", "any ticket with the job's token is valid",
        "tests/statements/test_defects.py::test_a_second_ticket_is_not_a_second_attempt",
        (
            sql(POSTGRES, "claim", "take_tickets", " and job.place = t.place", ""),
            sql(SQLITE, "claim", "take_tickets", " and j.place = t.place", ""),
        ),
    ),
    Patch(
        "late-heartbeat", "a heartbeat revives an expired lease",
        f"{MARKED}::test_a_heartbeat_after_the_deadline_revives_nothing",
        (
            sql(POSTGRES, "sweep", "extend",
                "and expires_at > coalesce(:now::timestamptz, clock_timestamp())", ""),
            sql(SQLITE, "sweep", "extend", " and lease.expires_tick > :tick", ""),
        ),
    ),
    Patch(
        "skip-locked", "claim waits for locked tickets",
        f"{MARKED}::test_a_claim_waits_for_nobody",
        (sql(POSTGRES, "claim", "take_tickets", "update skip locked) as r", "update) as r"),),
        (POSTGRES,),
    ),
    Patch(
        "one-comparison", "the crash path allows one attempt more",
        "tests/statements/test_retry_limits.py::test_the_last_attempt_is_the_same_one_on_both_paths",
        (
            python("lifecycle", "if charged and is_last_attempt(job.attempts, job.max_attempts):",
                   "if charged and job.attempts >= job.max_attempts - 0:"),
        ),
    ),
    Patch(
        "token-grows", "a job keeps its token when it is put in line",
        f"{MARKED}::test_every_time_a_job_is_put_in_line_its_token_grows",
        (
            sql(POSTGRES, "settle", "put_in_line", "token = j.token + 1,", "token = j.token,"),
            sql(SQLITE, "settle", "put_in_line", "set token = token + 1,", "set token = token,"),
        ),
    ),
    Patch(
        "begin-immediate", "a writing transaction begins without the lock",
        "tests/statements/test_transactions.py"
        "::test_a_transaction_that_reads_before_it_writes_waits_for_the_lock_first",
        (python("store/sqlite", '"begin immediate"', '"begin"'),),
        (SQLITE,),
    ),
    Patch(
        "child-after-parents", "nobody looks for unfinished parents",
        f"{FLOWS}::test_a_child_waits_for_all_of_its_parents",
        (
            python("lifecycle", "lambda ends: not (ends.unfinished or ends.any_unsuccessful)",
                   "lambda ends: not ends.any_unsuccessful"),
            sql(POSTGRES, "settle", "freed_children", "where not j.unfinished or", "where true or"),
            sql(SQLITE, "settle", "freed_children", "where (not exists", "where (true or exists"),
        ),
    ),
    Patch(
        "skip-goes-down", "children of skipped jobs are not looked at",
        f"{FLOWS}::test_what_depends_on_a_skipped_node_is_skipped",
        (
            python("store/settle", "        _, ids = await finish(tx, await _free_or_end(tx, ids))",
                   "        await finish(tx, await _free_or_end(tx, ids))\n        return"),
        ),
    ),
    Patch(
        "freed-once", "every child of a parent that ends is looked at, wherever it stands",
        f"{FLOWS}::test_a_child_that_runs_is_not_freed_by_another_parent",
        (
            sql(POSTGRES, "settle", "freed_children", "        and parked = 'parents'", ""),
            sql(POSTGRES, "settle", "lock_freed", "  and j.parked = 'parents'\n", ""),
            sql(SQLITE, "settle", "freed_children", "  and j.parked = 'parents'\n", ""),
        ),
    ),
    Patch(
        "freed-held", "a child that is freed gets its ticket, held or not",
        f"{FLOWS}::test_a_held_child_that_is_freed_does_not_run",
        (
            sql(POSTGRES, "settle", "put_in_line", "b.due is null and not j.held then",
                "b.due is null then"),
            sql(POSTGRES, "settle", "put_in_line", "case when j.held then 'held' end", "null"),
            python("store/settle", "due is not None or bool(held) or", "due is not None or"),
        ),
    ),
    Patch(
        "freed-token", "a child keeps its token when it is freed",
        f"{FLOWS}::test_a_child_that_is_freed_has_a_new_token",
        (
            sql(POSTGRES, "settle", "put_in_line", "token = j.token + 1,", "token = j.token,"),
            sql(SQLITE, "settle", "free", "token = token + 1,", "token = token,"),
        ),
    ),
    Patch(
        "end-after-all", "the first of the last nodes ends the workflow",
        f"{FLOWS}::test_a_workflow_is_open_while_one_of_its_last_nodes_is",
        tuple(
            sql(dialect, "workflow", "end_workflows", "and not exists", "or false and exists")
            for dialect in BOTH
        ),
    ),
    Patch(
        "end-after-locks", "the row of the workflow is not locked before the decision",
        f"{FLOWS}::test_a_workflow_whose_last_two_nodes_end_together_ends",
        (sql(POSTGRES, "workflow", "lock_workflows", "\nfor update", ""),),
        (POSTGRES,),
    ),
    Patch(
        "finaliser-last", "one success is enough for the finaliser",
        f"{FLOWS}::test_the_finaliser_runs_once_and_after_all_others",
        (python("store/workflows", '"when": When.ALL_FINISHED}', '"when": When.ANY_SUCCEEDED}'),),
    ),
    Patch(
        "grow-fence", "whoever says that the job is theirs adds to its workflow",
        f"{FLOWS}::test_a_zombie_adds_nothing_to_its_workflow",
        (
            python("store/workflows", "held = await hold_job(tx, worker, job)\n",
                   "held = await hold_job(tx, worker, job) or (0,) * 7\n"),
        ),
    ),
    Patch(
        "grow-asked-to-stop", "a job that is asked to stop adds to its workflow",
        f"{FLOWS}::test_one_that_is_asked_to_stop_adds_nothing",
        (python("store/workflows", "    if held[4]:\n", "    if False:\n"),),
    ),
    Patch(
        "grow-keeps-open", "the end does not wait for what was added",
        f"{FLOWS}::test_a_workflow_is_open_while_what_was_added_is",
        (python("store/workflows", "    if last:\n", "    if False:\n"),),
    ),
    Patch(
        "cancelled-outlasts-nobody", "a waiting node is cancelled like any other job",
        f"{FLOWS}::test_a_cancelled_node_leaves_the_end_to_its_parents",
        (python("store/flowing", "    if live:\n        child", "    if False:\n        child"),),
    ),
    Patch(
        "replay-goes-down", "the node alone is replayed",
        f"{FLOWS}::test_a_replay_brings_back_what_was_skipped_below",
        (python("store/flowing", "    ids = {row[0] for row in found}\n",
                "    ids = {row[0] for row in found} & seeds\n"),),
    ),
    Patch(
        "step-fence", "whoever says that the job is theirs records its steps",
        f"{FLOWS}::test_a_zombie_records_no_step_that_counts",
        (python("store/steps", "    if not rows:\n        return STALE\n",
                "    rows = rows or [(0,) * 7]\n"),),
    ),
    Patch(
        "step-once", "the last one who records a step is believed",
        f"{FLOWS}::test_what_a_step_has_answered_stays",
        tuple(
            sql(dialect, "step", "record_step", "on conflict (job_id, name) do nothing",
                "on conflict (job_id, name) do update set result = excluded.result")
            for dialect in BOTH
        ),
    ),
    Patch(
        "gate-counts-others", "a worker counts its own places",
        f"{GATES}::test_places_of_other_workers_count",
        (
            sql(POSTGRES, "gate", "look_at_gates",
                "select g.gate,\n           coalesce(sum(least(w.live, s.places)) filter "
                "(where w.worker <> :worker), 0)::int as others",
                "select g.gate, 0 as others"),
            python("store/gates_sqlite", "Use(sum(used.values()) - mine, mine,", "Use(0, mine,"),
        ),
    ),
    Patch(
        "gate-counts-live", "what has passed is counted, whether it runs or has ended",
        f"{GATES}::test_a_place_is_free_when_its_job_has_ended",
        (
            sql(POSTGRES, "gate", "look_at_gates",
                "else (select sum(l.live) from tenure.gate_live l\n"
                "                               where l.gate = g.gate and l.worker = p.worker) end",
                "else p.passed end"),
            python("store/gates_sqlite", "if not (alone and", "if False and not (alone and"),
        ),
    ),
    Patch(
        "gate-one-claim", "claims look at a gate side by side",
        f"{GATES}::test_two_claims_at_once_keep_the_limit",
        (sql(POSTGRES, "gate", "open_gates", " for update skip locked) as g", ") as g"),),
        (POSTGRES,),
    ),
    Patch(
        "gate-turn-at-end", "the end of a job gives no turn",
        f"{GATES}::test_the_end_of_a_job_gives_the_next_one_its_turn",
        (
            python("store/settle",
                   "        await leave_gates(tx, moved.lines)\n"
                   "    finished = [(row[0], row[2], State.SUCCEEDED)",
                   "        pass\n    finished = [(row[0], row[2], State.SUCCEEDED)"),
        ),
    ),
    Patch(
        "gate-order", "the last one in a line goes first",
        f"{GATES}::test_one_at_a_time_means_in_order",
        (
            sql(POSTGRES, "gate", "take_gated", "order by gated.priority, gated.place limit",
                "order by gated.priority, gated.place desc limit"),
            sql(SQLITE, "gate", "take_gated", "order by priority, place limit",
                "order by priority, place desc limit"),
        ),
    ),
    Patch(
        "gate-tokens-used", "nobody writes down what was used of tokens",
        f"{GATES}::test_what_has_started_has_used_a_token",
        (python("store/gates", "    if used:\n", "    if False:\n"),),
    ),
    Patch(
        "gate-clock-back", "time that went back counts like time that has passed",
        f"{GATES}::test_a_clock_that_goes_back_brings_no_tokens",
        (python("gate", "max(0.0, age_seconds)", "abs(age_seconds)"),),
    ),
    Patch(
        "gate-turns", "a line that was served stays at the head of the turns",
        f"{GATES}::test_lines_take_turns",
        (python("gate", "(heads, (line.tickets[last][0], last, n))",
                "(heads, (line.tickets[last][0], -last, n))"),),
    ),
    Patch(
        "gate-tenant", "a line is named by its key alone",
        f"{GATES}::test_keys_of_two_tenants_are_two_keys",
        (python("gate", 'f"{tenant}{SEPARATOR}{key}"', 'f"{SEPARATOR}{key}"'),),
    ),
)  # fmt: skip


def copy_tree(to: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, to / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", to)


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests of a copied tree against its own code."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "-n", "0", "-k", "not async",
         "-p", "no:cacheprovider", "--timeout", "60", *tests],
        cwd=tree, env=os.environ | {"PYTHONPATH": str(tree / "src"), "COLUMNS": "400"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_SECONDS,
    )  # fmt: skip
    return done.returncode, done.stdout


def failures(output: str) -> Iterator[tuple[str, str, str]]:
    """The failed tests in a closing summary: (database, test, message)."""
    for test, message in re.findall(r"^FAILED \S+::(\S+)(?: - (.*))?$", output, re.MULTILINE):
        names = re.findall(r"\[(.*)\]", test)
        is_sqlite = bool(names) and ("sqlite" in names[0] or "apsw" in names[0])
        yield SQLITE if is_sqlite else POSTGRES, test, message


def take_out(patch: Patch) -> tuple[bool, str]:
    """Take one rule out of a copy of the tree. True if its test noticed."""
    with tempfile.TemporaryDirectory(prefix="tenure-rules-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        try:
            for edit in patch.edits:
                edit.apply(tree)
        except DoesNotApply as error:
            return False, f"THE PATCH NO LONGER APPLIES: {error}"
        _, output = run_tests(tree, [patch.test])
    failed = list(failures(output))
    missing = set(patch.noticed_on) - {database for database, _, _ in failed}
    if missing:
        return False, f"NOT NOTICED on {', '.join(sorted(missing))}\n{output[-2000:]}"
    if BROKEN.search(output) or re.search(r"^ERROR ", output, re.MULTILINE):
        return False, f"THE PATCH BREAKS THE CODE\n{output[-2000:]}"
    seen = {database: message for database, _, message in reversed(failed)}
    return True, "\n".join(f"      {database}: {seen[database]:.140}" for database in sorted(seen))


def without_patches(tests: Sequence[str]) -> bool:
    """Do the tests pass on the code as it is?"""
    with tempfile.TemporaryDirectory(prefix="tenure-rules-") as folder:
        copy_tree(Path(folder))
        status, output = run_tests(Path(folder), tests)
    if status != 0:
        print(output)
        print("The tests fail without any patch; nothing can be concluded.")
    return status == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("rules", nargs="*", help="names of rules; all if none is given")
    parser.add_argument("--list", action="store_true", help="show the rules and end")
    parser.add_argument("--jobs", type=int, default=2, help="how many copies to test at a time")
    options = parser.parse_args(arguments)
    unknown = set(options.rules) - {patch.rule for patch in PATCHES}
    if unknown:
        parser.error(f"there is no rule {', '.join(sorted(unknown))}")
    chosen = [patch for patch in PATCHES if not options.rules or patch.rule in options.rules]
    if options.list:
        for patch in chosen:
            print(f"{patch.rule:<26} {patch.how}")
        return 0
    started = time.monotonic()
    if not without_patches(sorted({patch.test for patch in chosen})):
        return 1
    missed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for patch, (noticed, report) in zip(chosen, pool.map(take_out, chosen), strict=True):
            print(
                f"{'ok  ' if noticed else 'FAIL'} {patch.rule}: {patch.how}\n{report}", flush=True
            )
            missed += not noticed
    seconds = time.monotonic() - started
    print(f"{len(chosen) - missed} of {len(chosen)} rules noticed, {seconds:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
