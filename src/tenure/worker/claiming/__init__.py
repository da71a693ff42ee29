"""Claims jobs, and starts them as slots come free.

claimer.py   the claim loop
intake.py    takes claimed jobs on, starts them, and puts back those that cannot start
batches.py   gathers jobs of batch tasks
gates.py     how many jobs of a gate this worker may run
slots.py     how many jobs, from which queue, how far ahead, and which must run alone
polling.py   when to look for work
"""
