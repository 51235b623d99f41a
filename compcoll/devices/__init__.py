"""GPUs: kernels compiled for the engine, and arrays of CuPy and torch. The engine launches and copies itself.

cuda.py         kernels of a GPU, through CuPy, for the engine
kernels.py      their names; nvrtc.py their source
arrays.py       buffers in host memory; memory.py memory of GPUs
aware.py        MPI's report on device memory; handover.py a trial of it
"""
