"""The benchmarks that the command runs: OSU's operations, the lab of namespaces, and the demo.

A wheel has them here; a checkout has them, and more, beside the package.
"""

from pathlib import Path

_beside = Path(__file__).parents[2] / "benchmarks"
if (_beside / "osu" / "operations.py").exists():
    __path__ = [*__path__, str(_beside)]
