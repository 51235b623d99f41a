"""Contents of an installation, effects of its import, and imports between its packages."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

import compcoll
from compcoll.core import environment
from compcoll.devices.nvrtc import csrc_dir

ROOT = Path(__file__).parents[2]


def test_version_is_that_of_the_project_and_of_the_installation():
    assert f'version = "{compcoll.__version__}"' in (ROOT / "pyproject.toml").read_text().splitlines()
    with suppress(ImportError):  # it runs from its source tree, not installed
        assert version("compcoll") == compcoll.__version__


def test_every_folder_is_packaged():
    """The list of packages is complete: a missing one works here, but not in wheels."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    ours = {p.parent for top in (ROOT / "compcoll", ROOT / "benchmarks" / "osu") for p in top.rglob("*.py")}
    names = {".".join(p.relative_to(ROOT).parts) for p in ours}
    names = {n if n.startswith("compcoll") else f"compcoll.{n}" for n in names}
    sources = {p.parent for p in (ROOT / "csrc").rglob("*.[hc]*")}
    folders = {".".join(("compcoll", *p.relative_to(ROOT).parts)) for p in sources}
    assert set(listed) == names | folders


def test_every_variable_is_known():
    """A variable that is missing in the list would be reported as misspelt."""
    ours = [*(ROOT / "compcoll").rglob("*.p[yx][!c]"), *(ROOT / "compcoll").rglob("*.py")]
    ours += (ROOT / "csrc").rglob("*.[hc]*")
    tests = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    called = r"""(?:environ\W+(?:\w+\()?|getenv\(|variable\(|read\(|"-e", )f?["']COMPCOLL_(\w+)"""
    used = {name for path in (*ours, *tests) for name in re.findall(called, path.read_text())}
    page = re.findall(r"^\| `COMPCOLL_(\w+)`", (ROOT / "docs" / "environment.md").read_text(), re.MULTILINE)
    assert set(page) == set(environment.NAMES)
    assert used <= {*environment.NAMES, *environment.INTERNAL}
    assert {"TABLE", "CPU", "PYTHON", "LIBPYTHON", "STANDIN_FAULTS"} <= used


def test_every_include_of_the_sources_is_found():
    folder = csrc_dir()
    sources = [*folder.glob("*.h"), *folder.glob("cpu/**/*.h"), *folder.glob("cpu/**/*.cpp")]
    assert len(sources) > 10
    for source in sources:
        for name in re.findall(r'^\s*#include "(.+?)"', source.read_text(), re.MULTILINE):
            assert (folder / name).is_file() or (source.parent / name).is_file(), f"{name} of {source.name}"


