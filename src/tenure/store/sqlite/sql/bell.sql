-- How idle workers are woken.

-- name: queue_signs
-- What changes whenever a ticket is put in line, and when a queue is paused or resumed. Claims,
-- settlements and heartbeats leave it as it is.
select position, (select count(*) from tenure.queue) from tenure.counter;
