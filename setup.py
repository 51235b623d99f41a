"""The extensions. Codecs are compiled once per instruction-set level, and chosen at run time."""

import os
import re
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from glob import glob
from pathlib import Path
from sysconfig import get_config_var, get_platform, get_python_version

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel
from setuptools.modified import newer_group

# True if the target, which need not be this machine, is x86-64.
X86 = get_platform().endswith(("x86_64", "amd64"))
# No contraction and no reassociation: the GPU's kernels must give the same bytes.
CFLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
]
# Code that only calls codecs and MPI: -O2 takes half as long again to compile and is no faster.
GLUE = "-O1"
LEVELS = {"baseline": []}
if X86:
    LEVELS["baseline"] = ["-O2", "-fpeel-loops", "-fvect-cost-model=dynamic"]  # quicker to compile, and rare
    LEVELS["avx2"] = ["-march=x86-64-v3"]
    LEVELS["avx512"] = ["-march=x86-64-v4", "-mprefer-vector-width=512"]
ONCE = ["csrc/cpu/dispatch.cpp"]
PER_LEVEL = sorted(set(map(Path.as_posix, Path("csrc/cpu").rglob("*.cpp"))) - set(ONCE))
CODEC_HEADERS = glob("csrc/*.h") + glob("csrc/cpu/**/*.h", recursive=True)
HEADERS = [*CODEC_HEADERS, *glob("csrc/engine/*.h"), *glob("csrc/layer/*.h")]
# Flags of sanitizers.
MORE = os.environ.get("COMPCOLL_ENGINE_FLAGS", "").split()


class Build(build_ext):
    """Build the shared object first, then the extensions that are linked with it.

    The shared object's codecs are compiled once for each of LEVELS.
    """

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def get_libraries(self, ext):
        """Leave out libpython: preloaded objects must not bring it into programs."""
        return ext.libraries if ext in (native, names) else super().get_libraries(ext)

    def build_extensions(self):
        every = self.extensions
        for self.extensions in (
            [ext for ext in every if ext is native],
            [ext for ext in every if ext is not native],
        ):
            super().build_extensions()
        self.extensions = every

    def build_extension(self, ext):
        if ext is not native:
            library = Path(self.get_ext_fullpath(native.name))
            own = copy(self)  # some extensions have sources in common, and are compiled at the same time
            own.build_temp = f"{self.build_temp}/{ext.name}"
            if ext.name in BINDINGS:
                ext.extra_link_args = [
                    *MORE,
                    f"-L{library.parent}",
                    f"-l:{library.name}",
                    "-Wl,-rpath,$ORIGIN/..",
                ]
            super(Build, own).build_extension(ext)
            return
        built = self.get_ext_fullpath(ext.name)
        if not (self.force or newer_group(ext.depends, built, "newer")):
            return
        # The longest jobs come first: the widest vectors, and the last sources in the alphabet.
        levels = reversed(LEVELS.items())
        jobs = [(name, [*CFLAGS, *flags], source) for name, flags in levels for source in reversed(PER_LEVEL)]
        jobs += [
            ("once", FLAGS[Path(source).parts[1]], source) for source in SOURCES if source not in PER_LEVEL
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: self.compile_one(ext, *job), jobs))
        ext.extra_objects = [path for group in objects for path in group]
        ext.extra_link_args = [*MORE, *ext.extra_link_args, f"-Wl,-soname,{Path(built).name}"]
        super().build_extension(ext)

    def compile_one(self, ext, name, flags, source):
        return self.compiler.compile(
            [source],
            output_dir=f"{self.build_temp}/{name}",
            include_dirs=ext.include_dirs,
            macros=[("CC_LEVEL", name), *ext.define_macros],
            extra_postargs=flags,
            depends=HEADERS,
        )


class EditableWheel(editable_wheel):
    """Put the clone on the path, and nothing else: the package finds the folders beside it.

    If these folders were mapped, an import finder would be installed. Python asks it last, when a clone named
    compcoll in the current folder has already passed for a package.
    """

    def finalize_options(self):
        placed = set(self.distribution.package_dir)
        self.distribution.packages = [name for name in self.distribution.packages if name not in placed]
        self.distribution.package_dir = {"": "."}
        super().finalize_options()


