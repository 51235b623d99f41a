"""Steps of advection in a periodic box by Dedalus 3: products on the grid, derivatives of coefficients."""

import dedalus.public as d3
import numpy as np

POINTS = 64
STEPS = 5

coords = d3.CartesianCoordinates("x", "y", "z")
dist = d3.Distributor(coords, dtype=np.float64)
bases = [d3.RealFourier(c, size=POINTS, bounds=(0, 2 * np.pi)) for c in coords.coords]
s = dist.Field(name="s", bases=bases)
x, y, z = dist.local_grids(*bases)
s["g"] = np.sin(x + 2 * y) * np.cos(3 * z) + 0.2 * np.cos(2 * x) * np.sin(y)
slope = sum(d3.Differentiate(s, c) for c in coords.coords)
for _ in range(STEPS):
    change = (s * slope).evaluate()
    change.change_scales(1)
    s["g"] -= 1e-3 * change["g"]
    s["c"]  # to coefficients
energy = dist.comm.gather(np.sum(s["g"] ** 2), root=0)
if dist.comm.rank == 0:
    print(f"energy {sum(energy) / POINTS**3:.15e}")
