"""The command line: `tenure COMMAND`. It uses the client only and contains no SQL.

main.py       the list of commands; imports the module of a command when it is called
context.py    what every command shares: the client, confirmation, common options
words.py      global options in any place, guesses of commands
config.py     settings from pyproject.toml
filters.py    the grammar that chooses jobs: ids, `state=failed queue=mail`, `all`
exit.py       errors become one line on stderr and an exit code
apps.py       import the application that a command names
output.py     the one place that writes: no control characters from stored data
show.py       tables, times, JSON
screen.py     a terminal view that repaints itself

jobs.py       enqueue, ls, get, why, timeline, attempts, steps, errors
operate.py    replay, cancel, hold, unhold, move, rm, prune
queues.py     queues, workers
stats.py      stats
gate.py       gate list, show, set, reset
key.py        key get, free
feed.py       feed list, add, read, remove
schedule.py   schedule list, show, add, edit, pause, resume, trigger, remove
workflow.py   workflow list, show, cancel, pause, resume, replay
worker.py     worker
dev.py        dev
reload.py     run a command again when a source file changes
reloaded.py   the child process of --reload
database.py   db init, migrate, status, sql; copy
health.py     health, doctor
troubles.py   what keeps jobs from making progress, in words
top.py        top
bench.py      bench
"""
