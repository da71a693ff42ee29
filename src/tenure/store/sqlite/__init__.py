"""SQLite: one file, shared by threads and processes. Its statements are in sql/.

session.py      transactions, forks
connections.py  the connections of one process, and their locks
group_commit.py  threads share one commit
threads.py      the threads of an async store
tx.py           the open transaction
find.py         the terms of a filter as SQL
gates.py        the lines at gates, one after the other
lanes.py        which tickets a claim takes from the lanes of a queue
driver.py       apsw or sqlite3; every refusal on opening
migrate.py      the schema of a file
inspect_file.py  is a file one of ours? It looks without writing
wal.py          which reader keeps the log from being emptied
boot_clock.py   the clock by which leases expire
bell.py         rings when a ticket was added
borrow.py       the caller's own connection
lending.py      a connection of the store for its caller
"""
