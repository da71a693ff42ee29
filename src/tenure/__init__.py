"""Tenure: durable jobs for Python on the SQL database you already have."""

__version__ = "0.1.0"
