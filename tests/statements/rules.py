"""The rules that stand between this design and lost or doubled work, each by name.

A model of the protocol broke without each of them. Every rule has a test that is tied to it with
`@rule(name)` and a patch in scripts/bugs/rules.py that takes it out of the code, so that the
test can be seen failing: `make bugs`.
"""

RULES = {
    "void-tickets": "a claim that took only void tickets claims again at once",
    "flagged-not-handed-out": "a claim finishes a job asked to cancel, and does not hand it out",
    "lease-must-exist": "a settlement needs the worker's own lease row, whatever the token says",
    "token-guard": "a write about a running job needs the job's present token",
    "read-back": "a settlement that changed nothing looks whether it had landed before",
    "read-back-own": "only this worker's own settlement counts as landed; a sweep's does not",
    "read-back-not-in-callers": "in the caller's transaction a settlement landed before is refused",
    "lease-kept-while-live": "a lease goes only when none of its jobs is live under its token",
    "sweep-keeps-lease": "a sweep removes from a lease only what it took back",
    "charge-started": "a sweep charges jobs reported started, and those alone on their lease",
    "charge-block": "being the last that is left on a swept lease is not being alone on it",
    "suspects-alone": "a job with a crash on record gets a lease of its own",
    "cancel-later-statement": "cancel looks for the ticket after it has the job's lock",
    "cancel-token": "cancel takes a ticket only when the ticket has the job's token",
    "flagged-retry": "a retry of a job asked to cancel ends it",
    "flagged-release": "a snooze or release of a job asked to cancel ends it",
    "flagged-sweep": "a sweep ends a job asked to cancel",
    "flagged-free": "a child asked to cancel is not put in line by its parents' end",
    "replay-token": "replay gives the job a new token",
    "replay-attempts": "replay starts to count attempts anew",
    "replay-key": "replay takes the unique key again, or is refused",
    "enqueue-repeat": "the repeat of an unanswered enqueue sees that its jobs have finished",
    "enqueue-compare": "the repeat of an unanswered enqueue takes no stranger's row for its own",
    "keys-not-null": "no part of a unique key can be null",
    "key-mine": "a job gives back a key only while it is the holder",
    "lock-by-id": "jobs are locked in the order of their ids",
    "decide-after-locks": "whether a child is free is decided after its lock is held",
    "retry-deadlocks": "a transaction that the database sacrificed runs again as a whole",
    "pause-sees-claims": "pause returns when every claim from before it has ended",
    "one-ticket": "a ticket is valid only at the place that the job names",
    "late-heartbeat": "a heartbeat after the deadline is refused, swept or not",
    "skip-locked": "a claim passes over tickets that somebody locks",
    "one-comparison": "errors and crashes end a job by the same comparison",
    "token-grows": "the token grows each time a job is put in line",
    "begin-immediate": "a writing transaction on SQLite takes the lock before its first read",
}
