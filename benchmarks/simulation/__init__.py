"""Simulation of collectives of thousands of ranks: the library's schedules in virtual time."""
