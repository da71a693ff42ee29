"""SQLite.

session.py        transactions on one file, shared by the threads of a process
tx.py             one open transaction
gates.py          the lines at gates, one statement per line
group_commit.py   how the threads of a process share one connection
threads.py        where the operations of an async store run
driver.py         one connection, by `apsw` or by `sqlite3`
borrow.py         the caller's own connection
migrate.py        migrations of one file
boot_clock.py     the clocks of a host: leases use the time since boot
bell.py           the bell: looks for new tickets
inotify.py        Linux reports writes to the file
"""
