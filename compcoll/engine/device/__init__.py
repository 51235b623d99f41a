"""Schedules on memory of a GPU: kernels, copies and events in place of the compiled engine."""
