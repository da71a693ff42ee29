"""Several worker processes.

supervised.py   one worker process, started by a supervisor
supervisor.py   starts, watches, replaces and stops them
logs.py         the log format of all processes of `tenure worker`
"""
