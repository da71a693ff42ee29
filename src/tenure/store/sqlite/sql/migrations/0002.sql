-- The job table that people keep, look up and settle by hand. The comments here say only what differs
-- from PostgreSQL.


-- --- retention and keys --------------------------------------------------------------------------



-- --- attempts and notes --------------------------------------------------------------------------



-- --- finding jobs --------------------------------------------------------------------------------

create index tenure.history_unsuccessful_finished on tenure.history (finished_at) where state <> 'succeeded';
create index tenure.history_key on tenure.history (unique_key, id) where unique_key is not null;
create index tenure.job_error on tenure.job (id) where error is not null;



-- --- statistics ----------------------------------------------------------------------------------



-- --- claiming by hand ----------------------------------------------------------------------------



-- --- the feed of finished jobs -------------------------------------------------------------------



-- --- deadlines and replacement -------------------------------------------------------------------
