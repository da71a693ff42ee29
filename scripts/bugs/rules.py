"""The marked rules, each taken out of the code: what stands between the design and lost work.

A rule may be taken out in several ways. Each has its own test, which must notice on each database
that the patch is for, whatever else finds it. See tests/support/rules.py.
"""

from scripts.bugs.bug import (
    BEHIND,
    BOTH,
    IN_ORDER,
    POSTGRES,
    SQL,
    SQLITE,
    UNUSED,
    Bug,
    Edit,
    python,
    sql,
)
from scripts.bugs.flow_rules import FLOWS

DEEP = " " * 16  # the indentation inside a case

AS_IT_CAME = python("store/jobs/settle", "in sorted(settlements, key=_by_id):", "in settlements:")

JOBS = (
    Bug(
        "void-tickets", "claim gives up after its first round",
        "tests/contract/test_claim.py::test_a_claim_that_met_only_void_tickets_goes_on_at_once",
        (python("store/jobs/claim", "if taken.claim or not taken.tickets:", "if True:"),),
        unseen=BEHIND + "the next look finds what the claim has left",
    ),
    Bug(
        "flagged-not-handed-out", "claim hands out every live ticket",
        "tests/contract/test_claim.py::test_a_job_whose_cancellation_is_requested_is_finished_and_not_handed_out",
        (python("store/jobs/claim", " and not ticket.ends\n", "\n"),),
        unseen=IN_ORDER + "; what goes back in line is cancelled before",
    ),
    Bug(
        "lease-must-exist", "a success needs no lease",
        "tests/contract/test_zombies.py::test_a_zombie_settles_nothing",
        (
            sql(POSTGRES, "settle", "succeed",
                "lateral (select claimed_at from tenure.lease",
                "lateral (select max(claimed_at) as claimed_at from tenure.lease"),
            sql(SQLITE, "settle", "lease_of_worker", "select claimed_at from tenure.lease",
                "select max(claimed_at) from tenure.lease"),
        ),
        unseen=BEHIND + "the token; see settle-by-id and retry-by-id for both",
    ),
    Bug(
        "lease-must-exist", "a retry needs no lease",
        "tests/contract/test_zombies.py::test_a_zombie_settles_nothing",
        (
            sql(POSTGRES, "settle", "lock_leased",
                "lateral (select claimed_at, once from tenure.lease",
                "lateral (select coalesce(max(claimed_at), now()) as claimed_at, max(once) as once"
                " from tenure.lease"),
            sql(SQLITE, "settle", "lock_leased",
                "j.features, l.claimed_at", "j.features, coalesce(l.claimed_at, 0)"),
            sql(SQLITE, "settle", "lock_leased",
                "cross join tenure.lease as l on", "left join tenure.lease as l on"),
        ),
        unseen=BEHIND + "the token; see settle-by-id and retry-by-id for both",
    ),
    Bug(
        "token-guard", "a success looks at the id alone",
        "tests/contract/test_zombies.py::test_a_zombie_settles_nothing",
        (
            sql(POSTGRES, "settle", "succeed", " and j.token = b.token", ""),
            sql(SQLITE, "settle", "succeed", " and j.token = b.token", ""),
        ),
        unseen=BEHIND + "the lease; see settle-by-id and retry-by-id for both",
    ),
    Bug(
        "token-guard", "a retry looks at the id alone",
        "tests/contract/test_zombies.py::test_a_zombie_settles_nothing",
        (
            sql(POSTGRES, "settle", "lock_leased", " and token = b.token", ""),
            sql(POSTGRES, "settle", "lock_leased", "select j.id, j.token,", "select j.id, b.token,"),
            sql(SQLITE, "settle", "lock_leased", " and j.token = b.value ->> 'token'", ""),
            sql(SQLITE, "settle", "lock_leased", "select j.id, j.token,",
                "select j.id, b.value ->> 'token',"),
        ),
        unseen=BEHIND + "the lease; see settle-by-id and retry-by-id for both",
    ),
    Bug(
        "read-back", "a repeat does not look whether the first try landed",
        "tests/contract/test_settle.py::test_a_repeat_after_an_unanswered_commit_has_landed_already",
        (python("store/jobs/settle", "    if not read_back:\n", "    if True:\n"),),
    ),
    Bug(
        "read-back-own", "anybody's settlement counts as one's own",
        "tests/contract/test_settle.py::test_a_repeat_after_an_unanswered_commit_has_landed_already",
        (
            sql(POSTGRES, "settle", "recorded_ends",
                "where id = b.id and token = b.token and worker = :worker",
                "where id = b.id and token = b.token"),
            sql(SQLITE, "settle", "recorded_ends", "where h.worker = :worker", "where true"),
        ),
        unseen=BEHIND + "a token belongs to one worker",
    ),
    Bug(
        "read-back-own", "what a sweep ended counts as settled by the lost worker",
        "tests/contract/test_settle.py::test_what_a_sweep_ended_was_not_settled_by_its_worker",
        (
            sql(POSTGRES, "settle", "recorded_ends", "c.kind = 'crashed'", "c.kind = 'nothing'"),
            sql(SQLITE, "settle", "recorded_ends", "e.kind = 'crashed'", "e.kind = 'nothing'"),
            sql(SQLITE, "settle", "recorded_ends", "c.kind = 'crashed'", "c.kind = 'nothing'"),
        ),
    ),
    Bug(
        "read-back-same", "any settlement of the attempt counts as this one",
        "tests/contract/test_settle.py::test_a_second_settlement_has_landed_only_if_it_says_the_same",
        (python("store/jobs/settle", "key in recorded and is_recorded(s, recorded[key])",
                "key in recorded"),),
        unseen=UNUSED + "settle an attempt in two ways",
    ),
    Bug(
        "read-back-same", "a repeat is known by its name, not by what became of the job",
        "tests/contract/test_settle.py::test_a_repeat_is_known_by_what_became_of_the_job",
        (python("rules/lifecycle", "recorded.was_last and recorded.kind == State.FAILED",
                "False"),),
        unseen=UNUSED + "lose the reply to the settlement of a last attempt",
    ),
    Bug(
        "lease-goes-with-its-last-job", "only leases that the worker names are looked at",
        "tests/contract/test_settle.py::test_a_lease_goes_with_its_last_job_unless_the_worker_keeps_count",
        (python("store/jobs/settle", "done_leases = sorted({s.lease for s in batch.values()})",
                "done_leases = []"),),
        unseen=UNUSED + "settle without counting",
    ),
    Bug(
        "never-shorter", "a heartbeat sets the deadline, whatever it was",
        "tests/contract/test_leases.py::test_a_heartbeat_never_shortens_a_lease",
        (
            sql(SQLITE, "sweep", "extend",
                "max(expires_tick, :tick + cast(1e6 * :lease_seconds as integer))",
                ":tick + cast(1e6 * :lease_seconds as integer)"),
            sql(POSTGRES, "sweep", "extend", "        l.expires_at,\n", ""),
        ),
        unseen=UNUSED + "extend a lease by less than its length",
    ),
    Bug(
        "read-back-not-in-callers", "a repeat in the caller's transaction has landed",
        "tests/borrowing/test_transactions.py::test_a_transaction_that_is_run_again_after_its_commit_is_undone",
        (python("store/jobs/settle", ", read_back=False)", ", read_back=True)"),),
        unseen=UNUSED + "run a transaction of its own again",
    ),
    Bug(
        "lease-kept-while-live", "the worker is believed that its lease is used up",
        "tests/contract/test_settle.py::test_a_lease_goes_only_when_nothing_on_it_is_live",
        (
            sql(POSTGRES, "settle", "drop_leases", "and not exists (", "or false and exists ("),
            sql(SQLITE, "settle", "drop_leases", "and not exists (", "or false and exists ("),
        ),
        unseen=BEHIND + "the worker counts what is left; see partial-flush for both",
    ),
    Bug(
        "sweep-keeps-lease", "the sweep deletes the lease whatever is left on it",
        "tests/contract/test_races.py::test_a_sweep_leaves_a_job_that_is_being_settled_on_its_lease",
        (python("store/jobs/sweep", "gone = [id for id, jobs in left.items() if not jobs]",
                "gone = [*left]"),),
        (POSTGRES,),
        unseen=IN_ORDER,
    ),
    Bug(
        "charge-started", "every job of a lost block is charged",
        "tests/contract/test_leases.py::test_of_a_block_only_the_started_jobs_are_charged",
        (python("store/jobs/sweep", "self._alone or job.id in self._reported", "True"),),
    ),
    Bug(
        "charge-started", "reports of started jobs are ignored",
        "tests/contract/test_leases.py::test_of_a_block_only_the_started_jobs_are_charged",
        (python("store/jobs/sweep", "self._alone or job.id in self._reported", "self._alone"),),
    ),
    Bug(
        "charge-started", "a job alone on its lease is not charged",
        "tests/contract/test_leases.py::test_a_job_alone_on_its_lease_is_charged",
        (python("store/jobs/sweep", "self._alone or job.id in self._reported",
                "job.id in self._reported"),),
        unseen=BEHIND + "a heartbeat reports each job that has run for a while",
    ),
    Bug(
        "charge-block", "the last one left on a lease counts as alone",
        "tests/contract/test_races.py::test_a_job_left_on_a_swept_lease_is_not_charged_for_being_the_last",
        (python("store/jobs/sweep", "self._alone = lease.started is None and ", "self._alone = "),),
        (POSTGRES,),
        unseen=IN_ORDER,
    ),
    Bug(
        "suspects-alone", "suspects share a lease with the others",
        "tests/contract/test_claim.py::test_a_suspect_is_tried_alone_and_one_at_a_time",
        (
            sql(POSTGRES, "claim", "take_tickets", "when j.crashes > 0 then j.id", ""),
            python("store/sqlite/tx", "trusted = [ticket for ticket in others if not ticket.crashes]",
                   "trusted = others"),
            python("store/sqlite/tx", "[[ticket] for ticket in others if ticket.crashes]", "[]"),
        ),
        unseen=UNUSED + "kill its worker on purpose",
    ),
    Bug(
        "cancel-later-statement", "cancel does not lock the job before it looks for the ticket",
        "tests/contract/test_races.py::test_cancel_waits_for_a_promotion_in_flight_and_finds_the_new_ticket",
        (sql(POSTGRES, "operate", "lock_job", "for update", ""),),
        (POSTGRES,),
    ),
    Bug(
        "cancel-token", "cancel takes any ticket of the job",
        "tests/contract/test_operate.py::test_cancel_takes_no_void_ticket_for_the_jobs_own",
        tuple(
            sql(dialect, "operate", f"take_{table}_ticket", " and token = :token", "")
            for dialect in BOTH for table in ("due", "ready")
        ),
        unseen=IN_ORDER + "; there are no void tickets to take",
    ),
    Bug(
        "bulk-token", "cancel of many takes any ticket of a job",
        "tests/contract/test_bulk.py::test_no_void_ticket_is_taken_for_the_jobs_own",
        (
            sql(POSTGRES, "workflow", "take_due_tickets", " and d.token = b.token", ""),
            sql(POSTGRES, "workflow", "take_ready_tickets", " and r.token = b.token", ""),
            sql(SQLITE, "workflow", "take_due_tickets", "b.value ->> 'token'", "token"),
            sql(SQLITE, "workflow", "take_ready_tickets", "b.value ->> 'token'", "token"),
        ),
        unseen=IN_ORDER + "; there are no void tickets to take",
    ),
    Bug(
        "flagged-retry", "a retry ignores the request to cancel",
        "tests/contract/test_settle.py::test_a_job_whose_cancellation_is_requested_does_not_come_back",
        (
            python("rules/lifecycle",
                   f"if job.cancel_requested:\n{DEEP}return Move(State.CANCELLED, charged=True",
                   f"if False:\n{DEEP}return Move(State.CANCELLED, charged=True"),
        ),
    ),
    Bug(
        "flagged-release", "a snooze or release ignores the request to cancel",
        "tests/contract/test_settle.py::test_a_job_whose_cancellation_is_requested_does_not_come_back",
        (
            python("rules/lifecycle",
                   f"if job.cancel_requested:\n{DEEP}return Move(State.CANCELLED, reason",
                   f"if False:\n{DEEP}return Move(State.CANCELLED, reason"),
        ),
    ),
    Bug(
        "flagged-sweep", "a sweep ignores the request to cancel",
        "tests/contract/test_leases.py::test_a_job_whose_cancellation_is_requested_is_cancelled_by_a_sweep",
        (
            python("rules/lifecycle",
                   "if job.cancel_requested:\n        return Move(State.CANCELLED, charged=charged",
                   "if False:\n        return Move(State.CANCELLED, charged=charged"),
        ),
    ),
    Bug(
        "flagged-free", "the end of a parent ignores the request to cancel its child",
        "tests/contract/test_parents.py::test_a_child_whose_cancellation_is_requested_is_not_freed",
        (python("rules/lifecycle", "if cancel_requested:\n", "if False:\n"),),
        unseen=IN_ORDER + "; a waiting job is cancelled at once",
    ),
    Bug(
        "replay-token", "replay keeps the token",
        "tests/contract/test_operate.py::test_a_replayed_job_has_all_its_attempts_again",
        (
            sql(POSTGRES, "operate", "replay", "select id, token + 1,", "select id, token,"),
            sql(POSTGRES, "operate", "replay", "position, id, token + 1", "position, id, token"),
            sql(SQLITE, "operate", "replay", "h.token + 1", "h.token"),
        ),
    ),
    Bug(
        "replay-attempts", "replay keeps the attempts",
        "tests/contract/test_operate.py::test_a_replayed_job_has_all_its_attempts_again",
        (
            sql(POSTGRES, "operate", "replay", "priority, 0,\n", "priority, attempts,\n"),
            sql(SQLITE, "operate", "replay", " 0, h.max_attempts", " h.attempts, h.max_attempts"),
        ),
    ),
    Bug(
        "replay-key", "replay does not take the key",
        "tests/contract/test_unique.py::test_a_replay_is_refused_while_another_job_holds_the_key",
        (python("store/jobs/replay", "    await retake_key(tx, job)\n", ""),),
    ),
    Bug(
        "enqueue-repeat", "the repeat does not look into history",
        "tests/faults/test_unanswered.py::test_an_enqueue_whose_job_has_finished_before_the_repeat_makes_no_second_one",
        (python("store/jobs/enqueue", "if tx.repeat and not tx.collided and", "if False and"),),
        (POSTGRES,),
    ),
    Bug(
        "enqueue-compare", "whatever has the id is taken for our own",
        "tests/faults/test_unanswered.py::test_a_repeated_enqueue_does_not_take_another_job_for_its_own",
        (python("store/jobs/enqueue", "        if not same:\n", "        if False:\n"),),
        (POSTGRES,),
        unseen=UNUSED + "draw an id that another has drawn",
    ),
    Bug(
        "keys-not-null", "a unique index over nullable columns",
        "tests/contract/test_unique.py::test_no_part_of_a_unique_key_can_be_null",
        (
            Edit(f"{SQL}/postgres/sql/migrations/0001.sql",
                 '    tenant text collate "C" not null,\n    scope text collate "C" not null,\n'
                 '    key text collate "C" not null,\n',
                 "    tenant text,\n    scope text,\n    key text,\n"),
            Edit(f"{SQL}/postgres/sql/migrations/0001.sql",
                 "primary key (tenant, scope, key)", "unique (tenant, scope, key)"),
            Edit(f"{SQL}/sqlite/sql/migrations/0001.sql",
                 "    tenant text not null,\n    scope text not null,\n    key text not null,\n",
                 "    tenant text,\n    scope text,\n    key text,\n"),
            Edit(f"{SQL}/sqlite/sql/migrations/0001.sql",
                 "primary key (tenant, scope, key)\n) strict, without rowid",
                 "unique (tenant, scope, key)\n) strict"),
        ),
        unseen=UNUSED + "give a key without a tenant",
    ),
    Bug(
        "key-mine", "a job gives back a key that another job holds",
        "tests/contract/test_unique.py::test_a_late_end_does_not_free_the_key_of_the_next_holder",
        (
            sql(POSTGRES, "settle", "release_keys",
                " and k.job_id = b.job_id\n      and (k.until in", "\n      and (k.until in"),
            sql(SQLITE, "settle", "release_keys", "(tenant, scope, key, job_id)",
                "(tenant, scope, key)"),
            sql(SQLITE, "settle", "release_keys",
                "b.value ->> 'key', b.value ->> 'job_id'", "b.value ->> 'key'"),
        ),
        unseen=BEHIND + "a job that gives its key back still has it",
    ),
    Bug(
        "lock-by-id", "successes lock in the order of the batch",
        "tests/contract/test_races.py::test_settlements_lock_jobs_in_the_order_of_their_ids[succeed]",
        (sql(POSTGRES, "settle", "succeed", "    order by b.id\n", ""), AS_IT_CAME),
        (POSTGRES,),
    ),
    Bug(
        "lock-by-id", "retries lock in the order of the batch",
        "tests/contract/test_races.py::test_settlements_lock_jobs_in_the_order_of_their_ids[retry]",
        (sql(POSTGRES, "settle", "lock_leased", "\n      order by r.id) as b", ") as b"), AS_IT_CAME),
        (POSTGRES,),
    ),
    Bug(
        "decide-after-locks", "children are not locked before the decision",
        "tests/contract/test_races.py::test_the_last_two_parents_that_finish_together_free_their_child_once",
        (sql(POSTGRES, "settle", "lock_freed", "\nfor update", ""),),
        (POSTGRES,),
    ),
    Bug(
        "retry-deadlocks", "a deadlock is an error like others",
        "tests/contract/test_races.py::test_a_write_that_met_a_deadlock_lands[progress]",
        (python("store/postgres/errors", "    psycopg.errors.DeadlockDetected,\n", ""),),
        (POSTGRES,),
    ),
    Bug(
        "pause-sees-claims", "pause does not wait for claims in flight",
        "tests/contract/test_races.py::test_pause_returns_only_when_no_claim_from_before_is_open",
        (python("store/jobs/operate", "while older:", "while False:"),),
        (POSTGRES,),
        unseen=UNUSED + "pause a queue",
    ),
    Bug(
        "one-ticket", "any ticket with the job's token is valid",
        "tests/contract/test_claim.py::test_a_second_ticket_is_not_a_second_attempt",
        (
            sql(POSTGRES, "claim", "take_tickets", " and job.position = t.position", ""),
            sql(SQLITE, "claim", "take_tickets", " and j.position = t.position", ""),
        ),
        unseen=BEHIND + "no job has two tickets",
    ),
    Bug(
        "late-heartbeat", "a heartbeat revives an expired lease",
        "tests/contract/test_leases.py::test_an_expired_lease_is_lost_even_before_anybody_swept_it",
        (
            sql(POSTGRES, "sweep", "extend",
                "and expires_at > coalesce(:now::timestamptz, clock_timestamp())", ""),
            sql(SQLITE, "sweep", "extend", " and lease.expires_tick > :tick", ""),
        ),
        unseen=BEHIND + "a worker gives up by its own clock before it asks",
    ),
    Bug(
        "skip-locked", "claim waits for locked tickets",
        "tests/contract/test_races.py::test_a_claim_passes_over_a_locked_ticket_and_takes_the_best_other",
        (sql(POSTGRES, "claim", "take_tickets", "update skip locked) as r", "update) as r"),),
        (POSTGRES,),
    ),
    Bug(
        "one-comparison", "the crash path allows one attempt more",
        "tests/contract/test_attempts.py::test_the_last_attempt_is_the_same_one_for_errors_and_for_crashes",
        (
            python("rules/lifecycle", "if charged and is_last_attempt(job.attempts, job.max_attempts):",
                   "if charged and job.attempts >= job.max_attempts - 0:"),
        ),
    ),
    Bug(
        "token-grows", "a job keeps its token when it is put in line",
        "tests/contract/test_every_transition.py::test_a_job_gets_a_new_token_each_time_it_goes_back_to_its_queue",
        (
            sql(POSTGRES, "settle", "add_tickets", "token = j.token + 1,", "token = j.token,"),
            sql(SQLITE, "settle", "add_tickets", "set token = token + 1,", "set token = token,"),
        ),
    ),
    Bug(
        "begin-immediate", "a writing transaction begins without the lock",
        "tests/contract/test_transactions.py::test_a_transaction_that_reads_before_it_writes_waits_for_the_lock_first",
        (python("store/sqlite/session", '"begin immediate"', '"begin"'),),
        (SQLITE,),
        unseen=IN_ORDER,
    ),
)  # fmt: skip

RULES = (*JOBS, *FLOWS)
