"""The marked rules of workflows, steps and gates, each taken out of the code."""

from scripts.bugs.bug import BEHIND, BOTH, POSTGRES, SQLITE, Bug, python, sql

FLOWS = (
    Bug(
        "child-after-parents", "the store does not look for unfinished parents",
        "tests/contract/test_workflows.py::test_a_node_waits_for_all_of_its_parents_and_is_freed_with_a_new_token",
        (
            python("rules/lifecycle", "lambda ends: not (ends.unfinished or ends.any_unsuccessful)",
                   "lambda ends: not ends.any_unsuccessful"),
            sql(POSTGRES, "settle", "freed_children", "where not j.unfinished or", "where true or"),
            sql(POSTGRES, "settle", "free_nodes", "(select 'unfinished' from", "(select null from"),
            sql(SQLITE, "settle", "freed_children", "where (not exists", "where (true or exists"),
        ),
    ),
    Bug(
        "skip-goes-down", "children of skipped jobs are not looked at",
        "tests/contract/test_workflows.py::test_what_depends_on_a_lost_node_is_skipped_all_the_way_down",
        (
            python("store/moves", "        _, ids = await finish(tx, await _free_or_finish(tx, ids))",
                   "        await finish(tx, await _free_or_finish(tx, ids))\n        return"),
        ),
    ),
    Bug(
        "freed-once", "every child of a parent that ends is looked at, wherever it stands",
        "tests/contract/test_workflows.py::test_a_child_that_runs_is_not_freed_by_another_parent",
        (
            sql(POSTGRES, "settle", "freed_children", "        and parked = 'parents'", ""),
            sql(POSTGRES, "settle", "free_nodes", "\n      and j.parked = 'parents'", ""),
            sql(POSTGRES, "settle", "lock_freed", "  and j.parked = 'parents'\n", ""),
            sql(SQLITE, "settle", "freed_children", "  and j.parked = 'parents'\n", ""),
        ),
    ),
    Bug(
        "freed-held", "a child that is freed gets its ticket, held or not",
        "tests/contract/test_parents.py::test_a_held_child_is_freed_but_stays_held",
        (
            sql(POSTGRES, "settle", "add_tickets", "b.due is null and not j.held then",
                "b.due is null then"),
            sql(POSTGRES, "settle", "add_tickets", "case when j.held then 'held' end", "null"),
            sql(POSTGRES, "settle", "free_nodes", " and not j.held", ""),
            python("store/moves", "due is not None or bool(child.held) or",
                   "due is not None or"),
        ),
    ),
    Bug(
        "freed-token", "a child keeps its token when it is freed",
        "tests/contract/test_workflows.py::test_a_node_waits_for_all_of_its_parents_and_is_freed_with_a_new_token",
        (
            sql(POSTGRES, "settle", "free_nodes", "token = j.token + 1,", "token = j.token,"),
            sql(SQLITE, "settle", "free", "token = token + 1,", "token = token,"),
        ),
    ),
    Bug(
        "end-after-all", "the first of the last nodes ends the workflow",
        "tests/contract/test_workflows.py::test_it_is_open_until_its_last_node_has_ended",
        tuple(
            sql(dialect, "workflow", "end_workflows", "and not exists", "or false and exists")
            for dialect in BOTH
        ),
    ),
    Bug(
        "end-after-locks", "the row of the workflow is not locked before the decision",
        "tests/contract/test_races.py::test_a_workflow_whose_last_two_nodes_finish_together_ends",
        (sql(POSTGRES, "workflow", "lock_workflows", "\nfor update", ""),),
        (POSTGRES,),
    ),
    Bug(
        "finaliser-last", "one success is enough for the finaliser",
        "tests/contract/test_workflows.py::test_the_finaliser_does_not_run_beside_another_node",
        (python("store/workflows/add", '"when": When.ALL_FINISHED}', '"when": When.ANY_SUCCEEDED}'),),
    ),
    Bug(
        "grow-fence", "any worker that names the job adds to its workflow",
        "tests/contract/test_zombies.py::test_a_zombie_adds_nothing_to_its_workflow",
        (
            python("store/workflows/grow", "    if leased is None:\n", "    if False:\n"),
            python("store/workflows/grow", "    if leased.cancel_requested:\n",
                   "    if leased is not None and leased.cancel_requested:\n"),
        ),
    ),
    Bug(
        "grow-asked-to-stop", "a job that is asked to stop adds to its workflow",
        "tests/contract/test_workflows.py::test_neither_a_finaliser_nor_one_that_is_asked_to_stop_adds_nodes",
        (python("store/workflows/grow", "    if leased.cancel_requested:\n", "    if False:\n"),),
    ),
    Bug(
        "grow-keeps-open", "the end does not wait for what was added",
        "tests/contract/test_workflows.py::test_an_added_node_without_a_join_keeps_the_workflow_open",
        (python("store/workflows/grow", "    if last:\n", "    if False:\n"),),
    ),
    Bug(
        "cancelled-outlasts-nobody", "a waiting node is cancelled like any other job",
        "tests/contract/test_workflow_acts.py::test_a_node_that_is_cancelled_while_it_waits_does_not_end_the_workflow_early",
        (python("store/workflows/act", "        if live:\n            child",
                "        if False:\n            child"),),
    ),
    Bug(
        "replay-goes-down", "the node alone is replayed",
        "tests/contract/test_workflow_acts.py::test_a_failed_node_is_replayed_and_the_rest_continues",
        (python("store/workflows/replay", "    ids = set(await tx.fetch_column(\"nodes_to_reopen\"",
                "    ids = seeds & set(await tx.fetch_column(\"nodes_to_reopen\""),),
    ),
    Bug(
        "step-fence", "any worker that names the job records its steps",
        "tests/contract/test_zombies.py::test_a_zombie_records_no_step",
        (python("store/jobs/steps", "    if leased is None:\n        return STALE\n", ""),
         python("store/jobs/steps", "    if not leased.features & Feature.STEPS:\n",
                "    if leased is None or not leased.features & Feature.STEPS:\n"),),
    ),
    Bug(
        "note-fence", "any worker that names the job annotates it",
        "tests/contract/test_zombies.py::test_a_zombie_annotates_nothing",
        (python("store/notes", "return {(job.id, job.token) for job in leased}",
                "return {(job.id, job.token) for job in jobs}"),),
        unseen=BEHIND + "no invariant looks at notes",
    ),
    Bug(
        "once", "a sweep puts back a job that has started, and may start only once",
        "tests/contract/test_at_most_once.py::test_a_started_job_is_not_run_again_after_a_crash",
        (python("rules/lifecycle", '    if job.spent:\n        return _spent("lease lost")\n', ""),),
    ),
    Bug(
        "once", "a settlement puts back a job that has started, and may start only once",
        "tests/contract/test_at_most_once.py::test_a_started_job_fails_instead_of_running_again",
        (python("store/jobs/settle", ", bool(job.spent)\n", "\n"),),
    ),
    Bug(
        "once-fence", "a job that may start only once starts on a lease that is over",
        "tests/contract/test_at_most_once.py::test_a_start_is_refused_when_the_lease_is_over",
        (
            sql(POSTGRES, "settle", "start_once",
                "  and l.expires_at > coalesce(:now::timestamptz, clock_timestamp())\n", ""),
            sql(SQLITE, "settle", "start_once", " and boot = :boot and expires_tick > :tick", ""),
        ),
    ),
    Bug(
        "once-fence", "a job that may start only once starts on the lease of another worker",
        "tests/contract/test_zombies.py::test_a_zombie_starts_no_job_that_starts_at_most_once",
        (
            sql(POSTGRES, "settle", "start_once", " and l.worker = :worker", ""),
            sql(SQLITE, "settle", "start_once", " and worker = :worker", ""),
        ),
    ),
    Bug(
        "step-once", "the last one who records a step is believed",
        "tests/contract/test_steps.py::test_a_name_stands_for_one_step",
        tuple(
            sql(dialect, "step", "record_step", "on conflict (job_id, name) do nothing",
                "on conflict (job_id, name) do update set result = excluded.result")
            for dialect in BOTH
        ),
    ),
    Bug(
        "gate-counts-others", "a worker counts only its own permits",
        "tests/contract/test_gates.py::test_no_more_run_than_the_limit_allows",
        (
            sql(POSTGRES, "gate", "look_at_gates",
                "select g.gate,\n           coalesce(sum(least(w.live, s.permits)) filter "
                "(where w.worker <> :worker), 0)::int as others",
                "select g.gate, 0 as others"),
            python("store/sqlite/gates", "Use(sum(used.values()) - mine, mine,", "Use(0, mine,"),
        ),
    ),
    Bug(
        "gate-counts-live", "what has passed is counted, whether it runs or has ended",
        "tests/contract/test_gates.py::test_no_more_run_than_the_limit_allows",
        (
            sql(POSTGRES, "gate", "look_at_gates",
                "else (select sum(l.live) from tenure.gate_live l\n"
                "                               where l.gate = g.gate and l.worker = p.worker) end",
                "else p.passed end"),
            python("store/sqlite/gates", "if not _is_alone_with_enough(",
                   "if False and not _is_alone_with_enough("),
        ),
    ),
    Bug(
        "gate-one-claim", "claims look at a gate side by side",
        "tests/contract/test_races.py::test_two_claims_at_once_keep_the_limit_of_a_gate",
        (sql(POSTGRES, "gate", "open_gates", " for update skip locked) as g", ") as g"),),
        (POSTGRES,),
    ),
    Bug(
        "gate-turn-at-end", "the end of a job gives no turn",
        "tests/contract/test_gates.py::test_every_end_of_an_attempt_frees_its_permit",
        (
            python("store/moves",
                   "        await leave_gates(tx, moved.lines)\n"
                   "    finished = [(job, State.SUCCEEDED)",
                   "        pass\n"
                   "    finished = [(job, State.SUCCEEDED)"),
        ),
    ),
    Bug(
        "gate-order", "the last one in a line goes first",
        "tests/contract/test_gates.py::test_a_key_with_one_at_a_time_keeps_its_order",
        (
            sql(POSTGRES, "gate", "look_at_gates", "order by g.priority, g.position limit",
                "order by g.priority, g.position desc limit"),
            sql(SQLITE, "gate", "take_gated", "order by priority, position limit",
                "order by priority, position desc limit"),
        ),
    ),
    Bug(
        "gate-starts-used", "the starts that a claim has used are not written",
        "tests/contract/test_gates.py::test_a_rate_lets_so_many_start_and_no_more",
        (python("store/gates/passing", "    if used:\n", "    if False:\n"),),
    ),
    Bug(
        "gate-clock-back", "time that went back counts like time that has passed",
        "tests/contract/test_gates.py::test_a_clock_that_went_back_adds_no_starts",
        (python("rules/gates", "max(0.0, age_seconds)", "abs(age_seconds)"),),
    ),
    Bug(
        "gate-turns", "a line that was served stays at the head of the turns",
        "tests/contract/test_gates.py::test_a_long_line_does_not_delay_a_short_one",
        (python("rules/permits", "(heads, (line.tickets[last].priority, last, n))",
                "(heads, (line.tickets[last].priority, -last, n))"),),
    ),
    Bug(
        "gate-tenant", "a line is named by its key alone",
        "tests/contract/test_gates.py::test_tenants_do_not_share_keys_at_a_gate",
        (python("rules/gates", 'f"{tenant}{SEPARATOR}{key}"', 'f"{SEPARATOR}{key}"'),),
    ),
)  # fmt: skip
