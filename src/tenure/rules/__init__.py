"""The rules: pure functions and records, without a database, a clock or a process.

limits.py      the limits of what a caller passes, and the checks that enforce them
job.py         the records that client, store and worker exchange
codec.py       values to strict JSON and back
lifecycle.py   the state machine of a job
retry.py       how long to wait before the next attempt
gates.py       how many jobs may run or start, and which line is next
ticks.py       when a schedule ticks
graph.py       workflows: their records, what makes a graph valid, and how it ends
why.py         where a job is and why it does not run, as a sentence
"""
