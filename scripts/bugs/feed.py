"""Bugs of the feed of finished jobs and of failure hooks."""

from scripts.bugs.bug import POSTGRES, SQLITE, UNUSED, Bug, python, sql
from scripts.bugs.options import DEADLINES

_FEED = "tests/contract/test_feed.py::"
_HOOKS = "tests/contract/test_failure_hooks.py::"
_NOBODY = UNUSED + "add and move readers"
_NO_HOOKS = UNUSED + "declare several hooks"

FEED = (
    Bug(
        "late-end-skipped", "an end gets its place before its transaction has committed",
        _FEED + "test_an_end_that_commits_late_is_not_skipped",
        (
            sql(POSTGRES, "feed", "place_ends",
                "select (select e.place from tenure.feed_end e) + row_number() over (order by n),",
                "select n,"),
            sql(POSTGRES, "feed", "place_ends", "place + (select count(*) from taken)",
                "greatest(place, (select max(n) from taken))"),
        ),
        noticed_on=(POSTGRES,), unseen=_NOBODY,
    ),
    Bug(
        "end-by-sweep-missing", "only ends by workers are in the feed",
        _FEED + "test_a_job_that_a_sweep_ends_is_in_the_feed",
        (
            sql(POSTGRES, "settle", "finish",
                "from ended where exists (select from tenure.feed_reader r",
                "from ended where lease is not null"
                " and exists (select from tenure.feed_reader r"),
            sql(SQLITE, "settle", "feed_finished", "where b.value ->> 'lease' is null or l.id is not null",
                "where l.id is not null"),
        ),
    ),
    Bug(
        "end-by-expiry-missing", "jobs that were not started in time are not in the feed",
        _FEED + "test_jobs_that_were_not_started_in_time_are_in_the_feed",
        (
            sql(POSTGRES, "settle", "finish",
                "from ended where exists (select from tenure.feed_reader r",
                "from ended where why is distinct from 'expired'"
                " and exists (select from tenure.feed_reader r"),
            sql(SQLITE, "settle", "feed_finished", "where b.value ->> 'lease' is null or l.id is not null",
                "where b.value ->> 'reason' is not 'expired' and (b.value ->> 'lease' is null or l.id is not null)"),
        ),
        unseen=DEADLINES,
    ),
    Bug(
        "stale-end-in-the-feed", "a settlement that does not land is in the feed",
        _FEED + "test_a_settlement_that_does_not_land_is_not_in_the_feed",
        (sql(SQLITE, "settle", "feed_batch", " and j.token = b.token", ""),),
        noticed_on=(SQLITE,),
    ),
    Bug(
        "place-given-twice", "an end gets the place of one that was removed",
        _FEED + "test_places_go_up_even_if_the_feed_is_empty_in_between",
        (
            sql(SQLITE, "settle", "feed_batch", "(select e.place from tenure.feed_end e) +",
                "coalesce((select max(e.place) from tenure.feed e), 0) +"),
        ),
        noticed_on=(SQLITE,), unseen=_NOBODY,
    ),
    Bug(
        "reader-not-moved", "a reader gets the same ends for ever",
        _FEED + "test_readers_move_on_their_own_and_passed_ends_are_removed",
        (
            sql(POSTGRES, "feed", "move_reader", "position = greatest(position, least(:position,",
                "position = least(position, least(:position,"),
            sql(SQLITE, "feed", "move_reader", "position = max(position, min(:position,",
                "position = min(position, min(:position,"),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "reader-moves-back", "a reader that says an old position gets ends again",
        _FEED + "test_a_reader_that_does_not_move_gets_the_same_ends_again",
        (
            sql(POSTGRES, "feed", "move_reader", "position = greatest(position, least(:position,",
                "position = greatest(0, least(:position,"),
            sql(POSTGRES, "feed", "trim_feed", "delete from tenure.feed\nwhere ",
                "delete from tenure.feed\nwhere false and "),
            sql(SQLITE, "feed", "move_reader", "position = max(position, min(:position,",
                "position = max(0, min(:position,"),
            sql(SQLITE, "feed", "trim_feed", "delete from tenure.feed\nwhere ",
                "delete from tenure.feed\nwhere false and "),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "trimmed-by-the-fastest", "an end is removed when one reader has passed it",
        _FEED + "test_readers_move_on_their_own_and_passed_ends_are_removed",
        (
            sql(POSTGRES, "feed", "trim_feed", "min(r.position)", "max(r.position)"),
            sql(SQLITE, "feed", "trim_feed", "min(r.position)", "max(r.position)"),
        ),
        unseen=_NOBODY,
    ),
    Bug(
        "lost-in-silence", "a reader that was away too long is not told",
        _FEED + "test_a_reader_that_was_away_for_a_week_is_told",
        (python("store/feed/readers", "if row.lost_at is not None:", "if row.lost_at == 0:"),),
        unseen=_NOBODY,
    ),
    Bug(
        "feed-crosses-tenants", "the reader of a tenant gets the jobs of others",
        _FEED + "test_a_reader_of_a_tenant_gets_its_own_and_global_jobs",
        (python("store/feed/readers", "if tx.tenant is None or row.tenant in", "if tx or row.tenant in"),),
        unseen=_NOBODY,
    ),
    Bug(
        "reader-does-not-wait", "a new reader does not wait for ends that have not seen it",
        _FEED + "test_a_new_reader_waits_for_ends_that_have_not_seen_it",
        (sql(POSTGRES, "feed", "ends_in_flight", "where locktype", "where false and locktype"),),
        noticed_on=(POSTGRES,), unseen=_NOBODY,
    ),
    Bug(
        "hook-called-twice", "a hook of a task and of all tasks is called for both",
        _HOOKS + "test_the_hook_of_a_task_is_for_that_task_alone",
        (python("store/templates", "sorted(by_task.items())", "enumerate(read.hooks)"),),
        unseen=_NO_HOOKS,
    ),
    Bug(
        "hook-calls-hook", "the failure of a hook calls the hooks",
        _HOOKS + "test_the_failure_of_a_hook_calls_no_hook",
        (
            sql(POSTGRES, "settle", "finish", "and not exists (select from tenure.failure_hook own",
                "and true or exists (select from tenure.failure_hook own"),
            sql(SQLITE, "settle", "finish", "and not exists (select 1 from tenure.failure_hook own",
                "and true or exists (select 1 from tenure.failure_hook own"),
        ),
        unseen=_NO_HOOKS,
    ),
    Bug(
        "hook-not-called-for-sweeps", "a job that dies with its worker calls no hook",
        _HOOKS + "test_a_job_whose_worker_was_killed_calls_the_hook",
        (
            sql(POSTGRES, "settle", "finish", "case when state = 'failed' then (",
                "case when state = 'failed' and lease is not null then ("),
            sql(SQLITE, "settle", "finish", "case when b.value ->> 'state' = 'failed' then (",
                "case when b.value ->> 'state' = 'failed' and l.id is not null then ("),
        ),
    ),
    Bug(
        "hook-called-for-skipped", "a job that was skipped calls the hooks",
        "tests/contract/test_every_transition.py::"
        "test_whatever_ends_a_job_is_in_the_feed_once_and_only_failures_call_their_hook",
        (
            sql(POSTGRES, "settle", "finish", "case when state = 'failed' then (",
                "case when state in ('failed', 'skipped') then ("),
            sql(SQLITE, "settle", "finish", "case when b.value ->> 'state' = 'failed' then (",
                "case when b.value ->> 'state' in ('failed', 'skipped') then ("),
        ),
    ),
    Bug(
        "claimer-stores-no-hooks", "hooks of code that claims by hand are not called",
        "tests/claiming/test_claimer.py::"
        "test_ends_by_hand_are_in_the_feed_once_and_failures_call_the_declared_hook",
        (python("claiming/core", "        if hooks:\n", "        if not hooks:\n"),),
        unseen=UNUSED + "claim by hand",
    ),
    Bug(
        "hooks-of-others-dropped", "a worker removes the hooks of other code",
        _HOOKS + "test_declaring_again_changes_only_what_is_new",
        (
            python("store/feed/hooks", '"read_hooks") if row.hook in ours}', '"read_hooks")}'),
            sql(POSTGRES, "feed", "drop_hooks",
                "where hook in (select json_array_elements_text(:hooks::json))",
                "where :hooks is not null"),
            sql(SQLITE, "feed", "drop_hooks", "where hook in (select value from json_each(:hooks))",
                "where :hooks is not null"),
        ),
        unseen=_NO_HOOKS,
    ),
)  # fmt: skip
