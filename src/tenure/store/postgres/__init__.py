"""PostgreSQL.

session.py               transactions: READ COMMITTED, few connections, bounded retries
tx.py                    one open transaction
connection.py            one connection, sync or async
borrow.py                the caller's own connection
psycopg2_connection.py   the caller's psycopg2 connection
asyncpg_connection.py    the caller's asyncpg connection
floors.py                positions below which no ticket can appear
copy_format.py           new jobs in the text format of COPY
notify.py                notifications that wake idle workers
bell.py                  the bell: one connection that listens
errors.py                PostgreSQL's errors as ours
"""
