"""Runs handlers.

coroutines.py       the executor of `async def` handlers
threads.py          the executor of `def` handlers, and the base of all executors with threads
executor.py         what all executors share: slots and a backlog
run.py              one attempt, from the arguments to the settlement: the same body everywhere
attempt.py          how an attempt ended, as a settlement; pure
context.py          the running job that handlers get
steps.py            its steps
daemon_threads.py   the threads of `asyncio.to_thread`
"""
