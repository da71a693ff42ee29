"""The copy of all jobs from one store to another.

run.py      the copy, chunk by chunk, and the comparison at the end
tables.py   what is copied: the tables and their order
"""
