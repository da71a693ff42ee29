"""Known bugs, each a small patch that is put into a copy of the code to see what finds it.

bug      what a bug is, and how its patch is applied
rules    the marked rules, each taken out: see tests/support/rules.py; flow_rules: of workflows
store    bugs of stores: claims, leases, keys, parents, gates, schedules, tenants, transactions
searches bugs of searches: filters, walks, pages
keep     bugs of retention, of keys that outlive their jobs, of tasks that no worker has
statistics  bugs of statistics: ends that count twice, not at all, or in the wrong place
feed     bugs of the feed of finished jobs, and of failure hooks
worker   bugs of the worker: heartbeats, settlements, slots, shutdown, handlers
options  bugs of options: workers that end, deadlines, replacement, batches
finding  the layers that look for a bug, the cheapest first
"""

from scripts.bugs.bug import Bug
from scripts.bugs.feed import FEED
from scripts.bugs.keep import KEEP
from scripts.bugs.options import OPTIONS
from scripts.bugs.rules import RULES
from scripts.bugs.searches import SEARCHES
from scripts.bugs.statistics import STATISTICS
from scripts.bugs.store import STORE
from scripts.bugs.worker import WORKER

BUGS: tuple[Bug, ...] = (
    *RULES, *STORE, *SEARCHES, *KEEP, *STATISTICS, *FEED, *WORKER, *OPTIONS,
)  # fmt: skip
