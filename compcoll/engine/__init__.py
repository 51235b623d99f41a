"""The engine and the layer for Python: bindings, the process's engine, ranks on nodes, reports of calls.

_engine.pyx     bindings of csrc/engine and csrc/layer; the `.pxi` files beside it are parts of this module
start.py        the process's engine; finalize.py its end, hooks.py callbacks for calls
group.py        the ranks of a communicator: nodes, cores (cores.py) and GPUs; memory.py sizes of memory
report.py       `Report` and `Summary`
"""
