"""Reads. Only `announce` and `retire` of workers write.

jobs.py         jobs, timelines, counts
facts.py        all that `why` needs, from one snapshot
workers.py      workers: announce, retire, list
"""
