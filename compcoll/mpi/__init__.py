"""The face of mpi4py: communicators, their arguments and requests."""
