"""The marked rules of workflows, steps and gates, each taken out of the code."""

from scripts.bugs.bug import BOTH, POSTGRES, SQLITE, Bug, python, sql

WORKFLOWS = "tests/statements/test_workflow_rules.py"
GATES = "tests/statements/test_gate_rules.py"

FLOWS = (
    Bug(
        "child-after-parents", "nobody looks for unfinished parents",
        f"{WORKFLOWS}::test_a_child_waits_for_all_of_its_parents",
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
        f"{WORKFLOWS}::test_what_depends_on_a_skipped_node_is_skipped",
        (
            python("store/moves", "        _, ids = await finish(tx, await _free_or_finish(tx, ids))",
                   "        await finish(tx, await _free_or_finish(tx, ids))\n        return"),
        ),
    ),
    Bug(
        "freed-once", "every child of a parent that ends is looked at, wherever it stands",
        f"{WORKFLOWS}::test_a_child_that_runs_is_not_freed_by_another_parent",
        (
            sql(POSTGRES, "settle", "freed_children", "        and parked = 'parents'", ""),
            sql(POSTGRES, "settle", "free_nodes", "\n      and j.parked = 'parents'", ""),
            sql(POSTGRES, "settle", "lock_freed", "  and j.parked = 'parents'\n", ""),
            sql(SQLITE, "settle", "freed_children", "  and j.parked = 'parents'\n", ""),
        ),
    ),
    Bug(
        "freed-held", "a child that is freed gets its ticket, held or not",
        f"{WORKFLOWS}::test_a_held_child_that_is_freed_does_not_run",
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
        f"{WORKFLOWS}::test_a_child_that_is_freed_has_a_new_token",
        (
            sql(POSTGRES, "settle", "free_nodes", "token = j.token + 1,", "token = j.token,"),
            sql(SQLITE, "settle", "free", "token = token + 1,", "token = token,"),
        ),
    ),
    Bug(
        "end-after-all", "the first of the last nodes ends the workflow",
        f"{WORKFLOWS}::test_a_workflow_is_open_while_one_of_its_last_nodes_is",
        tuple(
            sql(dialect, "workflow", "end_workflows", "and not exists", "or false and exists")
            for dialect in BOTH
        ),
    ),
    Bug(
        "end-after-locks", "the row of the workflow is not locked before the decision",
        f"{WORKFLOWS}::test_a_workflow_whose_last_two_nodes_end_together_ends",
        (sql(POSTGRES, "workflow", "lock_workflows", "\nfor update", ""),),
        (POSTGRES,),
    ),
    Bug(
        "finaliser-last", "one success is enough for the finaliser",
        f"{WORKFLOWS}::test_the_finaliser_runs_once_and_after_all_others",
        (python("store/workflows/add", '"when": When.ALL_FINISHED}', '"when": When.ANY_SUCCEEDED}'),),
    ),
    Bug(
        "grow-fence", "whoever says that the job is theirs adds to its workflow",
        f"{WORKFLOWS}::test_a_zombie_adds_nothing_to_its_workflow",
        (
            python("store/workflows/grow", "    if leased is None:\n", "    if False:\n"),
            python("store/workflows/grow", "    if leased.cancel_requested:\n",
                   "    if leased is not None and leased.cancel_requested:\n"),
        ),
    ),
    Bug(
        "grow-asked-to-stop", "a job that is asked to stop adds to its workflow",
        f"{WORKFLOWS}::test_one_that_is_asked_to_stop_adds_nothing",
        (python("store/workflows/grow", "    if leased.cancel_requested:\n", "    if False:\n"),),
    ),
    Bug(
        "grow-keeps-open", "the end does not wait for what was added",
        f"{WORKFLOWS}::test_a_workflow_is_open_while_what_was_added_is",
        (python("store/workflows/grow", "    if last:\n", "    if False:\n"),),
    ),
    Bug(
        "cancelled-outlasts-nobody", "a waiting node is cancelled like any other job",
        f"{WORKFLOWS}::test_a_cancelled_node_leaves_the_end_to_its_parents",
        (python("store/workflows/act", "    if live:\n        child", "    if False:\n        child"),),
    ),
    Bug(
        "replay-goes-down", "the node alone is replayed",
        f"{WORKFLOWS}::test_a_replay_brings_back_what_was_skipped_below",
        (python("store/workflows/replay", "    ids = set(await tx.fetch_column(\"nodes_to_reopen\"",
                "    ids = seeds & set(await tx.fetch_column(\"nodes_to_reopen\""),),
    ),
    Bug(
        "step-fence", "whoever says that the job is theirs records its steps",
        f"{WORKFLOWS}::test_a_zombie_records_no_step_that_counts",
        (python("store/jobs/steps", "    if leased is None:\n        return STALE\n", ""),
         python("store/jobs/steps", "    if not leased.features & Feature.STEPS:\n",
                "    if leased is None or not leased.features & Feature.STEPS:\n"),),
    ),
    Bug(
        "step-once", "the last one who records a step is believed",
        f"{WORKFLOWS}::test_what_a_step_has_answered_stays",
        tuple(
            sql(dialect, "step", "record_step", "on conflict (job_id, name) do nothing",
                "on conflict (job_id, name) do update set result = excluded.result")
            for dialect in BOTH
        ),
    ),
    Bug(
        "gate-counts-others", "a worker counts its own places",
        f"{GATES}::test_places_of_other_workers_count",
        (
            sql(POSTGRES, "gate", "look_at_gates",
                "select g.gate,\n           coalesce(sum(least(w.live, s.places)) filter "
                "(where w.worker <> :worker), 0)::int as others",
                "select g.gate, 0 as others"),
            python("store/sqlite/gates", "Use(sum(used.values()) - mine, mine,", "Use(0, mine,"),
        ),
    ),
    Bug(
        "gate-counts-live", "what has passed is counted, whether it runs or has ended",
        f"{GATES}::test_a_place_is_free_when_its_job_has_ended",
        (
            sql(POSTGRES, "gate", "look_at_gates",
                "else (select sum(l.live) from tenure.gate_live l\n"
                "                               where l.gate = g.gate and l.worker = p.worker) end",
                "else p.passed end"),
            python("store/sqlite/gates", "if not (alone and", "if False and not (alone and"),
        ),
    ),
    Bug(
        "gate-one-claim", "claims look at a gate side by side",
        f"{GATES}::test_two_claims_at_once_keep_the_limit",
        (sql(POSTGRES, "gate", "open_gates", " for update skip locked) as g", ") as g"),),
        (POSTGRES,),
    ),
    Bug(
        "gate-turn-at-end", "the end of a job gives no turn",
        f"{GATES}::test_the_end_of_a_job_gives_the_next_one_its_turn",
        (
            python("store/moves",
                   "        await leave_gates(tx, moved.lines)\n"
                   "    finished = [\n        (job.id, job.features, State.SUCCEEDED)",
                   "        pass\n"
                   "    finished = [\n        (job.id, job.features, State.SUCCEEDED)"),
        ),
    ),
    Bug(
        "gate-order", "the last one in a line goes first",
        f"{GATES}::test_one_at_a_time_means_in_order",
        (
            sql(POSTGRES, "gate", "take_gated", "order by gated.priority, gated.position limit",
                "order by gated.priority, gated.position desc limit"),
            sql(SQLITE, "gate", "take_gated", "order by priority, position limit",
                "order by priority, position desc limit"),
        ),
    ),
    Bug(
        "gate-tokens-used", "nobody writes down what was used of tokens",
        f"{GATES}::test_what_has_started_has_used_a_token",
        (python("store/gates/passing", "    if used:\n", "    if False:\n"),),
    ),
    Bug(
        "gate-clock-back", "time that went back counts like time that has passed",
        f"{GATES}::test_a_clock_that_goes_back_brings_no_tokens",
        (python("rules/gates", "max(0.0, age_seconds)", "abs(age_seconds)"),),
    ),
    Bug(
        "gate-turns", "a line that was served stays at the head of the turns",
        f"{GATES}::test_lines_take_turns",
        (python("rules/gates", "(heads, (line.tickets[last][0], last, n))",
                "(heads, (line.tickets[last][0], -last, n))"),),
    ),
    Bug(
        "gate-tenant", "a line is named by its key alone",
        f"{GATES}::test_keys_of_two_tenants_are_two_keys",
        (python("rules/gates", 'f"{tenant}{SEPARATOR}{key}"', 'f"{SEPARATOR}{key}"'),),
    ),
)  # fmt: skip
