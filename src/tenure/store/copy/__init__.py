"""All jobs of one store into another one.

run.py          the copy, step by step
tables.py       what is copied of each table, and how
"""
