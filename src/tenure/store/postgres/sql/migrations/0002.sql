-- The job table that people keep, look up and settle by hand.


-- --- retention and keys --------------------------------------------------------------------------



-- --- attempts and notes --------------------------------------------------------------------------



-- --- finding jobs --------------------------------------------------------------------------------

-- For people who look for jobs. A job that succeeds at once and has no key pays nothing for these.
create index history_unsuccessful_finished on tenure.history (finished_at, id) where state <> 'succeeded';
create index history_key on tenure.history (unique_key, id) where unique_key is not null;
create index job_key on tenure.job (unique_key, id) where unique_key is not null;
create index job_error on tenure.job (id) where error is not null;



-- --- statistics ----------------------------------------------------------------------------------



-- --- claiming by hand ----------------------------------------------------------------------------



-- --- the feed of finished jobs -------------------------------------------------------------------



-- --- deadlines and replacement -------------------------------------------------------------------
