"""Migrated databases that are used again: to empty one takes a tenth of the time to copy one.

Before a database is used again, it is emptied: every table that has pages is truncated, and every
sequence starts again. This happens when the next test takes it, not when the last one gives it
back: processes of the last test may outlive its database fixture, and would write into the emptied
database. It is dropped instead if anything else is not as it was: a table, a column,
an index, a function, a privilege, a setting, what ANALYZE found, or a connection that does not
end.

One connection to each of them stays open, for this work and for the audit: a new one would read the
catalogue and plan every statement again, which takes the server four times as long. Its name is
KEEPER in pg_stat_activity.
"""

from __future__ import annotations

import time

import psycopg
from psycopg.rows import TupleRow

from tests.support.plain import KEPT
from tests.support.postgres import Server

Connection = psycopg.Connection[TupleRow]
KEEPER = "keeper of tests"

STRANGERS = """
    select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
      and backend_type = 'client backend'
"""
SHAPE = """
    with own as (select oid, nspname, nspacl from pg_namespace
                 where nspname !~ '^pg_' and nspname <> 'information_schema')
    select (select string_agg(concat_ws(' ', oid, relname, relnatts, reloptions, relacl), ','
                              order by oid)
            from pg_class where relnamespace in (select oid from own) and relkind <> 't'),
           (select string_agg(concat_ws(' ', oid, proname, proacl), ',' order by oid) from pg_proc
            where pronamespace in (select oid from own)),
           (select string_agg(concat_ws(' ', nspname, nspacl), ',' order by oid) from own),
           (select datacl::text from pg_database where datname = current_database()),
           (select string_agg(defaclacl::text, ',' order by oid) from pg_default_acl),
           (select string_agg(concat_ws(' ', tgrelid, tgname), ',' order by oid) from pg_trigger),
           (select string_agg(conname, ',' order by oid) from pg_constraint),
           (select string_agg(extname, ',' order by oid) from pg_extension),
           (select string_agg(setconfig::text, ',') from pg_db_role_setting
            where setdatabase = (select oid from pg_database where datname = current_database())),
           (select count(*) from pg_statistic s join pg_class c on c.oid = s.starelid
            where c.relnamespace = 'tenure'::regnamespace),
           (select string_agg(v::text, ',' order by v::text) from tenure.schema_version v)
"""
TABLES = """
    select oid::regclass::text from pg_class
    where relkind = 'r' and pg_relation_size(oid) > 0 and relname <> 'schema_version'
      and relnamespace = 'tenure'::regnamespace
"""
SEQUENCES = """
    select string_agg(
        format('setval(%L, %s, false)', schemaname || '.' || sequencename, start_value), ', ')
    from pg_sequences
"""
LEAVE_SECONDS = 10.0


class Recycled:
    """Copies of one template, on one server."""

    def __init__(self, server: Server, template: str) -> None:
        self._server = server
        self._template = template
        self._used: list[str] = []
        self._shapes: dict[str, TupleRow | None] = {}

    def take(self) -> str:
        """The address of an empty migrated database."""
        while self._used:
            url = self._used.pop()
            if self._is_clean(url):
                return url
            del self._shapes[url]
            KEPT.pop(url).close()
            self._server.drop_database(url)
        url = self._server.create_database(template=self._template)
        KEPT[url] = psycopg.connect(url, autocommit=True, application_name=KEEPER)
        self._shapes[url] = KEPT[url].execute(SHAPE).fetchone()
        return url

    def give_back(self, url: str) -> None:
        """The test that used this database is over, or its fixtures are about to end."""
        self._used.append(url)

    def close(self) -> None:
        """Close the connections."""
        for url in self._shapes:
            KEPT.pop(url).close()

    def _is_clean(self, url: str) -> bool:
        keeper: Connection = KEPT[url]
        try:
            return (
                _alone(keeper)
                and keeper.execute(SHAPE).fetchone() == self._shapes[url]
                and _emptied(keeper)
            )
        except psycopg.Error:  # the server is down, or the connection was ended
            return False


def _alone(connection: Connection) -> bool:
    deadline = time.monotonic() + LEAVE_SECONDS
    while connection.execute(STRANGERS).fetchone() != (0,):
        if time.monotonic() > deadline:
            return False
    return True


def _emptied(connection: Connection) -> bool:
    if used := [str(name) for (name,) in connection.execute(TABLES)]:
        connection.execute(f"truncate {', '.join(used)}".encode())
    for (restart,) in connection.execute(SEQUENCES).fetchall():
        connection.execute(f"select {restart}".encode())
    return True
