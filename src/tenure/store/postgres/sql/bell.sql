-- How idle workers are woken.

-- name: notify
-- Sent with the COMMIT of a transaction that added tickets. `position` is that of its first ticket, or
-- null to notify in any case. No notification is needed if the same lane still has a ticket at one of
-- the 32 positions that were drawn before: the workers are busy, or were notified of that ticket.
-- Each position is looked up by itself. A range of positions would scan every consumed ticket in it, tens
-- of thousands while a long transaction keeps their rows; so would `position = any`, which the planner
-- uses as a filter if it believes that the lane is short.
select pg_notify('tenure.bell', :payload::text)
where not exists (
    select from generate_series(1, 32) as n,
         lateral (select from tenure.ready
                  where queue = :queue::text and needs = :needs::smallint
                    and priority = :priority::smallint
                    and position = 1000 * (:position::bigint / 1000 - n) offset 0) as standing);

-- name: notify_cancels
-- cancel: sent like `notify`. The payload names up to 400 jobs. If it is empty, each worker looks at its jobs.
select pg_notify('tenure.cancel', :ids::text);
