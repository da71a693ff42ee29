"""Benchmarks that compare Tenure with a bare SQL loop in the same run: `python -m bench list`."""
