"""Chaos: producers and workers on one database, disturbed at random, and every invariant after."""
