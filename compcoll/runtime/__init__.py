"""The verbs of algorithms, real (`mpi`) and in virtual time (`simulated`)."""
