"""When compression pays: machine profiles, and predictions from the real algorithms in virtual time."""
