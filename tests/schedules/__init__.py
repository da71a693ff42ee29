"""Schedules under many workers, deaths, outages and odd clocks."""
