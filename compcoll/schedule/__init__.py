"""Schedules: what an algorithm does on one rank, as data that is made once and run many times."""
