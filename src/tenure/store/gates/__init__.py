"""Operations at gates.

passing.py   which tickets pass a gate, and what happens to the turns
limits.py    declared and overridden limits; repair of gate rows
look.py      reads: limits, running and waiting jobs
"""
