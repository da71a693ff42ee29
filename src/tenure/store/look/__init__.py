"""Operations that read.

jobs.py      jobs, their history, counts
workers.py   workers: announce, retire, list
"""
