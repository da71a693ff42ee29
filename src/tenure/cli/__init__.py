"""The command line: `tenure COMMAND`. It consumes the client only, and holds no SQL.

main.py      the commands, loaded one by one    desk.py     what every command shares
config.py    where settings come from           show.py     tables, times, JSON
filters.py   one grammar to choose jobs         screen.py   a view that repaints itself
endings.py   errors become exit codes           apps.py     the application that is named
passwords.py kept out of all that is written
jobs.py operate.py queues.py worker.py database.py health.py top.py    the commands
"""
