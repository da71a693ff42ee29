"""Several worker processes.

supervised.py   one worker process, started by a supervisor
supervisor.py   starts, watches, replaces and stops them
"""
