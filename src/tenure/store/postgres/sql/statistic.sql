-- name: write_statistics
-- add_statistics, sweep, cancel, skip, prune: with `adds` to what is there, else a row that is there is
-- the same one, written before. Without `at`, those of the current ten seconds. Without a process, the
-- rows belong to this connection: so no transaction waits for another one here.
insert into tenure.statistic as s (
    at, ends, wait_seconds, run_seconds, span, queue, task, outcome, process, waits, runs)
select coalesce(:at::timestamptz, to_timestamp(
           floor(extract(epoch from coalesce(:now::timestamptz, clock_timestamp())) / 10) * 10)),
       coalesce(b.ends, 0), coalesce(b.wait_seconds, 0), coalesce(b.run_seconds, 0), :span::int, b.queue,
       b.task, b.outcome, coalesce(:process::text, 'connection ' || pg_backend_pid()), b.waits, b.runs
from json_to_recordset(:rows::json) as b (
    queue text, task text, outcome text, ends bigint, wait_seconds double precision,
    run_seconds double precision, waits json, runs json)
on conflict (span, at, queue, task, outcome, process) do update
set ends = s.ends + excluded.ends,
    wait_seconds = s.wait_seconds + excluded.wait_seconds,
    run_seconds = s.run_seconds + excluded.run_seconds,
    waits = case when s.waits is null or excluded.waits is null then coalesce(s.waits, excluded.waits)
            else (select json_agg(u.a::bigint + u.b::bigint order by u.n)
                  from rows from (json_array_elements_text(s.waits), json_array_elements_text(excluded.waits))
                       with ordinality as u (a, b, n)) end,
    runs = case when s.runs is null or excluded.runs is null then coalesce(s.runs, excluded.runs)
           else (select json_agg(u.a::bigint + u.b::bigint order by u.n)
                 from rows from (json_array_elements_text(s.runs), json_array_elements_text(excluded.runs))
                      with ordinality as u (a, b, n)) end
where :adds::boolean;

-- name: read_statistics
-- statistics: sums by queue, task and outcome, for each stretch of `every` seconds, or for the whole time.
with picked as materialized (
    select case when :every::double precision is null then 0 else greatest(0, floor(
               extract(epoch from s.at - :since::timestamptz) / :every::double precision))::bigint end as stretch,
           s.queue, s.task, s.outcome, s.ends, s.wait_seconds, s.run_seconds, s.waits, s.runs
    from (values (10), (3600), (86400)) as p (span),
         lateral (select * from tenure.statistic
                  where span = p.span and at > :since::timestamptz - p.span * interval '1 second'
                    and at < :until::timestamptz offset 0) as s
    where (:queue::text is null or s.queue = :queue) and (:task::text is null or s.task = :task)
), bucket as (
    select p.stretch, p.queue, p.task, p.outcome, b.n, sum(b.wait::bigint) as waits,
           sum(b.run::bigint) as runs
    from picked as p,
         rows from (json_array_elements_text(p.waits), json_array_elements_text(p.runs))
             with ordinality as b (wait, run, n)
    group by p.stretch, p.queue, p.task, p.outcome, b.n
), list as (
    select stretch, queue, task, outcome, json_agg(waits order by n)::text as waits,
           json_agg(runs order by n)::text as runs
    from bucket group by stretch, queue, task, outcome
), total as (
    select stretch, queue, task, outcome, sum(ends)::bigint as ends, sum(wait_seconds) as wait_seconds,
           sum(run_seconds) as run_seconds
    from picked group by stretch, queue, task, outcome
)
select t.stretch, t.queue, t.task, t.outcome, t.ends, t.wait_seconds, t.run_seconds, l.waits, l.runs
from total as t left join list as l
     on l.stretch = t.stretch and l.queue = t.queue and l.task = t.task and l.outcome = t.outcome
order by t.stretch, t.queue, t.task, t.outcome;

-- name: take_statistics
-- prune: the oldest rows of one length, to be added up.
delete from tenure.statistic
where ctid = any (array(
    select ctid from tenure.statistic where span = :span and at < :before::timestamptz
    order by span, at, queue, task, outcome, process limit :most for update skip locked))
returning at, queue, task, outcome, ends, wait_seconds, run_seconds, waits::text as waits, runs::text as runs;

-- name: begin_depth
-- sample_depth: at most one worker counts, unless it dies meanwhile.
insert into tenure.depth_sample as s (one, next_at)
select 1, coalesce(:now::timestamptz, clock_timestamp()) + interval '1 minute'
on conflict (one) do update set next_at = excluded.next_at
where :force::boolean or s.next_at <= excluded.next_at - interval '1 minute'
returning s.next_at - interval '1 minute' as now;

-- name: count_depth
-- sample_depth: one walk along all live jobs, without a look for the ticket of each. A job that neither
-- waits nor has a ticket runs.
with live as materialized (
    select queue, count(*) filter (where parked = 'parents') as waiting,
           count(*) filter (where parked is null and due_at is not null) as scheduled,
           count(*) filter (where parked = 'held') as held,
           count(*) filter (where parked is null and due_at is null) as active
    from tenure.job group by queue
), ticket as (
    select queue, sum(tickets)::bigint as tickets from (
        select queue, count(*) as tickets from tenure.ready group by queue
        union all
        select queue, count(*) from tenure.gated group by queue) as each
    group by queue
)
select l.queue, l.waiting, l.scheduled, l.held + least(l.active, coalesce(t.tickets, 0)) as queued,
       greatest(0, l.active - coalesce(t.tickets, 0)) as running
from live l left join ticket t on t.queue = l.queue
order by l.queue;

-- name: end_depth
-- sample_depth: unless a newer sample is there. The longer it took, the later is the next one.
with t as materialized (
    select now, extract(epoch from now - :began::timestamptz)::double precision as took
    from (select coalesce(:now::timestamptz, clock_timestamp()) as now) as clock
)
update tenure.depth_sample
set sampled_at = :sampled_at::timestamptz, took_seconds = t.took,
    next_at = t.now + greatest(:every, :factor * t.took) * interval '1 second'
from t where sampled_at is null or sampled_at <= :sampled_at::timestamptz
returning one;

-- name: clear_depth
-- sample_depth: the last one goes.
delete from tenure.depth;

-- name: write_depth
-- sample_depth: live jobs by queue and state.
insert into tenure.depth (queue, state, jobs, oldest_at)
select b.queue, b.state, b.jobs, b.oldest_at
from json_to_recordset(:rows::json) as b (queue text, state text, jobs bigint, oldest_at timestamptz);

-- name: read_depth
-- depth: without a queue, there were no live jobs.
select s.sampled_at,
       extract(epoch from coalesce(:now::timestamptz, clock_timestamp()) - s.sampled_at)::double precision as age_seconds,
       s.took_seconds, d.queue, d.state, d.jobs, d.oldest_at
from tenure.depth_sample s left join tenure.depth d on true
where s.sampled_at is not null
order by d.queue, d.state;
