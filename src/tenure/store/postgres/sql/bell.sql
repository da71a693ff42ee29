-- How idle workers are woken.

-- name: notify
-- Sent with the COMMIT of whatever put a ticket in line. `position` is that of our first ticket, or null
-- to notify without a look. No word is needed where a ticket of the same lane still stands in one of
-- the 32 places that were drawn before ours: the workers are busy, or were told of that one.
-- Each position is looked up by itself. A range of places would walk every dead ticket in it, tens of
-- thousands when a long transaction keeps them from being cleaned up; and so would `position = any`,
-- which the planner takes for a filter when it believes that the lane is short.
select pg_notify('tenure.bell', :payload::text)
where not exists (
    select from generate_series(1, 32) as n,
         lateral (select from tenure.ready
                  where queue = :queue::text and priority = :priority::smallint
                    and position = 1000 * (:position::bigint / 1000 - n) offset 0) as standing);
