"""PostgreSQL: connections, transactions, wake-ups. Its statements are in sql/.

session.py      transactions, retries, the connections of a store
connection.py   one connection, blocking or awaited
tx.py           the open transaction
find.py         the terms of a filter as SQL
late.py         ends a request without a reply before it is repeated
errors.py       what an error of the server means
floors.py       where a claim starts to read
notify.py       which transaction notifies
bell.py         rings when a notification comes
copy_format.py  jobs as rows of COPY
borrow.py       the caller's own connection
lending.py      a connection of the store for its caller
asyncpg_connection.py   a caller's connection of asyncpg
psycopg2_connection.py  a caller's connection of psycopg2
"""
