"""Reads. Only `announce` and `retire` of workers write.

jobs.py         one job, timelines, counts
find.py         pages of jobs that match a filter
cursors.py      where the next page of a list starts
walks.py        the indexes that a search walks along
facts.py        all that `why` needs, from one snapshot
health.py       how long due jobs, expired leases and gates have waited
idle.py         whether queues have any work left
workers.py      workers: announce, retire, list
records.py      the rows that reads return
"""
