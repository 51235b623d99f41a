// Imitates a library with persistent collectives, by which Open MPI 5 and later are told from earlier
// versions.
int PMPI_Alltoall_init(void) { return 1; }
