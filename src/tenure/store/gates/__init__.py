"""Operations at gates.

passing.py      a claim takes jobs that wait at gates; the numbered invariants
permits.py      the permits of a worker that has more jobs than permits
walks.py        how claims get past lines that cannot pass
limits.py       the limits of gates; the repair of gate rows
look.py         gates and lines to look at
"""
