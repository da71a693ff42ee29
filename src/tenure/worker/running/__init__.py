"""Runs handlers.

executors.py        the executors of `async def` and `def` handlers: slots, runners, threads
batch.py            one call of a batch handler: each item is settled on its own
run.py              one attempt, from the arguments to the settlement: the same body everywhere
attempt.py          how an attempt ended, as a settlement; pure
context.py          the running job that handlers get
steps.py            its steps
daemon_threads.py   the threads of `asyncio.to_thread`
"""
