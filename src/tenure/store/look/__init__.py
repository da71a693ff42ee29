"""Reads. Only `announce` and `retire` of workers write.

jobs.py         jobs, timelines, counts
facts.py        all that `why` needs, from one snapshot
health.py       how long due jobs, expired leases and gates have waited
idle.py         whether queues have any work left
workers.py      workers: announce, retire, list
records.py      the rows that reads return
"""
