"""Operations on schedules.

records.py   schedules as records and as rows, and the job of one tick
change.py    add, edit, pause, resume, trigger, remove, declare, list
fire.py      enqueue the jobs of due ticks
"""