def write_operations(path):
    """Write the table of operations for csrc/layer: a ROW for each, in one of two lists.

    A ROW has the number of arguments; the names of the blocking and the nonblocking function; a letter for
    each argument; and three flags: a rank sends a block to every rank, receives one from every rank, and each
    pair of ranks decides for itself.
    """
    table = runpy.run_path("compcoll/operations.py")
    letters = {"NONE": "", "ONE": "bnt", "EACH": "bnt", "COUNTED": "bvvt", "TYPED": "bvvw"}
    lists = {"ACCELERATED": [], "OTHERS": []}
    for op in table["OPERATIONS"].values():
        sides = letters[op.send.name] + letters[op.recv.name]
        kinds = f"bb{'v' if op.counts else 'n'}to" if op.reduces else sides
        kinds += "rc" if op.root else "c"
        facts = (op.send.many, op.recv.many, op.decides.name == "PAIR")
        flags = ", ".join(str(fact).lower() for fact in facts)
        row = f'ROW({len(kinds)}, {op.name}, {op.nonblocking}, "{kinds}", {flags})'
        lists["ACCELERATED" if op.algorithms else "OTHERS"].append(row)
    macros = (f"#define {name}(ROW) \\\n  " + " \\\n  ".join(rows) for name, rows in lists.items())
    notes = "// Written by setup.py from compcoll/operations.py.", "// clang-format off"
    text = "\n".join([*notes, *macros, ""])
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


write_operations(Path("csrc/layer/operations.h"))

SOURCES = [*PER_LEVEL, *ONCE, *sorted(glob("csrc/engine/*.cpp")), *sorted(glob("csrc/layer/*.cpp"))]

# Not a module: the shared object of codecs, engine and layer, which programs without Python load as well.
native = Extension(
    "compcoll._native",
    sources=[],
    include_dirs=["csrc"],
    define_macros=[
        ("COMPCOLL_LIBPYTHON", f'"libpython{get_python_version()}{sys.abiflags}.so.1.0"'),
        *([("CC_X86", "1")] if X86 else []),
    ],
    extra_link_args=["-Wl,--version-script=csrc/exports.map", "-Wl,-Bsymbolic-functions"],
    libraries=["dl"],
    depends=["setup.py", "csrc/exports.map", *HEADERS, *SOURCES],
    language="c++",
)
# Flags by the folder of a source. The layer runs in every call, so it is optimised more than the engine.
_NATIVE = ["-std=c++17", "-g0", "-Wall", "-fvisibility-inlines-hidden", "-fno-semantic-interposition", *MORE]
FLAGS = {
    "cpu": [*CFLAGS, GLUE, "-fvisibility=default"],
    "engine": [*_NATIVE, GLUE],
    "layer": [*_NATIVE, "-O2"],
}

# Not a module either: this object is preloaded into programs, and loads the shared object.
names = Extension(
    "compcoll._names",
    sources=["csrc/preload/preload.cpp"],
    include_dirs=["csrc"],
    define_macros=[("COMPCOLL_LAYER", f'"_native{get_config_var("EXT_SUFFIX")}"')],
    extra_compile_args=["-std=c++17", GLUE, "-g0", "-Wall", "-fvisibility=hidden"],
    extra_link_args=["-static-libstdc++", "-static-libgcc"],
    libraries=["dl"],
    depends=["setup.py", "csrc/layer/operations.h", "csrc/layer/message_table.h"],
    language="c++",
)


def binding(name):
    """An extension that binds the shared object."""
    return Extension(
        name,
        sources=[f"{name.replace('.', '/')}.pyx"],
        include_dirs=["csrc", np.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=["-std=c++17", GLUE, "-g0", "-Wall", *MORE],
        depends=["setup.py", *HEADERS, *glob("compcoll/*/*.pxd"), *glob("compcoll/*/*.pxi")],
        language="c++",
    )


BINDINGS = ["compcoll.core._cpu", "compcoll.core._gpu", "compcoll.engine._engine"]


def description():
    """README.md with links into the clone as plain text: on a package's page they would lead nowhere."""
    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"!?\[([^\]]*)\]\((?!https?:|#)[^)]*\)", r"\1", text)


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[native, names, *cythonize(list(map(binding, BINDINGS)))],
    cmdclass={"build_ext": Build, "editable_wheel": EditableWheel},
)
