"""One extension, its codec sources compiled once per instruction-set level and chosen at run time."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

X86 = platform.machine().lower() in {"x86_64", "amd64"}
# No contraction and no reassociation: the GPU's kernels must give the same bytes.
CFLAGS = [
    "-std=c++17", "-O3", "-ffp-contract=off", "-fvisibility=hidden",
    "-Wall", "-Wno-psabi", "-Wno-maybe-uninitialized", "-Wno-uninitialized",
]  # fmt: skip
LEVELS = {"baseline": []}
if X86:
    LEVELS["avx2"] = ["-march=x86-64-v3"]
    LEVELS["avx512"] = ["-march=x86-64-v4", "-mprefer-vector-width=512"]
ONCE = ["csrc/cpu/dispatch.cpp"]
PER_LEVEL = sorted(set(map(Path.as_posix, Path("csrc/cpu").glob("*.cpp"))) - set(ONCE))
HEADERS = glob("csrc/**/*.h", recursive=True)


class BuildLevels(build_ext):
    """Compiles PER_LEVEL once for each of LEVELS, in parallel, and links the objects into the extension."""

    def build_extension(self, ext):
        built = self.get_ext_fullpath(ext.name)
        if not (self.force or newer_group([*ext.sources, *ext.depends], built, "newer")):
            return
        jobs = [(name, flags, source) for name, flags in LEVELS.items() for source in PER_LEVEL]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: self.compile_level(ext, *job), jobs))
        ext.extra_objects = [path for group in objects for path in group]
        super().build_extension(ext)

    def compile_level(self, ext, name, flags, source):
        return self.compiler.compile(
            [source],
            output_dir=f"{self.build_temp}/{name}",
            include_dirs=ext.include_dirs,
            macros=[("CC_LEVEL", name), *ext.define_macros],
            extra_postargs=[*CFLAGS, *flags],
            depends=HEADERS,
        )


extension = Extension(
    "compcoll._cpu",
    sources=["compcoll/_cpu.pyx", *ONCE],
    include_dirs=["csrc"],
    define_macros=[("CC_X86", "1")] if X86 else [],
    extra_compile_args=CFLAGS,
    depends=["setup.py", *HEADERS, *PER_LEVEL],
    language="c++",
)

setup(ext_modules=cythonize([extension]), cmdclass={"build_ext": BuildLevels})
