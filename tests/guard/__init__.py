"""The regression guard: what work costs, in counts, against the table in budgets.py."""
