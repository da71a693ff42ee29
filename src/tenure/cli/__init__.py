"""The command line: `tenure COMMAND`. It uses the client only and contains no SQL.

main        the list of commands; imports the module of a command when it is called
context     what every command shares: the client, confirmation, common options
config      settings from pyproject.toml
filters     the grammar that chooses jobs: ids, `state=failed queue=mail`, `all`
exit        errors become one line on stderr and an exit code
apps        import the application that a command names
show        tables, times, JSON
screen      a terminal view that repaints itself

jobs        enqueue, ls, get, why, timeline, steps, errors
operate     replay, cancel, hold, unhold, move, rm, prune
queues      queues, workers, stats
gate        gate list, show, set, reset
schedule    schedule list, show, add, edit, pause, resume, trigger, remove
workflow    workflow list, show, cancel, pause, resume, replay
worker      worker
database    db init, migrate, status, sql; copy
health      health, doctor
top         top
bench       bench
"""