def test_sources_are_the_same_in_the_installation_and_here():
    names = {p.relative_to(ROOT / "csrc") for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cpp")}
    assert names == {p.relative_to(csrc_dir()) for p in csrc_dir().rglob("*") if p.suffix in (".h", ".cpp")}


def test_names_are_promised_and_kept():
    assert set(compcoll.__all__) <= set(dir(compcoll))
    for name in compcoll.__all__:
        assert getattr(getattr(compcoll, name), "__name__", name).split(".")[-1] == name
    with pytest.raises(AttributeError, match="'compcoll' has no attribute 'nothing'"):
        _ = compcoll.nothing


def said(program: str, folder: Path = ROOT) -> list[str]:
    """Run a program in a folder with this compcoll on the path; return the lines that it prints."""
    env = {**os.environ, "PYTHONPATH": str(Path(compcoll.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=env, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


#: Program that checks when modules are loaded: MPI by `Comm`, other modules when they are used.
LOADING = """
import sys
import compcoll
names = {"checkpoint", "dask", "errors", "numcodecs", "torch", "zarr"}
assert names <= set(dir(compcoll)), dir(compcoll)
assert not {f"compcoll.{name}" for name in names} & set(sys.modules)
compcoll.codec("zfp:rate=8").encode([1.0])
import compcoll.cli
assert "mpi4py.MPI" not in sys.modules
compcoll.Comm
assert "mpi4py.MPI" in sys.modules
assert compcoll.checkpoint is sys.modules["compcoll.checkpoint"] is compcoll.checkpoint
assert callable(compcoll.checkpoint.save)
assert "auto" not in dir(compcoll) and not hasattr(compcoll, "auto"), "its import wraps COMM_WORLD"
for method in ("Alltoall", "Isend", "bcast"):
    help(getattr(compcoll.Comm, method))
"""


def test_what_is_loaded_when_and_help_that_speaks_of_the_method():
    text = "\n".join(said(LOADING))
    helps = re.split(r"(?=Help on )", text)[1:]
    does = {"Alltoall": "All to All Scatter/Gather", "Isend": "Nonblocking send", "bcast": "Broadcast"}
    for one, (method, words) in zip(helps, does.items(), strict=True):
        begins = rf"Help on .* in module (compcoll|mpi4py).*:\n\n{method}\(self(: 'Comm')?, "
        assert re.match(begins, one)
        assert "Shortcut" not in one
        assert words in one


PACKAGES = {"dask": "distributed", "numcodecs": "numcodecs", "torch": "torch", "zarr": "zarr"}
MISSING = f"""
import sys
import compcoll
packages = {PACKAGES}

class Nowhere:
    def find_spec(self, name, path, target=None):
        if name in packages.values():
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nowhere())
for name in packages:
    try:
        getattr(compcoll, name)
    except ImportError as error:
        print(error)
"""


def test_modules_name_the_package_that_is_missing():
    assert said(MISSING) == [
        f"compcoll.{name} needs {package}, which is not installed: pip install {package}"
        for name, package in PACKAGES.items()
    ]


@pytest.fixture
def clone(tmp_path):
    """A clone's sources, without compiled modules."""
    folder = tmp_path / "compcoll"
    shutil.copytree(ROOT / "compcoll", folder / "compcoll", ignore=shutil.ignore_patterns("*.so"))
    return folder


def test_a_clone_that_is_not_compiled_says_so(clone):
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import compcoll"],
        cwd=clone,
        timeout=60,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
    )
    message = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert all(words in message for words in ("not compiled", str(clone), "pip install -e ."))
    assert "circular" not in message


PLACE = (
    "import compcoll, compcoll.frame, compcoll.core._cpu; print(compcoll.__file__, compcoll.frame.__file__)"
)


@pytest.mark.parametrize("where", ["clone", "parent"])
def test_what_is_installed_is_found_in_a_clone_and_beside_it(clone, where):
    """The installation is imported although Python searches the current folder first."""
    home = Path(compcoll.__file__).parent
    (line,) = said(PLACE, clone if where == "clone" else clone.parent)
    assert line.split() == [str(home / "__init__.py"), str(home / "frame.py")]


@pytest.mark.exhaustive
def test_the_command_runs_in_a_clone(clone):
    """`compcoll run` works in a clone that is not compiled, which ``python -m compcoll`` finds first."""
    (clone / "program.py").write_text("import compcoll.comm; print(compcoll.comm.__file__)")
    command = [sys.executable, "-m", "compcoll", "run", "-q", "-n", "2", "program.py"]
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}
    done = subprocess.run(
        command,
        cwd=clone,
        timeout=60,
        capture_output=True,
        text=True,
        env={**outside, "PYTHONPATH": str(Path(compcoll.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {str(Path(compcoll.__file__).parent / "comm/__init__.py")}


def test_an_installation_is_a_line_of_a_path_and_its_page_has_no_links_into_the_clone():
    """An editable wheel is a path line, since a clone in the current folder would precede a finder."""
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("Cython")
    program = (
        "import setuptools, sys; sys.argv[1:] = ['--version']\n"
        "import setup as made\n"
        "from setuptools.dist import Distribution\n"
        "commands = {'editable_wheel': made.EditableWheel}\n"
        "dist = Distribution({'name': 'x', 'long_description': 'x', 'cmdclass': commands})\n"
        "dist.parse_config_files()\n"
        "command = dist.get_command_obj('editable_wheel')\n"
        "command.ensure_finalized()\n"
        "print(made.description())\n"
        "print(type(command._select_strategy('compcoll', 'any', '.')).__name__)\n"
    )
    lines = said(program)
    assert lines[-1] == "_StaticPth"
    targets = re.findall(r"\]\(([^)]+)\)", "\n".join(lines))
    assert targets
    assert all(target.startswith(("https:", "http:", "#")) for target in targets)


def test_every_folder_of_the_repository_is_in_its_source_distribution():
    manifest = (ROOT / "MANIFEST.in").read_text().splitlines()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("this is no repository")
    folders = {name.partition("/")[0] for name in tracked.stdout.splitlines() if "/" in name}
    folders -= {"compcoll", ".ci"}
    assert {f"graft {folder}" for folder in folders} <= set(manifest)


def test_what_is_imported_is_required():
    """The project requires exactly the packages that the library imports, apart from optional ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[^\w]", need)[0] for need in project["dependencies"]}
    found = set()
    for path in [p for p in (ROOT / "compcoll").rglob("*.py") if "torch" not in p.parts]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
    optional = {
        "cuda",
        "cupy",
        "cupy_backends",
        "distributed",
        "matplotlib",
        "numcodecs",
        "setuptools",
        "torch",
        "zarr",
    }
    assert found - set(sys.stdlib_module_names) - {"compcoll"} - optional == required


def test_extensions_carry_no_debug_information():
    """Compiled modules have no debug information, which would be two thirds of a wheel."""
    for path in Path(compcoll.__file__).parent.rglob("*.so"):
        assert b".debug_info" not in path.read_bytes(), path


@pytest.mark.parametrize("name", ["cupy", "torch", "matplotlib", "scipy", "zfpy"])
def test_info_names_an_extra_that_brings_what_is_missing(name):
    from compcoll.cli import info

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in re.findall(r"\[(\w+)\]", info._OPTIONAL[name]):
        assert any(need.startswith(name) for need in extras[extra])


TYPED = (
    "Allreduce_init",
    "Alltoall",
    "Create_cart",
    "Dup",
    "Ibcast",
    "Irecv",
    "Probe",
    "Send",
    "Sendrecv",
    "Split",
    "bcast",
    "calls_accelerated",
    "policy",
    "report",
    "using",
)


#: torch and CuPy are skipped: mypy would read their sources for a minute, and these types do not need them.
MYPY = """
[mypy]
strict = True
ignore_missing_imports = True
[mypy-torch.*,cupy.*]
follow_imports = skip
"""


@pytest.mark.exhaustive
def test_communicators_have_types(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "mypy.ini").write_text(MYPY)
    program = tmp_path / "program.py"
    program.write_text(
        "from mpi4py import MPI\nimport compcoll\n"
        "comm = compcoll.Comm(MPI.COMM_WORLD, codec='zfp:rate=8')\nreveal_type(comm)\n"
        + "".join(f"reveal_type(comm.{name})\n" for name in TYPED)
        + "reveal_type(comm.Split().Dup().using('raw'))\nreveal_type(comm.Create_cart([1]).Sub([True]))\n"
        "reveal_type(compcoll.checkpoint.save)\nreveal_type(compcoll.torch.WeightSync)\n"
        "comm.nonsense\ncompcoll.nonsense\n"
    )
    options = [f"--config-file={tmp_path / 'mypy.ini'}", "--no-pretty", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *options, str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    errors = re.findall(r"error: (.*)", done.stdout)
    assert errors == [
        '"Comm" has no attribute "nonsense"  [attr-defined]',
        'Module has no attribute "nonsense"  [attr-defined]',
    ]
    types = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert types[0] == types[-4] == "compcoll.comm.communicator.Comm"
    assert types[-3] == "compcoll.comm.communicator.Cartcomm"
    assert types[-2].endswith("-> compcoll.checkpoint.reports.SaveReport")
    assert types[-1].endswith("-> compcoll.torch.weight_sync.WeightSync")
    assert len(types) == len(TYPED) + 5
    assert not {"Any", "builtins.object"} & set(types)
