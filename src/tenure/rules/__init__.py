"""The rules: pure functions and records. No I/O, no clock; every caller decides by them.

record.py       the base of the records that clients read
job.py          the records that travel between client, store and worker
limits.py       the checks of names, numbers, times and sizes
lifecycle.py    the state machine, and what an outcome does to a job
retry.py        how long to wait before a retry
retention.py    how long finished jobs are kept, and when prune trusts the clock
ticks.py        when a schedule ticks
gates.py        what a gate limits
permits.py      which jobs pass a gate: permits, and the turns of lines
claim.py        which slots a job needs, what a claim takes and returns
graph.py        what makes a workflow valid, and how it ends
codec.py        values to strict JSON and back
arriving.py     whether a value arrives as it was sent
filters/        the language that chooses jobs
statistics.py   what is counted of ended attempts, and what follows from it
ends.py         the ends of jobs, as readers of the feed and failure hooks get them
notes.py        the small values that a running job adds to itself
attempts.py     the attempts of a job, told by its timeline
why.py          where a job is and why it does not run, as a sentence
"""
