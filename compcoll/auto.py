"""``import compcoll.auto``, before anything asks MPI for a communicator, and a program is accelerated.

`MPI.COMM_WORLD` and `MPI.COMM_SELF` are wrapped with the policy of ``COMPCOLL_CODEC`` and
``COMPCOLL_CONFIG``, else with codec ``auto``. All ranks have to import this module. Like ``compcoll run``, it
lets an uncaught exception on one rank end all ranks, and at the end rank 0 prints a summary.
"""

from compcoll.core.library import check_mpi

check_mpi()

from compcoll.comm import wrap_world  # noqa: E402
from compcoll.engine.start import job_settings  # noqa: E402
from compcoll.tracing.recording import fail_on_error  # noqa: E402

__all__: list[str] = []

wrap_world(**job_settings())  # empty unless a wrapper has started this rank
fail_on_error()
