"""Operations on schedules.

records.py      a schedule as it is stored and shown; the rows that statements return
change.py       add, edit, pause, resume, trigger, remove, declare
fire.py         enqueue the jobs of due ticks
"""
