"""Keeps leases alive, and stops attempts: timeout, cancellation, lost lease, shutdown.

drain.py          the end of a shutdown
heartbeat.py      renews leases, from a thread; learns of lost leases and cancelled jobs
timekeeper.py     stops attempts: timeout, cancellation, lost lease
blocked_loop.py   times out async jobs while a handler blocks the event loop
loop_watch.py     reports a handler that blocks the event loop
"""
