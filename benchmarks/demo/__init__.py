"""One flow, simulated with plain MPI and with several codecs: ``make demo``, ``python -m benchmarks.demo``.

__main__.py      the command: starts ranks on this machine, and on hosts with slow links
program.py       the simulations side by side, their table and verdicts
taylor_green.py  the solver; slab_fft.py its transposes
figure.py        the picture
"""
