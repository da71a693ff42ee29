"""Work that every worker does for all.

upkeep.py   promote due jobs, sweep expired leases, prune, heal, write statistics
ticker.py   declare schedules, and fire them
"""
