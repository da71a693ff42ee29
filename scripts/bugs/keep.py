"""Bugs of retention, of keys that outlive their jobs, and of jobs whose task no worker has."""

from scripts.bugs.bug import POSTGRES, SQL, SQLITE, UNUSED, Bug, Edit, python, sql

_KEEP = "tests/contract/test_keep.py::"
_KEYS = "tests/contract/test_keys.py::"
_NOBODY = UNUSED + "say how long a job is kept"
_NO_KEYS = UNUSED + "look at keys by their names"

KEEP = (
    Bug(
        "kept-pruned-by-default", "prune removes jobs whose task keeps them for longer",
        _KEEP + "test_a_job_is_kept_as_long_as_its_task_says",
        (
            sql(POSTGRES, "operate", "prune_finished",
                "features & {WORKFLOW} = 0 and keep_until is null", "features & {WORKFLOW} = 0"),
            sql(POSTGRES, "operate", "prune_finished", "      and h.keep_until is null\n", ""),
            sql(SQLITE, "operate", "prune_finished", " and keep_until is null", ""),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "kept-for-ever-by-mistake", "prune forgets the jobs that are kept for a time",
        _KEEP + "test_every_other_end_has_a_length_of_its_own",
        (python("store/prune", "    removed = after = 0\n",
                '    removed = after = 0\n    if statement == "prune_kept":\n        return 0\n'),),
        unseen=_NOBODY,
    ),
    Bug(
        "not-kept-leaves-story", "the events and steps of a job that is not kept stay",
        _KEEP + "test_a_job_that_is_not_kept_is_gone_with_its_end",
        (python("store/moves", "    gone = [job.id for job in jobs if not job.kept]\n",
                "    gone = [job.id for job in jobs if job.kept is None]\n"),),
        unseen=_NOBODY,
    ),
    Bug(
        "not-kept-holds-its-key", "a job that is not kept keeps its unique key",
        _KEEP + "test_the_keys_of_jobs_that_are_not_kept_behave_as_always",
        (python("store/moves", "if job.features & Feature.KEY and job.key is not None",
                "if job.features & Feature.KEY and job.key is not None and job.kept"),),
        unseen=_NOBODY,
    ),
    Bug(
        "not-kept-lost-to-children", "a job is not kept although others wait for its result",
        _KEEP + "test_the_children_of_a_job_that_is_not_kept_see_its_result",
        (
            sql(POSTGRES, "settle", "succeed",
                "from ended where keep is distinct from 0 or features & {CHILDREN | WORKFLOW} <> 0",
                "from ended where keep is distinct from 0"),
            sql(SQLITE, "settle", "succeed_keeping",
                "\n   or j.features & {CHILDREN | WORKFLOW} <> 0;", ";"),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "children-robbed-by-prune", "prune removes a parent before its child has run",
        _KEEP + "test_the_children_of_a_job_that_is_not_kept_see_its_result",
        (
            sql(POSTGRES, "operate", "prune_kept", "h.features & {CHILDREN} <> 0", "false"),
            sql(SQLITE, "operate", "prune_kept", "w.features & {CHILDREN} = 0", "true"),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "workflow-pruned-early", "a workflow goes although one of its jobs is kept for longer",
        _KEEP + "test_a_workflow_stays_as_long_as_one_of_its_jobs",
        (
            sql(POSTGRES, "workflow", "due_workflows", "h.keep_until >", "h.keep_until <"),
            sql(SQLITE, "workflow", "due_workflows", "h.keep_until >", "h.keep_until <"),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "day-dropped-with-kept", "a whole day is dropped with a job that is kept for longer",
        "tests/contract/test_prune.py::test_a_day_with_a_job_that_is_kept_for_longer_stays",
        (Edit(f"{SQL}/postgres/sql/migrations/0002.sql", "        continue when is_kept;\n", ""),),
        (POSTGRES,),
        unseen=_NOBODY,
    ),
    Bug(
        "worker-overrules-task", "the length of the worker comes before that of the task",
        _KEEP + "test_a_worker_says_it_for_jobs_that_do_not",
        (
            sql(POSTGRES, "settle", "succeed",
                "select gone.*, coalesce(keep_succeeded_seconds, (:keep::json ->> queue)"
                "::double precision) as keep",
                "select gone.*, coalesce((:keep::json ->> queue)::double precision, "
                "keep_succeeded_seconds) as keep"),
            sql(SQLITE, "settle", "succeed_keeping",
                """min(:now + cast(1e6 * coalesce(j.keep_succeeded_seconds, """
                """case when :keep is not null then :keep ->> ('$."' || j.queue || '"') end)""",
                """min(:now + cast(1e6 * coalesce("""
                """case when :keep is not null then :keep ->> ('$."' || j.queue || '"') end, """
                """j.keep_succeeded_seconds)"""),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "replay-forgets-retention", "a replayed job is kept by default",
        _KEEP + "test_a_replay_keeps_what_the_task_says",
        (
            sql(POSTGRES, "operate", "replay",
                "gate, gate_key, keep_succeeded_seconds, keep_other_seconds,\n",
                "gate, gate_key, null, null,\n"),
            sql(SQLITE, "operate", "replay", "h.keep_succeeded_seconds, h.keep_other_seconds",
                "null, null"),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "retake-by-the-first", "the first job of a call decides for all of them whether a key is retaken",
        "tests/contract/test_keys.py::test_of_one_call_only_the_jobs_that_may_take_the_key_of_failed_work_do",
        (python("store/keys", "                asking.add(key)\n", "                pass\n"),),
        unseen=UNUSED + "take the keys of failed jobs",
    ),
    Bug(
        "wrong-clock-trusted", "prune trusts every clock",
        _KEEP + "test_a_clock_that_has_jumped_ahead_deletes_nothing",
        (python("rules/retention", "    if now - trusted_at <= JUMP:",
                "    if now - trusted_at <= timedelta.max:"),),
        unseen=UNUSED + "set the clock years ahead",
    ),
    Bug(
        "doubt-forgotten", "the doubt about a clock begins anew each time",
        _KEEP + "test_a_doubted_clock_is_trusted_after_a_day",
        (python("rules/retention", "    if doubted_at is None or not",
                "    if doubted_at is not None or not"),
         python("rules/retention", "doubted_at <= now <= doubted_at + PROBATION_ENDS",
                "now <= now")),
        unseen=UNUSED + "set the clock years ahead",
    ),
    Bug(
        "prune-at-will", "a prune runs although the last one was a moment ago",
        _KEEP + "test_a_prune_runs_only_when_it_is_due",
        (python("store/prune", "0 <= ago < every_seconds", "0 <= ago < 0"),),
        unseen=UNUSED + "ask whether a prune is due",
    ),
    Bug(
        "key-of-the-deleted", "a deleted job keeps its key",
        _KEYS + "test_delete_frees_the_key",
        (python("store/jobs/operate", "    await free_keys_of(tx, [job])\n", ""),),
        unseen=_NO_KEYS,
    ),
    Bug(
        "key-of-the-replayed", "a replayed job loses its key to the next enqueue",
        _KEYS + "test_a_replayed_job_keeps_its_key",
        (
            sql(POSTGRES, "enqueue", "hold_key", "set outcome = null,\n    expires_at",
                "set expires_at"),
            sql(SQLITE, "enqueue", "hold_key", "set outcome = null, expires_at",
                "set expires_at"),
        ),
        unseen=_NO_KEYS,
    ),
    Bug(
        "success-done-again", "work that succeeded is enqueued again on request",
        _KEYS + "test_work_that_succeeded_is_not_done_again",
        (python("store/keys", "_UNSUCCESSFUL = tuple(FINAL_STATES - {State.SUCCEEDED})",
                "_UNSUCCESSFUL = tuple(FINAL_STATES)"),),
        unseen=_NO_KEYS,
    ),
    Bug(
        "live-key-freed", "the key of a live job is freed by name",
        _KEYS + "test_a_key_is_freed_by_name",
        (
            sql(POSTGRES, "enqueue", "free_key", "k.outcome is not null or not exists",
                "true or not exists"),
            sql(SQLITE, "enqueue", "free_key", "  and not exists", "  and true or not exists"),
        ),
        unseen=_NO_KEYS,
    ),
    Bug(
        "unknown-task-for-ever", "a job whose task no worker has is tried for ever",
        "tests/contract/test_unknown_tasks.py::test_after_a_week_the_job_fails",
        (python("rules/lifecycle", "or waited_seconds < give_up:", "or waited_seconds >= 0:"),),
        unseen=UNUSED + "enqueue what no worker knows",
    ),
    Bug(
        "unknown-task-row-per-try", "each try of a job whose task no worker has is a row",
        "tests/contract/test_unknown_tasks.py::test_all_tries_are_one_event",
        (python("store/jobs/settle", "        if last.kind == UNKNOWN_TASK:",
                '        if last.kind == "another":'),),
        unseen=UNUSED + "enqueue what no worker knows",
    ),
)  # fmt: skip
