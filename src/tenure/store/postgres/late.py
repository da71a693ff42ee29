"""Before a request without a reply is repeated: make sure that it cannot take effect any more.

Bytes that a client has sent may reach the server long after the client has given up the
connection: a proxy kept them, or the server process was stopped. To repeat the request while the
first one may still commit would be to do it twice. So each connection holds an advisory lock under
a random number as long as its server process lives; behind a pooler, each transaction holds one.
The repeat ends the process that has the lock, and waits until the lock is free. From then on, the
first request has either committed, and the repeat finds it, or it never will. And it has no rows
locked.
"""

import secrets

import psycopg

from tenure.store.postgres.connection import Wire

_LEAST_SECONDS = 0.1
_MOST_SECONDS = 86_400.0

_END = """begin; set local role none;
select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_locks
where locktype = 'advisory' and objsubid = 1 and classid = {high} and objid = {low}; commit"""
# A standby refuses to give a transaction id, as it refuses every write.
# The message makes this COMMIT wait for a synchronous standby, and so for what the process has
# committed: to end a process that waits for a standby ends its wait as well. That the user's
# commits do not wait by default is not our promise.
_WAIT = """begin; set local lock_timeout = '{milliseconds}ms';
select pg_catalog.pg_current_xact_id();
select pg_catalog.set_config('synchronous_commit', 'on', true)
where pg_catalog.current_setting('synchronous_commit') = 'off';
select pg_catalog.pg_advisory_xact_lock({mark});
select pg_catalog.pg_logical_emit_message(true, 'tenure', ''); commit"""


def new_mark() -> int:
    """The number of an advisory lock that no other connection or transaction has."""
    return secrets.randbits(63)


async def end_late(wire: Wire, mark: int, seconds: float) -> bool:
    """End the server process that has this mark, and wait so long for its end.

    A role that may not end it waits, too. False: it has not ended.
    """
    try:
        await wire.script(_END.format(high=mark >> 32, low=mark & 0xFFFFFFFF))
    except psycopg.errors.InsufficientPrivilege:
        await wire.script("rollback")
    milliseconds = round(1000 * min(max(_LEAST_SECONDS, seconds), _MOST_SECONDS))
    try:
        await wire.script(_WAIT.format(milliseconds=milliseconds, mark=mark))
    except psycopg.errors.LockNotAvailable:
        await wire.script("rollback")
        return False
    return True
