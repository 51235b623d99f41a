"""A call: its decision, its schedule, its execution."""
