"""Operations on jobs.

enqueue.py      store new jobs with their tickets, keys and parents
claim.py        take tickets, put their jobs on leases
settle.py       end attempts
sweep.py        peek, promote, extend leases, sweep expired ones
notes.py        progress and checkpoints of running jobs
steps.py        recorded steps of running jobs
operate.py      cancel, hold, move, delete; pause and resume queues
replay.py       run a finished job again
"""
