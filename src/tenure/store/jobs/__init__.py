"""Operations on jobs.

enqueue.py   add jobs with their tickets, unique keys and parents
claim.py     consume tickets and put their jobs on a lease
settle.py    end attempts
sweep.py     promote due jobs, extend leases, sweep expired leases
steps.py     record the results of steps
notes.py     progress reports and checkpoints
operate.py   cancel, hold, move, delete; pause and resume queues
replay.py    run a finished job again
"""
