"""`tenure bench`: measures real worker processes on the user's database.

tasks      the measured application; its handlers do nothing
__main__   the worker processes: python -m tenure.benchmark PROCESSES QUEUE...
workers    starts, watches and stops these processes
measure    the rounds, the audit, the clean-up
scratch    a schema or folder for the measurement, removed afterwards
figures    medians, and which resource is the limit
"""
