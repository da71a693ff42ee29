"""`tenure bench`: measures real worker processes on the user's database.

tasks.py      the measured application; its handlers do nothing
__main__.py   the worker processes: python -m tenure.benchmark PROCESSES QUEUE...
workers.py    starts, watches and stops these processes
measure.py    the rounds, the audit, the clean-up
scratch.py    a schema or folder for the measurement, removed afterwards
figures.py    medians, and which resource is the limit
"""
