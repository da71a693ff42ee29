"""Loads that differ in kind: how does the cost grow with backlog, time, workers and features?"""
