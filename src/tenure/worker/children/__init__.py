"""Handlers in child processes.

minder.py     the executor: a thread minds each child
process.py    one child process, as its minder sees it
child.py      the child process itself
watchdog.py   ends the children of a worker that was killed
messages.py   the messages between the two, and their channel
app_ref.py    how another process finds the same application
"""
