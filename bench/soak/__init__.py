"""A worker that runs for a long time at half of its peak: does anything grow?

python -m bench.soak --minutes 20 --out soak-results
"""
