"""The worker: claims blocks of jobs, runs their handlers, settles them in batches.

worker.py     what users hold: run, serve, stop     crew.py member.py    several processes
loop.py       its event loop                        shift.py   one process at work
claimer.py    the claim loop        slots.py      how many, from which queue, and how far ahead
executors.py  coroutines, threads
children.py child_process.py child.py messages.py elsewhere.py    processes
attempt.py    how an attempt ended  settler.py    batches of settlements
heartbeat.py  leases renewed        services.py   promote, sweep, prune
telling.py    log lines and events
context.py    the running job       leased.py    what is in hand
environment.py      the seam to time, chance and processes              recorder.py    what happened
"""
