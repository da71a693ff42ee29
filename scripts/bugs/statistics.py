"""Bugs of statistics: ends that count twice, not at all, or in the wrong place."""

from scripts.bugs.bug import POSTGRES, SQLITE, UNUSED, Bug, python, sql

_CONTRACT = "tests/contract/test_statistics.py::"
_WORKER = "tests/worker/test_statistics.py::"
_NOBODY = UNUSED + "look at statistics"

STATISTICS = (
    Bug(
        "counts-written-twice",
        "what a process has counted is added again when it is sent again",
        _CONTRACT + "test_a_row_is_written_once",
        (
            python(
                "store/statistics/write", "at=tx.time(at), adds=False", "at=tx.time(at), adds=True"
            ),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "refused-end-counted",
        "a worker counts the end of a job that is no longer its own",
        _WORKER + "test_an_end_that_was_refused_is_not_counted",
        (
            python(
                "worker/events",
                "            return None\n        spent",
                '            return "succeeded"\n        spent',
            ),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "last-counts-lost",
        "a worker that ends does not write what it has counted",
        _WORKER + "test_every_end_is_counted_once",
        (
            python(
                "worker/process",
                "if why := await _trouble(self._upkeep.write_statistics):",
                "if why := self._start_error:",
            ),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "unsent-counts-lost",
        "counts that the store could not take are forgotten",
        _WORKER + "test_statistics_wait_for_the_store",
        (
            python(
                "worker/upkeep/upkeep",
                "            at, rows = unsent[0]\n",
                "            at, rows = unsent.popleft()\n",
            ),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "hours-replaced",
        "an hour that is added up in two steps has the second one only",
        _CONTRACT + "test_prune_adds_up_in_small_steps",
        (
            python(
                "store/statistics/write", "at=tx.time(at), adds=True", "at=tx.time(at), adds=False"
            ),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "hours-without-times",
        "what is added up to hours loses how long jobs ran",
        _CONTRACT + "test_prune_adds_up_to_hours_and_days",
        (python("rules/statistics", "        self.runs = _sum(self.runs, other.runs)\n", ""),),
        unseen=_NOBODY,
    ),
    Bug(
        "days-forgotten",
        "hours are deleted, and not added up to days",
        _CONTRACT + "test_prune_adds_up_to_hours_and_days",
        (
            python(
                "store/statistics/write",
                "_add_up(scope, HOUR_SECONDS, DAY_SECONDS,",
                "_add_up(scope, HOUR_SECONDS, None,",
            ),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "bound-in-next-bucket",
        "a time that equals a bound is counted as longer",
        "tests/unit/test_statistics.py::test_a_bound_belongs_to_its_bucket",
        (
            python(
                "worker/counting",
                "from bisect import bisect_left\n",
                "from bisect import bisect_right as bisect_left\n",
            ),
        ),
        noticed_on=(),
        unseen=_NOBODY,
    ),
    Bug(
        "quantile-of-the-next-bucket",
        "a quantile is taken from the bucket after its own",
        "tests/unit/test_statistics.py::test_a_quantile_is_in_the_bucket_of_the_true_one",
        (python("rules/statistics", "below + count >= wanted", "below >= wanted"),),
        noticed_on=(),
        unseen=_NOBODY,
    ),
    Bug(
        "cancel-not-counted",
        "a job that an operator cancels is not counted",
        _CONTRACT + "test_ends_without_a_settlement_are_counted_with_them",
        (python("store/moves", "if by_id[job.id].lease is None", "if by_id[job.id].lease == 0"),),
        unseen=_NOBODY,
    ),
    Bug(
        "settled-counted-twice",
        "a failure is counted by its worker, and by the store again",
        _CONTRACT + "test_settlements_are_left_to_the_worker",
        (python("store/moves", "if by_id[job.id].lease is None", "if by_id[job.id]"),),
        unseen=_NOBODY,
    ),
    Bug(
        "crash-not-counted",
        "an attempt whose worker has died is not counted",
        _CONTRACT + "test_a_crash_is_counted_and_so_is_the_end_that_it_brings",
        (python("store/jobs/sweep", "    await count_ends(tx, crashed)\n", ""),),
        unseen=_NOBODY,
    ),
    Bug(
        "asked-to-stop-not-told",
        "a worker counts a retry where the store has cancelled the job",
        _CONTRACT + "test_a_claim_that_meets_a_cancel_request_counts",
        (python("store/jobs/settle", "_was_asked_to_stop(settlement, move)", "False"),),
        unseen=_NOBODY,
    ),
    Bug(
        "wait-since-promotion",
        "a wait begins when a due job is promoted, and not when it is due",
        _WORKER + "test_a_wait_begins_when_the_job_is_ready_and_ends_with_its_start",
        (
            sql(
                POSTGRES,
                "sweep",
                "promote",
                "queued_at = j.due_at",
                "queued_at = (select now from t)",
            ),
            sql(SQLITE, "sweep", "promote", "queued_at = due_at", "queued_at = :now"),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "depth-always-counted",
        "every worker counts all live jobs every time",
        _CONTRACT + "test_the_depth_is_that_of_the_last_sample",
        (
            sql(
                POSTGRES,
                "statistic",
                "begin_depth",
                "where :force::boolean or",
                "where true or :force::boolean or",
            ),
            sql(SQLITE, "statistic", "begin_depth", "where :force or", "where true or :force or"),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "depth-without-gates",
        "jobs that wait at gates count as running",
        _CONTRACT + "test_the_depth_of_each_state_equals_a_recount",
        (
            sql(
                POSTGRES,
                "statistic",
                "count_depth",
                "from tenure.gated group by queue",
                "from tenure.gated where false group by queue",
            ),
            sql(
                SQLITE,
                "statistic",
                "count_depth",
                "from tenure.gated group by queue",
                "from tenure.gated where false group by queue",
            ),
        ),
        unseen=_NOBODY,
    ),
)
