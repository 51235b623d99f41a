# cython: language_level=3
# distutils: language = c++
"""Internals of compiled code for tests and benchmarks, which import tests/serial/internals.py."""

from math import inf
from time import perf_counter

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes
from compcoll.engine._engine import (
    DONE, handle, INTERRUPTED, LATER, memory_at, raise_ending, stalled, TIMEOUT,
)

from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, static_pointer_cast, unique_ptr
from libcpp.vector cimport vector

from compcoll.core._cpu cimport CCoding, CDeviceFault, CGpu, Coding, Compiled, CSchedule, Error, Problem
from compcoll.core._gpu cimport gpu_by_number
from compcoll.engine._engine cimport problem_of, RunStatistics, signalled
from compcoll.engine.native cimport CEnd, Stats


include "runs.pxi"
include "layouts.pxi"
include "virtual.pxi"
