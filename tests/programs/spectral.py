"""shenfun: Poisson's equation in three dimensions, and a nonlinear wave equation integrated in time."""

import numpy as np
import sympy
from results import Results
from shenfun import (
    Array,
    Function,
    FunctionSpace,
    TensorProductSpace,
    TestFunction,
    TrialFunction,
    comm,
    div,
    grad,
    inner,
    la,
)
from shenfun.config import config

N = 40
# Plans that do not depend on measurements, so that every run rounds alike.
for transform in config["fftw"].values():
    transform["planner_effort"] = "FFTW_ESTIMATE"


def poisson(results: Results, family: str) -> None:
    """Solve Poisson's equation with two periodic directions and one with walls."""
    x, y, z = sympy.symbols("x,y,z", real=True)
    solution = (sympy.sin(4 * y) * sympy.cos(3 * z)) * (1 - x**2)
    force = sum(solution.diff(axis, 2) for axis in (x, y, z))
    walls = FunctionSpace(N, family, bc=(0, 0))
    space = TensorProductSpace(comm, (walls, *(FunctionSpace(N, "F", dtype=kind) for kind in "Dd")))
    u, v = TrialFunction(space), TestFunction(space)
    f_hat = inner(v, Array(space, buffer=force), output_array=Function(space))
    u_hat = la.SolverGeneric1ND(inner(v, div(grad(u))))(f_hat, Function(space))
    found = u_hat.backward()
    assert np.allclose(found, Array(space, buffer=solution), atol=1e-8)
    results.keep(f"poisson {family}", found)
    results.keep(f"poisson {family}, coefficients", u_hat)
    space.destroy()


def wave(results: Results) -> None:
    """Integrate a nonlinear wave by leapfrog, periodic in all directions, with products on a finer grid."""
    x, y, z = sympy.symbols("x,y,z", real=True)
    length = (-2 * sympy.pi, 2 * sympy.pi)
    bases = [FunctionSpace(N, "F", dtype=kind, domain=length) for kind in "DDd"]
    space = TensorProductSpace(comm, bases)
    padded = space.get_dealiased((1.5, 1.5, 1.5))
    u = Array(space, buffer=0.1 * sympy.exp(-(x**2 + y**2 + z**2)))
    k2 = sum(k**2 for k in space.local_wavenumbers(True, True))
    u_hat = u.forward(Function(space))
    before = u_hat.copy()
    for _ in range(4):
        cube = padded.forward(padded.backward(u_hat) ** 3)
        before[:], u_hat[:] = u_hat, 2 * u_hat - before - 1e-4 * ((k2 + 1) * u_hat - cube)
    results.keep("wave", u_hat.backward())


if __name__ == "__main__":
    with Results() as kept:
        for name in ("C", "L"):
            poisson(kept, name)
        wave(kept)
