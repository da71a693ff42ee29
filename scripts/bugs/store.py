"""Bugs of stores: claims, leases, keys, parents, gates, schedules, tenants, transactions.

Other queues have had them, or a first draft of this one.
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

NONE: tuple[str, ...] = ()

STORE = (
    Bug(
        "settle-by-id", "a success needs neither its token nor its lease",
        "tests/contract/test_zombies.py::test_a_zombie_settles_nothing",
        (
            sql(SQLITE, "settle", "lease_of_worker", "select claimed_at from tenure.lease",
                "select max(claimed_at) from tenure.lease"),
            sql(SQLITE, "settle", "succeed", " and j.token = b.token", ""),
        ),
        (SQLITE,),
    ),
    Bug(
        "retry-by-id", "a retry needs neither its token nor its lease",
        "tests/contract/test_zombies.py::test_a_zombie_settles_nothing",
        (
            sql(SQLITE, "settle", "lock_leased", " and j.token = b.value ->> 'token'", ""),
            sql(SQLITE, "settle", "lock_leased", "select j.id, j.token,",
                "select j.id, b.value ->> 'token',"),
            sql(SQLITE, "settle", "lock_leased",
                "j.features, l.claimed_at", "j.features, coalesce(l.claimed_at, 0)"),
            sql(SQLITE, "settle", "lock_leased",
                "cross join tenure.lease as l on", "left join tenure.lease as l on"),
            sql(SQLITE, "settle", "add_tickets",
                " and job.token = b.value ->> 'token'\nreturning", "\nreturning"),
            sql(SQLITE, "settle", "add_tickets",
                "where j.token = (b.value ->> 'token') + 1 and j.parked is null and j.due_at is nul"
                "l\n", "where j.parked is null and j.due_at is null\n"),
        ),
        (SQLITE,),
    ),
    Bug(
        "attempt-as-fence", "the token grows only when an attempt is charged",
        "tests/contract/test_every_transition.py::test_a_job_gets_a_new_token_each_time_it_goes_back_to_its_queue",
        (
            sql(SQLITE, "settle", "add_tickets", "set token = token + 1,",
                "set token = token + coalesce(b.value ->> 'charged', 0),"),
            sql(SQLITE, "settle", "add_tickets",
                "where j.token = (b.value ->> 'token') + 1 and j.parked is null and j.due_at is nul"
                "l\n", "where j.parked is null and j.due_at is null\n"),
            sql(SQLITE, "settle", "add_tickets",
                "where j.token = (b.value ->> 'token') + 1 and j.parked is null and j.due_at is not"
                " null", "where j.parked is null and j.due_at is not null"),
            sql(POSTGRES, "settle", "add_tickets", "set token = j.token + 1,",
                "set token = j.token + coalesce(b.charged, 0),"),
        ),
    ),
    Bug(
        "partial-flush", "a lease goes with the first batch of its settlements",
        "tests/contract/test_settle.py::test_a_lease_goes_only_when_nothing_on_it_is_live",
        (
            python("worker/settler", "if id in leases and len(leases[id].jobs) <= count",
                   "if id in leases and count"),
            sql(POSTGRES, "settle", "drop_leases", "and not exists (", "or false and exists ("),
            sql(SQLITE, "settle", "drop_leases", "and not exists (", "or false and exists ("),
        ),
    ),
    Bug(
        "sweep-by-id", "a sweep requeues the job whatever its token is",
        "tests/contract/test_leases.py::test_an_expired_lease_without_live_jobs_is_cleared_away",
        (
            sql(SQLITE, "sweep", "lock_swept", " and j.token = pair.value ->> 1", ""),
        ),
        (SQLITE,),
    ),
    Bug(
        "sweep-by-wall-clock", "leases end by the wall clock",
        "tests/contract/test_time.py::test_a_jump_of_the_wall_clock_touches_no_lease",
        (
            sql(SQLITE, "sweep", "expired_leases", "where boot = :boot and expires_tick <= :tick\n",
                "where boot = :boot and expires_at <= :now\n"),
            sql(SQLITE, "sweep", "lock_leases", "expires_tick <= :tick", "expires_at <= :now"),
            sql(SQLITE, "sweep", "peek", "expires_tick <= :tick", "expires_at <= :now"),
        ),
        (SQLITE,),
    ),
    Bug(
        "sweep-unpaged", "a sweep takes back all that there is in one call",
        "tests/contract/test_leases.py::test_a_sweep_goes_page_by_page_oldest_deadline_first",
        (
            python("store/jobs/sweep", "min(len(part), self._most - self.leases)", "len(part)"),
            python("store/jobs/sweep", "self.leases == self._most", "False"),
        ),
        unseen=UNUSED + "leave more than a page of dead leases",
    ),
    Bug(
        "sweep-stuck-behind-locks", "every sweep begins again at the leases that it passed over",
        "tests/contract/test_mass_sweep.py::test_leases_of_locked_jobs_hold_up_no_others",
        (python("store/jobs/sweep", "swept_until = walk.after if walk.more and walk.passed else None",
                "swept_until = None"),),
        (POSTGRES,),
        unseen=IN_ORDER,
    ),
    Bug(
        "sweep-one-by-one", "a sweep has a transaction for each lease",
        "tests/contract/test_mass_sweep.py::test_many_leases_are_swept_in_few_transactions",
        (python("store/jobs/sweep", "JOBS_PER_TRANSACTION = 1000", "JOBS_PER_TRANSACTION = 1"),),
        unseen=UNUSED + "leave thousands of dead leases",
    ),
    Bug(
        "sweep-forgets-crash", "a crash that ended a job is not counted",
        "tests/contract/test_timeline.py::test_a_lost_job_that_fails_crashed_first",
        (python("store/jobs/sweep", "charged=int(move.charged), crashed=1,\n        error",
                "charged=int(move.charged), crashed=0,\n        error"),),
    ),
    Bug(
        "cancel-untold", "a heartbeat does not say who is asked to stop",
        "tests/contract/test_leases.py::test_a_heartbeat_tells_which_leases_are_lost_and_which_jobs_must_stop",
        (python("store/jobs/sweep", "return tuple(sorted(asked & leased))", "return ()"),),
        unseen=BEHIND + "a job that is asked to cancel may still succeed",
    ),
    Bug(
        "claim-too-much", "a claim takes more than was asked for",
        "tests/contract/test_claim.py::test_a_claim_takes_no_more_than_it_asks_for",
        (
            sql(SQLITE, "claim", "take_tickets", "limit :most", "limit :most + 3"),
        ),
        (SQLITE,),
    ),
    Bug(
        "claim-bytes", "a claim does not look at the size of jobs",
        "tests/contract/test_needs.py::test_a_claim_is_bounded_by_bytes",
        (
            python("rules/claim", "        if kb > self._kb:\n            return False\n", ""),
            sql(POSTGRES, "claim", "take_tickets", "and sum(q.kb) <= :max_kb and", "and"),
        ),
    ),
    Bug(
        "claim-any-kind", "a claim does not look at the kinds that it asks for",
        "tests/contract/test_needs.py::test_kinds_share_the_limit_of_their_queue_in_the_order_of_the_line",
        (
            python("store/sqlite/lanes", "counts = {lane.needs: min(ask.of[lane.needs], ask.most) for lane in lanes}",
                   "counts = {lane.needs: ask.most for lane in lanes}"),
            python("rules/claim", "self._left[queue].get(needs, 0) > 0\n", "True\n"),
            python("store/sqlite/lanes", "        most = min(ask.of[lane.needs], ask.most)\n        heads",
                   "        most = ask.most\n        heads"),
        ),
        (SQLITE,),
    ),
    Bug(
        "needs-not-corrected", "a job that is put back keeps the needs of the old code",
        "tests/contract/test_needs.py::test_a_worker_corrects_what_a_ticket_says",
        (python("store/jobs/settle", "error=raw(s.error), needs=s.needs,", "error=raw(s.error),"),),
        unseen=UNUSED + "change the kind of a task",
    ),
    Bug(
        "claim-paused", "a claim does not look whether the queue is paused",
        "tests/contract/test_claim.py::test_nothing_is_claimed_from_a_paused_queue",
        (
            sql(SQLITE, "claim", "look_at_lanes", "p.paused_at is not null", "false"),
            sql(POSTGRES, "claim", "take_tickets", "p.paused_at is not null", "false"),
        ),
        unseen=UNUSED + "pause a queue",
    ),
    Bug(
        "floor-without-second-reading", "the floor of a line is where it began before others wrote",
        "tests/plans/test_late_commits.py::test_no_schedule_of_commits_and_claims_loses_a_job_in_any_lane",
        (python("store/postgres/floors", "floor = min(position, again.get(lane, position))",
                "floor = position"),),
        (POSTGRES,),
        unseen="only PostgreSQL has floors",
    ),
    Bug(
        "floor-without-wait", "the floor of a line does not wait for those who were writing",
        "tests/plans/test_late_commits.py::test_a_job_with_a_low_place_that_commits_late_is_claimed_at_once",
        (python("store/postgres/floors", "if candidate.drawers:", "if False:"),),
        (POSTGRES,),
        unseen="only PostgreSQL has floors",
    ),
    Bug(
        "repeat-beside-the-first", "a request is repeated while the first one may still arrive",
        "tests/wire/test_late.py::test_a_late_enqueue_does_not_bring_back_a_job_that_has_finished",
        (python("store/postgres/session", "                await _end_late(wire, call, deadline)\n",
                "                call.late.pop()\n"),),
        (POSTGRES,),
    ),
    Bug(
        "repeat-beside-the-first", "the same in the simulation, which has a wire of its own",
        "tests/wire/test_late.py::test_a_late_enqueue_does_not_bring_back_a_job_that_has_finished",
        (
            python("store/postgres/session", "                await _end_late(wire, call, deadline)\n",
                   "                call.late.pop()\n"),
            Edit("tests/simulation/store.py", "earlier.is_ended = True", "earlier.is_ended = False"),
        ),
        (POSTGRES,),
        least_steps=120_000,
    ),
    Bug(
        "cancel-not-told", "a cancel of a running job notifies no worker",
        "tests/bells/test_bells.py::test_it_tells_of_the_cancel_of_a_running_job_and_rings_for_nothing",
        (
            python("store/sqlite/tx", 'await self.fetch("count_cancels")', "_ = ids"),
            python("store/postgres/tx", "        if self.news is not None:\n            named",
                   "        if False:\n            named"),
        ),
        unseen=BEHIND + "the next heartbeat tells of it",
    ),
    Bug(
        "cancel-lost-with-the-wire", "a cancel while the bell had no connection is not looked for",
        "tests/wire/test_pushes.py::test_a_cancel_while_the_bell_is_cut_off_is_told_when_it_is_back",
        (python("store/postgres/bell", "        self._call_cancel(None)\n        while True:",
                "        while True:"),),
        (POSTGRES,),
        unseen=BEHIND + "the next heartbeat tells of it",
    ),
    Bug(
        "bulk-replay-token", "a replay of many jobs keeps their tokens",
        "tests/contract/test_bulk.py::test_many_do_what_one_does",
        (
            sql(POSTGRES, "bulk", "replay_jobs", "select id, token + 1,", "select id, token,"),
            sql(POSTGRES, "bulk", "replay_jobs", "position, id, token + 1", "position, id, token"),
            sql(SQLITE, "bulk", "replay_jobs", "h.token + 1", "h.token"),
        ),
    ),
    Bug(
        "bulk-replay-key", "a replay of many jobs does not take their keys",
        "tests/contract/test_bulk.py::test_of_two_jobs_with_one_key_one_is_replayed",
        (python("store/jobs/bulk", "in (await _retake_keys(tx, list(jobs.values()))).items():",
                "in dict[int, int]().items():"),),
    ),
    Bug(
        "bulk-hold-keeps-tickets", "jobs that are held with many others keep their tickets",
        "tests/contract/test_bulk.py::test_many_do_what_one_does",
        (python("store/jobs/bulk", "    taken = await take_node_tickets(tx, jobs)\n"
                "    await _set_held(", "    taken = set[int]()\n    await _set_held("),),
    ),
    Bug(
        "bulk-repeat", "a change of many jobs whose commit got no reply is made twice",
        "tests/faults/test_unanswered_bulk.py::test_many_jobs_are_changed_once",
        (python("store/jobs/bulk", "    if tx.repeat:\n        done", "    if False:\n        done"),),
        (POSTGRES,),
        unseen="no invariant says what an operator is told, or how often a job is moved",
    ),
    Bug(
        "promote-twice", "promotion leaves the due ticket behind",
        "tests/contract/test_due.py::test_a_snoozed_job_comes_back_when_it_is_due",
        (sql(SQLITE, "sweep", "promote", "delete from tenure.due\nwhere",
             "delete from tenure.due\nwhere false and"),),
        (SQLITE,),
    ),
    Bug(
        "release-charged", "what is given back or snoozed costs an attempt",
        "tests/contract/test_settle.py::test_snooze_and_release_are_not_charged",
        (python("rules/lifecycle", "return _in_line(delay, reason, charged=False)",
                "return _in_line(delay, reason, charged=True)"),),
    ),
    Bug(
        "bad-row-blocks-batch", "one row that the database refuses takes its batch along",
        "tests/contract/test_settle.py::test_one_bad_row_never_blocks_the_others",
        (python("store/jobs/settle", "    except ValueRefused as error:\n"
                "        if len(settlements) <= 1:", "    except ValueRefused as error:\n"
                "        if len(settlements) >= 1:"),),
        unseen=UNUSED + "return what no database takes",
    ),
    Bug(
        "late-settlement-refused", "a settlement after the deadline and before a sweep is stale",
        "tests/contract/test_leases.py::test_settling_after_the_deadline_but_before_a_sweep_lands",
        (sql(SQLITE, "settle", "lease_of_worker", "and worker = :worker",
             "and worker = :worker and expires_tick > :tick"),),
        (SQLITE,),
    ),
    Bug(
        "key-kept-by-the-dead", "a job that did not succeed keeps its unique key",
        "tests/contract/test_unique.py::test_a_job_that_a_sweep_fails_gives_its_key_back",
        (python("store/moves", "if job.features & Feature.KEY and job.key is not None",
                "if job.features & Feature.KEY and job.key and state is State.SUCCEEDED"),),
    ),
    Bug(
        "key-given-back-early", "a job that is put in line again gives its key back",
        "tests/contract/test_unique.py::test_a_job_that_comes_back_keeps_its_key",
        (python("store/jobs/settle", "        await add_events(tx, events)\n        if folded",
                "        await add_events(tx, events)\n"
                "        await tx.fetch('drop_key_of', ids=to_json([t.id for t in tickets]))\n"
                "        if folded"),
         *(Edit(f"{SQL}/{dialect}/sql/settle.sql", "-- name: forget_checkpoints\n",
                "-- name: drop_key_of\n"
                f"delete from tenure.unique_key where job_id in (select value{text} from {each});\n"
                "\n-- name: forget_checkpoints\n")
           for dialect, text, each in (
               (SQLITE, "", "json_each(:ids)"),
               (POSTGRES, "::bigint", "json_array_elements_text(:ids::json)")))),
    ),
    Bug(
        "where-not-exists", "a key is looked for before it is taken, and no index decides",
        "tests/contract/test_races.py::test_two_enqueues_with_one_key_give_one_job",
        (
            Edit(f"{SQL}/postgres/sql/migrations/0001.sql", "primary key (tenant, scope, key)",
                 "check (true)"),
            sql(POSTGRES, "enqueue", "take_keys", "on conflict (tenant, scope, key) do nothing",
                "where not exists (select from tenure.unique_key k where k.tenant = b.tenant"
                " and k.scope = b.scope and k.key = b.key)"),
        ),
        (POSTGRES,),
    ),
    Bug(
        "key-without-tenant", "a unique key is one for all tenants",
        "tests/contract/test_unique.py::test_tenants_do_not_share_keys",
        (python("store/keys", "return job.tenant, job.unique.scope or job.task, job.unique.key",
                'return "", job.unique.scope or job.task, job.unique.key'),),
    ),
    Bug(
        "tenant-sees-all", "a tenant can read any job by its id",
        "tests/contract/test_tenants.py::test_a_scoped_store_sees_its_own_jobs_and_global_ones",
        (python("store/look/jobs", 'tx.fetch_as(JobRow, "get_job", id=id, tenant=tx.tenant)',
                'tx.fetch_as(JobRow, "get_job", id=id, tenant=None)'),),
        unseen=UNUSED + "read what is not its own",
    ),
    Bug(
        "tenant-of-parent", "a parent may be of any tenant",
        "tests/contract/test_tenants.py::test_a_parent_must_be_of_the_same_tenant",
        (
            sql(SQLITE, "enqueue", "mark_parents", " and job.tenant = b.value ->> 'tenant'", ""),
            sql(SQLITE, "enqueue", "lock_finished_parents",
                " and h.tenant = b.value ->> 'tenant'", ""),
            python("store/moves", "    missing |= torn", "    torn = set()\n    missing |= torn"),
        ),
        (SQLITE,),
        unseen=BEHIND + "who waits for a stranger stays with its own tenant",
    ),
    Bug(
        "children-forgotten", "the end of a parent frees no child",
        "tests/contract/test_parents.py::test_a_fan_frees_all_of_its_children",
        (python("store/moves", "    return sorted(id for id in children if id > 0)",
                "    return []"),),
    ),
    Bug(
        "child-of-the-failed", "a child runs although a parent has not succeeded",
        "tests/contract/test_parents.py::test_a_child_whose_parent_did_not_succeed_is_skipped",
        (python("rules/lifecycle", "not (ends.unfinished or ends.any_unsuccessful)",
                "not ends.unfinished"),),
    ),
    Bug(
        "replay-beside-its-parent", "a node that is replayed does not look for live parents",
        "tests/contract/test_workflow_acts.py::test_a_node_that_is_replayed_waits_for_a_live_parent",
        (python("store/workflows/replay", "    if not waits:\n", "    if waits is not None:\n"),),
    ),
    Bug(
        "replay-calls-none-back", "the ticket of a node stays when its parent is replayed",
        "tests/contract/test_workflow_acts.py::test_a_node_that_has_not_started_waits_again_when_its_parent_is_replayed",
        (python("store/workflows/replay", "    again = await take_node_tickets(tx, nodes)\n",
                "    nodes = []\n    again = await take_node_tickets(tx, nodes)\n"),),
    ),
    Bug(
        "replay-of-one-cancelled-node", "after a cancel of the workflow a replay opens one node alone",
        "tests/contract/test_workflow_acts.py::test_after_a_cancel_the_first_replay_brings_back_what_the_cancel_has_cancelled",
        (python("store/workflows/replay", "    if stopped or workflow.cancelled_at is not None:\n",
                "    if stopped:\n"),),
    ),
    Bug(
        "tick-twice", "a tick that was written before is fired again",
        "tests/contract/test_schedules.py::test_a_clock_that_is_set_back_fires_no_tick_again",
        (python("store/schedules/fire", "if tick.job_id is not None and tick in new}",
                "if tick.job_id is not None}"),),
    ),
    Bug(
        "catch-up-without-end", "every tick that was missed is made up for",
        "tests/unit/test_schedule.py::test_of_the_missed_ticks_what_the_policy_says",
        (python("rules/ticks", "            return found[-count:]\n", "            return found\n"),),
        NONE,
    ),
    Bug(
        "change-loses-ticks", "a change of a schedule forgets the ticks that are due",
        "tests/contract/test_schedules.py::test_ticks_due_before_a_change_fire_by_the_policy_of_that_time",
        (python("store/schedules/fire", "    if ticking.jobs:\n", "    if False:\n"),),
        unseen=UNUSED + "schedules are not edited",
    ),
    Bug(
        "overlap", "a schedule does not look whether its last job has finished",
        "tests/contract/test_schedules.py::test_a_tick_is_skipped_while_the_last_job_is_not_finished",
        (python("store/schedules/fire", "    if not keys:\n        return set()\n    rows",
                "    if keys:\n        return set()\n    rows"),),
    ),
    Bug(
        "gate-without-limit", "a gate lets everybody pass",
        "tests/contract/test_gates.py::test_no_more_run_than_the_limit_allows",
        (python("store/gate_records", "max_running=self.max_running, rate", "max_running=None, rate"),),
    ),
    Bug(
        "gate-stuck", "the end of an attempt at a gate gives no line a turn",
        "tests/contract/test_gates.py::test_every_end_of_an_attempt_frees_its_permit",
        (python("store/moves", "    await tx.leave_gates(lines)\n", "    _ = tx, lines\n"),),
    ),
    Bug(
        "gate-limit-lowered", "a worker above a lowered limit claims riders for permits that it lost",
        "tests/gates/test_arithmetic.py::test_a_claim_reads_as_many_tickets_as_the_rule_says",
        (sql(POSTGRES, "gate", "look_at_gates", "greatest(0, least(r.mine, r.max_running - r.others)) as own",
             "r.mine as own"),),
        (POSTGRES,),
    ),
    Bug(
        "commits-for-the-caller", "an enqueue commits the caller's transaction",
        "tests/borrowing/test_transactions.py::test_no_job_is_there_when_the_caller_has_rolled_back",
        (python("store/jobs/enqueue", "        return await scope.run_borrowed(on, _Addition(jobs, None, now),"
                " lone=lone)\n", "        done = await scope.run_borrowed(on, _Addition(jobs,"
                " None, now))\n        on.commit()\n        return done\n"),),
        unseen=UNUSED + "enqueue in a transaction of the application",
    ),
    Bug(
        "no-savepoint", "who fails in a group commit takes the others along",
        "tests/unit/test_sqlite_session.py::test_an_error_of_an_operation_itself_goes_to_its_own_caller",
        (python("store/sqlite/session", '            connection.execute("rollback to call")\n',
                "            raise\n"),),
        NONE,
        unseen=IN_ORDER,
    ),
    Bug(
        "min-code", "code that is too old for the schema works on",
        "tests/faults/test_schemas.py::test_code_that_is_too_old_for_the_schema_refuses_and_changes_nothing",
        (python("store/migrate", "if min_code > VERSION:", "if min_code > 1000 * VERSION:"),),
        unseen=UNUSED + "migrate",
    ),
    Bug(
        "network-file", "SQLite is used on a network file system",
        "tests/faults/test_sqlite_files.py::test_a_network_file_system_is_refused_unless_accepted",
        (python("store/sqlite/driver", "    if kind in NETWORK_FILE_SYSTEMS and not allow_network:",
                "    if kind is None and not allow_network:"),),
        NONE,
        unseen="its files are in memory",
    ),
    Bug(
        "nul", "a NUL in an argument is accepted",
        "tests/unit/test_codec_refusals.py::test_nul_is_refused",
        (python("rules/codec", '    if "\\0" in text:', '    if "\\0\\0" in text:'),),
        NONE,
        unseen=UNUSED + "give such arguments",
    ),
    Bug(
        "nan", "a number that JSON does not have is accepted",
        "tests/unit/test_codec_refusals.py::test_numbers_that_json_has_not_are_refused",
        (python("rules/codec", "        if not isfinite(value):", "        if value is None:"),),
        NONE,
        unseen=UNUSED + "give such arguments",
    ),
    Bug(
        "naive-time", "a time without a zone is accepted",
        "tests/unit/test_codec_refusals.py::test_naive_datetimes_are_refused",
        (python("rules/codec", "    if offset is None:\n        raise _Refused(",
                "    if offset is None:\n        return value\n        raise _Refused("),),
        NONE,
        unseen=UNUSED + "give such arguments",
    ),
    Bug(
        "back-off-overflow", "the wait before a late attempt overflows",
        "tests/unit/test_policy.py::test_every_delay_is_finite_and_within_the_policys_limit",
        (python("rules/retry", "    except OverflowError:\n        return float(policy.cap_seconds)",
                "    except ZeroDivisionError:\n        return float(policy.cap_seconds)"),),
        NONE,
        unseen=UNUSED + "try so often",
    ),
    Bug(
        "back-off-uncapped", "the wait before an attempt has no limit",
        "tests/unit/test_policy.py::test_the_default_doubles_from_a_second_to_an_hour",
        (python("rules/retry", "    return float(min(policy.cap_seconds, wait))",
                "    return float(wait)"),),
        NONE,
        unseen=UNUSED + "try so often",
    ),
    Bug(
        "once-mark-overwritten", "a heartbeat takes away the mark of a job that starts at most once",
        "tests/contract/test_at_most_once.py::test_a_heartbeat_does_not_take_the_mark_away",
        (
            sql(SQLITE, "sweep", "extend", "started = coalesce(b.value -> 'started', started)\n",
                "started = coalesce(b.value -> 'started', started), once = null\n"),
            sql(POSTGRES, "sweep", "extend", "started = coalesce(held.started, l.started)\n",
                "started = coalesce(held.started, l.started), once = null\n"),
        ),
    ),
    Bug(
        "notes-lost-by-replay", "a replay takes the notes with the checkpoint",
        "tests/contract/test_notes.py::test_notes_survive_a_crash_and_replays",
        tuple(
            sql(dialect, "settle", "forget_checkpoints", "saved_at = null\n",
                "saved_at = null, notes = null\n")
            for dialect in BOTH
        ),
        unseen=UNUSED + "replay",
    ),
    Bug(
        "hold-reason-lost", "a held job that comes back shows why its attempt ended",
        "tests/contract/test_operate.py::test_the_reason_of_a_hold_stays_when_a_running_job_comes_back",
        (
            sql(SQLITE, "settle", "add_tickets", "case when held and reason is not null then reason",
                "case when false then reason"),
            sql(POSTGRES, "settle", "add_tickets",
                "case when j.held and j.reason is not null then j.reason",
                "case when false then j.reason"),
        ),
        unseen=UNUSED + "look at reasons",
    ),
    Bug(
        "crash-without-notes", "a crashed attempt does not keep its notes",
        "tests/contract/test_attempt_list.py::test_every_attempt_of_a_long_life_is_listed",
        (python("store/jobs/sweep", "if job.id in notes:", "if False:"),),
        unseen=UNUSED + "look at attempts",
    ),
    Bug(
        "lent-kept-after-error", "an error that leaves the block commits the lent transaction",
        "tests/borrowing/test_lending.py::test_rows_and_jobs_are_committed_together_or_not_at_all",
        (python("store/lending", "        drive(lent.undo())\n", "        drive(lent.commit())\n"),),
        unseen=UNUSED + "open a transaction of the store",
    ),
    Bug(
        "lent-lock-stays", "an interrupt leaves the writer lock with the thread that it hit",
        "tests/borrowing/test_lending.py::test_an_interrupt_rolls_back_wherever_it_comes",
        (python("store/sqlite/lending", "            self._session.unlock_lent()\n",
                "            pass\n"),),
        (SQLITE,),
        unseen=UNUSED + "open a transaction of the store",
    ),
    Bug(
        "lent-forgotten-on", "a write inside of a lent transaction that forgot on= goes its own way",
        "tests/borrowing/test_lending.py::test_a_write_that_forgot_on_is_refused_and_a_read_is_not",
        (python("store/lending", "    if is_inside(session):\n        raise InvalidInput(\n            \"this caller has a transaction of the store open; pass",
                "    if False:\n        raise InvalidInput(\n            \"this caller has a transaction of the store open; pass"),),
        (POSTGRES,),
        unseen=UNUSED + "open a transaction of the store",
    ),
    Bug(
        "lent-failed-commit", "a block that went on after an error counts as committed",
        "tests/borrowing/test_lending_postgres.py::test_a_block_that_goes_on_after_an_error_of_postgres_is_not_committed",
        (python("store/lending", "        case Standing.FAILED:\n            raise NotCommitted(",
                "        case Standing.FAILED if False:\n            raise NotCommitted("),),
        NONE,
        unseen=UNUSED + "open a transaction of the store",
    ),
    Bug(
        "task-takes-head", "a claim by tasks takes the head of the line, whatever its task is",
        "tests/contract/test_claim_by_task.py::test_the_others_keep_their_places",
        (python("store/jobs/choose", "(tasks is not None and ticket.task not in tasks)", "False"),),
        unseen=UNUSED + "claim by tasks",
    ),
    Bug(
        "task-starts-over", "each claim by tasks looks at the same tickets again",
        "tests/contract/test_claim_by_task.py::test_a_job_behind_many_others_is_found_by_going_on",
        (python("store/jobs/choose", "max(end, walks.get((lane, tasks), _NEW).behind)", "end"),),
        unseen=UNUSED + "claim by tasks",
    ),
    Bug(
        "task-looks-once", "a claim by tasks whose tickets other claims have taken says that there is none",
        "tests/contract/test_races.py::test_a_claim_by_tasks_passes_over_locked_tickets",
        (python("store/jobs/claim", "_MISSED_ROUNDS = 100", "_MISSED_ROUNDS = 1"),),
        (POSTGRES,),
        unseen=UNUSED + "claim by tasks",
    ),
    Bug(
        "claimer-silent-loss", "a claimer does not tell its jobs that their lease is lost",
        "tests/claiming/test_claimer.py::test_a_lease_that_cannot_be_renewed_is_lost_in_time",
        (python("claiming/heartbeats", "            self._give_up()\n            return\n",
                "            return\n"),),
        NONE,
        unseen=UNUSED + "claim by hand",
    ),
    Bug(
        "claimer-starts-silently", "a claimer does not say that a job with at_most_once has started",
        "tests/claiming/test_claimer.py::test_a_job_that_starts_at_most_once_starts_with_its_claim",
        (python("claiming/core", "        if not job.starts_once or ", "        if True or "),),
        unseen=UNUSED + "claim by hand",
    ),
    Bug(
        "claimer-keeps-rest", "a claimer keeps what it holds when it ends",
        "tests/claiming/test_claimer.py::test_what_is_left_goes_back_uncharged",
        (python("claiming/core", "        if not releases:\n", "        if True:\n"),),
        unseen=UNUSED + "claim by hand",
    ),
    Bug(
        "claimer-forgets", "a claimer forgets what it has claimed if the next queue cannot be reached",
        "tests/claiming/test_claimer.py::test_what_is_claimed_is_returned_if_the_next_queue_cannot_be_reached",
        (python("claiming/core", "            if not taken:\n                raise\n", "            raise\n"),),
        unseen=UNUSED + "claim by hand",
    ),
    Bug(
        "claimer-cancelled", "a claim is cancelled with its caller, whatever it has taken",
        "tests/claiming/test_claimer.py::test_a_cancelled_claim_loses_no_job",
        (python("claiming/core", "await asyncio.shield(task)", "await task"),),
        unseen=UNUSED + "claim by hand",
    ),
    Bug(
        "claimer-believes-an-end", "a claimer takes an end for committed that was rolled back",
        "tests/claiming/test_claimer.py::test_a_job_whose_end_was_rolled_back_is_told_that_it_is_lost",
        (python("claiming/heartbeats", "(job.may_be_ended and self._has_ended(job))", "job.may_be_ended"),),
        unseen=UNUSED + "claim by hand",
    ),
    Bug(
        "claimer-counts-twice", "a claimer counts an end again that it has written before",
        "tests/claiming/test_claimer.py::test_ends_are_counted_once_and_written_at_the_end",
        (python("claiming/core", "if answer.landed and not job.is_ended:", "if answer.landed:"),),
        unseen=UNUSED + "claim by hand",
    ),
)  # fmt: skip
