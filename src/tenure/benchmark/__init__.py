"""What `tenure bench` runs: real worker processes on a database of the user's.

tasks      the application, whose handlers do nothing
__main__   the worker processes: python -m tenure.benchmark PROCESSES QUEUE...
workers    these processes, as the one that measures sees them
measure    the rounds, the audit, the cleaning up
figures    medians, and what they say
"""
