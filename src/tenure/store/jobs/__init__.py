"""Operations on jobs.

enqueue.py      store new jobs with their tickets, keys and parents
replace.py      enqueue with a key that a waiting job has: change that job
claim.py        peek; take tickets, put their jobs on leases; what a worker holds
choose.py       claims by task names, or in one order across queues
settle.py       end attempts
sweep.py        promote, extend leases, sweep expired ones
expire.py       end jobs that were not started in time
notes.py        progress and checkpoints of running jobs
steps.py        recorded steps of running jobs
operate.py      cancel, hold, move, delete; pause and resume queues
replay.py       run a finished job again
named_keys.py   unique keys by their names: look up, free
bulk.py         cancel, hold, move, replay and delete of many jobs at a time
"""
