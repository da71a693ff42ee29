"""The whole product, one subject per file, in order. Every test runs on SQLite and on PostgreSQL.

`working(app)` stands for a process that calls `app.run_worker()`.
"""
