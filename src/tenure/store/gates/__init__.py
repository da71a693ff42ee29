"""Operations at gates.

passing.py      a claim takes jobs that wait at gates; the numbered invariants
limits.py       the limits of gates; the repair of gate rows
look.py         gates and lines to look at
"""
