"""The operations of OSU's benchmarks, which ``compcoll bench`` runs.

A wheel has them here; a checkout has them, and all other benchmarks, beside the package.
"""

from pathlib import Path

_beside = Path(__file__).parents[2] / "benchmarks"
if (_beside / "osu" / "operations.py").exists():
    __path__ = [*__path__, str(_beside)]
