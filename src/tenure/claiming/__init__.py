"""Claim and settle jobs by hand, in a loop of your own.

claimer.py       `Claimer` and `AsyncClaimer`: what users call
jobs.py          the claimed jobs: their data, and how to end them
core.py          what both claimers do, in one body
counting.py      counts how jobs end, for statistics
heartbeats.py    a thread that renews the leases
housekeeping.py  promote, sweep, expire, fire, heal and prune in one call
"""

from tenure.claiming.claimer import AsyncClaimer, Claimer
from tenure.claiming.housekeeping import Housework
from tenure.claiming.jobs import AsyncClaimedJob, ClaimedJob

__all__ = ["AsyncClaimedJob", "AsyncClaimer", "ClaimedJob", "Claimer", "Housework"]
