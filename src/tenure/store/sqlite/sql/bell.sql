-- How idle workers are woken.

-- name: queue_signs
-- Values that change when a ticket is added, when a queue is paused or resumed, and when running jobs are
-- asked to stop. Claims, settlements and heartbeats do not change them.
select position, (select count(*) from tenure.queue), cancels from tenure.counter;

-- name: count_cancels
-- cancel: running jobs were asked to stop.
update tenure.counter set cancels = cancels + 1;
