"""Bugs of the options of jobs and workers: workers that end, deadlines, replacement, batches."""

from scripts.bugs.bug import POSTGRES, SQLITE, UNUSED, Bug, python, sql

NONE: tuple[str, ...] = ()
ENDS = UNUSED + "end a worker by itself"
BATCHES = UNUSED + "run batches"
REPLACES = UNUSED + "replace waiting jobs"
DEADLINES = UNUSED + "enqueue jobs with deadlines"

OPTIONS = (
    Bug(
        "idle-beside-a-running-job", "jobs on leases are not work",
        "tests/contract/test_idle.py::test_a_running_job_is_work_until_it_ends",
        (
            sql(POSTGRES, "inspect", "is_busy", "where j.queue in (select queue from served))",
                "where false)"),
            sql(SQLITE, "inspect", "is_busy",
                "where j.queue in (select value from json_each(:queues)))", "where false)"),
        ),
        unseen=ENDS,
    ),
    Bug(
        "never-idle", "paused queues have work for ever",
        "tests/contract/test_idle.py::test_held_jobs_and_paused_queues_are_no_work",
        (
            sql(POSTGRES, "inspect", "is_busy", "and p.paused_at is not null)", "and false)"),
            sql(SQLITE, "inspect", "is_busy", "and p.paused_at is not null)", "and false)"),
        ),
        unseen=ENDS,
    ),
    Bug(
        "more-than-max-jobs", "a claim may bring more jobs than are left",
        "tests/worker/test_ending.py::test_a_worker_starts_no_more_jobs_than_it_may",
        (python("worker/claiming/claimer", "most = min(ask.most, left)", "most = ask.most"),),
        NONE,
        unseen=ENDS,
    ),
    Bug(
        "put-back-counts", "jobs that were put back unstarted use up max_jobs",
        "tests/worker/test_ending.py::test_jobs_that_are_put_back_do_not_count",
        (python("worker/claiming/intake", "            self.left += count", "            pass"),),
        NONE,
        unseen=ENDS,
    ),
    Bug(
        "child-for-ever", "a child process is never replaced",
        "tests/worker/test_ending.py::test_a_child_is_replaced_after_its_jobs",
        (python("worker/children/minder", " or child.jobs == self._max_jobs:", ":"),),
        NONE,
        unseen=ENDS,
    ),
    Bug(
        "handed-out-late", "a claim hands out jobs that were not started in time",
        "tests/contract/test_deadlines.py::test_a_claim_skips_what_was_not_started_in_time_and_goes_on",
        (
            sql(POSTGRES, "claim", "take_tickets", "and j.attempts = 0 then 2 else 0 end",
                "and false then 2 else 0 end"),
            python("store/sqlite/tx", "_replace(ends=2) if is_late and", "_replace(ends=2) if False and"),
        ),
        unseen=DEADLINES,
    ),
    Bug(
        "expired-while-running", "jobs that run are ended as expired",
        "tests/contract/test_deadlines.py::test_what_no_claim_meets_is_ended_by_upkeep",
        (python("store/jobs/expire",
                "[job for job in jobs if job.parked is not None or job.id in taken]", "jobs"),),
        unseen=DEADLINES,
    ),
    Bug(
        "expired-after-an-attempt", "a job that has used an attempt expires",
        "tests/contract/test_deadlines.py::test_a_job_that_has_used_an_attempt_does_not_expire",
        (
            sql(POSTGRES, "claim", "take_tickets", "and j.attempts = 0 then 2", "then 2"),
            python("store/sqlite/tx", "ticket.start_by < now and not ticket.attempts",
                   "ticket.start_by < now"),
        ),
        unseen=DEADLINES,
    ),
    Bug(
        "expire-never-comes-on", "upkeep looks at the same running jobs for ever",
        "tests/contract/test_deadlines.py::test_upkeep_walks_past_jobs_that_run",
        (python("store/jobs/expire", "        page = await scope.transact(op)\n",
                "        page = await scope.transact(op)\n"
                "        page = page if page is not None and page.ended else None\n"),),
        unseen=DEADLINES,
    ),
    Bug(
        "expired-charged", "a job whose end could not be written is charged an attempt, and runs late",
        "tests/contract/test_deadlines.py::test_if_the_end_cannot_be_written_the_job_is_not_handed_out_and_not_charged",
        (
            sql(POSTGRES, "claim", "take_tickets", " or b.block = -2 then", " then"),
            python("store/sqlite/tx", "unstarted = first.ends == 2 or (", "unstarted = ("),
        ),
        unseen=DEADLINES,
    ),
    Bug(
        "replaces-a-running-job", "a job that was claimed gets new arguments and a second ticket",
        "tests/contract/test_replace.py::test_a_job_that_runs_is_not_changed",
        (python("store/jobs/replace", "if job.parked is None and not await take_ticket(tx, job):",
                "if job.parked is None and await take_ticket(tx, job) is None:"),),
        unseen=REPLACES,
    ),
    Bug(
        "postponed-for-ever", "the bound of a postponement is not kept",
        "tests/contract/test_replace.py::test_a_job_is_not_postponed_for_ever",
        (python("store/jobs/replace", "at_most=rule.postpone_at_most_seconds", "at_most=None"),),
        unseen=REPLACES,
    ),
    Bug(
        "replaced-twice", "a repeat after a COMMIT without a reply replaces again",
        "tests/faults/test_unanswered_replace.py::test_a_waiting_job_is_replaced_once_and_the_answer_says_so",
        (python("store/jobs/replace", "if not any(_rule(job) for _, job in keyed):", "if True:"),),
        (POSTGRES,),
        unseen=REPLACES,
    ),
    Bug(
        "key-of-old-arguments", "the key still tells of the arguments that were replaced",
        "tests/contract/test_replace.py::test_the_key_tells_of_the_new_arguments",
        (python("store/jobs/replace", "    if changes_args:\n        tenant", "    if False:\n        tenant"),),
        unseen=REPLACES,
    ),
    Bug(
        "batch-fails-as-one", "an exception in the place of a result fails the whole batch",
        "tests/worker/test_batches.py::test_one_failing_item_does_not_fail_the_others",
        (python("worker/running/batch", "        results = checked_results(returned, len(items))\n",
                "        results = checked_results(returned, len(items))\n"
                "        for result in results:\n"
                "            if isinstance(result, BaseException):\n"
                "                raise result\n"),),
        NONE,
        unseen=BATCHES,
    ),
    Bug(
        "batch-takes-many-slots", "each job of a batch frees a slot",
        "tests/worker/test_batches.py::test_a_batch_takes_one_slot_of_its_queue",
        (python("worker/claiming/intake",
                "if leased.batch is not None and leased.batch[0] is not leased:", "if False:"),),
        NONE,
        unseen=BATCHES,
    ),
    Bug(
        "batch-of-too-few", "a worker claims no more jobs for a batch than it has slots",
        "tests/worker/test_batches.py::test_a_batch_is_claimed_at_once_even_for_one_slot",
        (python("worker/claiming/claimer", "room[kind] += self._intake.batches.room(kind)", "pass"),),
        NONE,
        unseen=BATCHES,
    ),
    Bug(
        "batch-stops-with-one", "a timeout of one item interrupts the whole handler",
        "tests/worker/test_batches.py::test_a_timeout_of_one_item_does_not_end_the_others",
        (python("worker/running/batch",
                "if all(leased.stop is not None for leased in members if not leased.end_taken):",
                "if True:"),),
        NONE,
        unseen=BATCHES,
    ),
)  # fmt: skip
