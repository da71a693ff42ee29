"""The worker: claims blocks of jobs, runs their handlers, and settles them in batches.

worker.py        what users call: run, serve, stop
supervisor/      several worker processes
loop.py          the event loop of a worker process
process.py       one worker process: builds its parts and runs them
stopping/        renews leases; stops attempts: timeout, cancellation, lost lease, shutdown
claiming/        claims jobs and starts them as slots come free
upkeep/          work for all workers: promote, sweep, prune, heal, fire schedules
children/        handlers in child processes
settler.py       ends attempts: frees their slots, and writes their settlements in batches
running/         one attempt: runs the handler, as a coroutine or in a thread
counting.py      counts how attempts end, for statistics
events.py        log lines and events about jobs
stores.py        the connections
memory.py        gives memory back after large jobs
leases.py        the leased jobs, and those with a time limit, told to stop, or stuck
logs.py          how all processes of a worker log
protected.py     the event loop and the tasks of a worker, protected from its handlers
settings.py      the settings
signals.py       the signals that end a worker
environment.py   the seam to time, randomness, threads and processes

A module imports only from those below it in this list.
"""
