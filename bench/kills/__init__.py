"""Workers of ours and of other queues, killed in the same way: what is lost, repeated, stuck.

python -m bench.kills                   # everybody, a table at the end
python -m bench.kills pgqueuer huey --kills 20
"""
