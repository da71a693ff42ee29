"""Ends attempts and writes how they ended.

drain.py          the end of a shutdown
heartbeat.py      renews leases, from a thread
timekeeper.py     stops attempts: timeout, cancellation, lost lease
blocked_loop.py   times out async jobs while a handler blocks the event loop
ends.py           an attempt has ended: free its slot, hand over its settlement
settler.py        writes settlements in batches
"""
