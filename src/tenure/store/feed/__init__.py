"""The feed of finished jobs.

readers.py   readers with a position of their own follow the feed
hooks.py     what is enqueued when a job fails
records.py   the rows that statements return
"""
