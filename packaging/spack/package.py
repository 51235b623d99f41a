"""A package for Spack, from a clone: see docs/install.md."""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyCompcoll(PythonPackage):
    """MPI collectives made faster by compressing what goes over the wire."""

    license("Apache-2.0")

    version("0.1.0")

    variant("bench", default=False, description="What the demo and the plots of the benchmarks need")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    conflicts("%gcc@:10")

    depends_on("python@3.11:", type=("build", "link", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-cython@3.1:", type="build")
    depends_on("py-numpy@2.0:", type=("build", "run"))
    depends_on("py-ml-dtypes@0.5:", type="run")
    depends_on("py-mpi4py@4.0:", type="run")
    depends_on("py-click@8.1:", type="run")
    depends_on("py-rich@13:", type="run")
    depends_on("py-matplotlib@3.8:", type="run", when="+bench")
    depends_on("py-scipy@1.11:", type="run", when="+bench")

    import_modules = ["compcoll", "compcoll.core", "compcoll.engine"]
