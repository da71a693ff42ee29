-- name: write_statistics
-- add_statistics, sweep, cancel, skip, prune: with `adds` to what is there, else a row that is there is
-- the same one, written before. Without `at`, those of the current ten seconds.
insert into tenure.statistic as s (
    span, at, queue, task, outcome, process, ends, wait_seconds, run_seconds, waits, runs)
select :span, coalesce(:at, :now / 10000000 * 10000000), b.value ->> 'queue', b.value ->> 'task',
       b.value ->> 'outcome', coalesce(:process, 'transactions'), coalesce(b.value ->> 'ends', 0),
       coalesce(b.value ->> 'wait_seconds', 0.0), coalesce(b.value ->> 'run_seconds', 0.0),
       b.value ->> 'waits', b.value ->> 'runs'
from json_each(:rows) as b
where true
on conflict (span, at, queue, task, outcome, process) do update
set ends = s.ends + excluded.ends,
    wait_seconds = s.wait_seconds + excluded.wait_seconds,
    run_seconds = s.run_seconds + excluded.run_seconds,
    waits = case when s.waits is null or excluded.waits is null then coalesce(s.waits, excluded.waits)
            else (select json_group_array(e.value + (s.waits ->> e.key)) from json_each(excluded.waits) as e) end,
    runs = case when s.runs is null or excluded.runs is null then coalesce(s.runs, excluded.runs)
           else (select json_group_array(e.value + (s.runs ->> e.key)) from json_each(excluded.runs) as e) end
where :adds;

-- name: read_statistics
-- statistics: sums by queue, task and outcome, for each stretch of `every` seconds, or for the whole time.
with picked as materialized (
    select case when :every is null then 0 else max(0, (s.at - :since) / cast(1e6 * :every as integer)) end as stretch,
           s.queue, s.task, s.outcome, s.ends, s.wait_seconds, s.run_seconds, s.waits, s.runs
    from json_each('[10, 3600, 86400]') as p
         cross join tenure.statistic as s
         on s.span = p.value and s.at > :since - 1000000 * p.value and s.at < :until
    where (:queue is null or s.queue = :queue) and (:task is null or s.task = :task)
), bucket as (
    select p.stretch, p.queue, p.task, p.outcome, w.key as n, sum(w.value) as waits,
           sum(p.runs ->> w.key) as runs
    from picked as p cross join json_each(p.waits) as w
    group by p.stretch, p.queue, p.task, p.outcome, w.key
), list as (
    select stretch, queue, task, outcome, json_group_array(waits) as waits, json_group_array(runs) as runs
    from (select * from bucket order by stretch, queue, task, outcome, n)
    group by stretch, queue, task, outcome
), total as (
    select stretch, queue, task, outcome, sum(ends) as ends, sum(wait_seconds) as wait_seconds,
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
where (span, at, queue, task, outcome, process) in (
    select span, at, queue, task, outcome, process from tenure.statistic
    where span = :span and at < :before
    order by span, at, queue, task, outcome, process limit :most)
returning at, queue, task, outcome, ends, wait_seconds, run_seconds, waits, runs;

-- name: begin_depth
-- sample_depth: at most one worker counts, unless it dies meanwhile.
insert into tenure.depth_sample as s (one, next_at) values (1, :now + 60000000)
on conflict (one) do update set next_at = excluded.next_at
where :force or s.next_at <= :now
returning :now as now;

-- name: count_depth
-- sample_depth: one walk along all live jobs, without a look for the ticket of each. A job that neither
-- waits nor has a ticket runs.
with live as materialized (
    select queue, sum(parked = 'parents') as waiting, sum(parked is null and due_at is not null) as scheduled,
           sum(parked = 'held') as held, sum(parked is null and due_at is null) as active
    from tenure.job group by queue
), ticket as (
    select queue, sum(tickets) as tickets from (
        select queue, count(*) as tickets from tenure.ready group by queue
        union all
        select queue, count(*) from tenure.gated group by queue)
    group by queue
)
select l.queue, coalesce(l.waiting, 0) as waiting, coalesce(l.scheduled, 0) as scheduled,
       coalesce(l.held, 0) + min(coalesce(l.active, 0), coalesce(t.tickets, 0)) as queued,
       max(0, coalesce(l.active, 0) - coalesce(t.tickets, 0)) as running
from live as l left join ticket as t on t.queue = l.queue
order by l.queue;

-- name: end_depth
-- sample_depth: unless a newer sample is there. The longer it took, the later is the next one.
update tenure.depth_sample
set sampled_at = :sampled_at, took_seconds = (:now - :began) / 1e6,
    next_at = :now + max(cast(1e6 * :every as integer), :factor * (:now - :began))
where sampled_at is null or sampled_at <= :sampled_at
returning one;

-- name: clear_depth
-- sample_depth: the last one goes.
delete from tenure.depth;

-- name: write_depth
-- sample_depth: live jobs by queue and state.
insert into tenure.depth (queue, state, jobs, oldest_at)
select b.value ->> 'queue', b.value ->> 'state', b.value ->> 'jobs', b.value ->> 'oldest_at'
from json_each(:rows) as b;

-- name: read_depth
-- depth: without a queue, there were no live jobs.
select s.sampled_at, (:now - s.sampled_at) / 1e6 as age_seconds, s.took_seconds, d.queue, d.state, d.jobs,
       d.oldest_at
from tenure.depth_sample as s left join tenure.depth as d on true
where s.sampled_at is not null
order by d.queue, d.state;
