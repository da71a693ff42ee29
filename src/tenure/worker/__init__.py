"""The worker: claims blocks of jobs, runs their handlers, and settles them in batches.

worker.py        what users call: run, serve, stop; signals
supervisor/      several worker processes
loop.py          the event loop of a worker process
process.py       one worker process: builds its parts and runs them
settling/        ends attempts, writes settlements, renews leases, stops handlers, drains
claiming/        claims jobs and starts them as slots come free
upkeep/          work for all workers: promote, sweep, prune, heal, fire schedules
children/        handlers in child processes
running/         one attempt: runs the handler, as a coroutine or in a thread
backlog.py       ended attempts that wait to be written
watchlist.py     jobs with a time limit, jobs told to stop, stuck jobs
events.py        log lines and events about jobs
stores.py        the connections
leases.py        the leased jobs
settings.py      the settings
environment.py   the seam to time, randomness, threads and processes

A module imports only from those below it in this list.
"""
