"""Tenure beside other Python job queues, in the same run: `python -m bench peers`.

adapters/     one file per peer: nothing but its public API, at its best documented settings
board.py      what ran, how often and when: memory that the processes of a trial share
stage.py      one step of a trial, in a process and a virtual environment of its own
environments  the virtual environments, made when they are needed
trial.py      one competitor on one fresh database: enqueue, drain, look

What runs inside a peer's environment (adapters, board, stage) needs the standard library only.
"""
