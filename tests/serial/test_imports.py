"""The order of packages: each imports only packages below it, and modules import each other in one direction.

Every import counts, whether a function makes it or a type checker alone.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Most packages and modules of the top level in a chain of imports.
FLOORS = 9


def imports_of(path: Path, folder: str) -> set[str]:
    """Names that a file of a package imports: modules, and attributes of modules."""
    if path.suffix == ".pyx":
        lines = re.findall(r"^ *from (compcoll[\w.]*) import (\w+)", path.read_text(), re.MULTILINE)
        return {f"{module}.{name}" for module, name in lines}
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = folder.split(".")[: len(folder.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def graph_of(root: Path, package: str) -> dict[str, set[str]]:
    """Modules of a package, and which of them each imports."""
    files = [path for path in (root / package).rglob("*.py*") if path.suffix in (".py", ".pyi", ".pyx")]
    names = [
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in files
    ]
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name, path in zip(names, files, strict=True):
        for one in imports_of(path, ".".join(path.relative_to(root).parent.parts)):
            while one and one not in graph:
                one = one.rpartition(".")[0]
            graph[name] |= {one} - {name, ""}
    return graph


def rooms_of(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph of packages and modules of the top level."""

    def room(module: str) -> str:
        return ".".join(module.split(".")[:2])

    rooms: dict[str, set[str]] = {room(module): set() for module in graph}
    for module, imported in graph.items():
        rooms[room(module)] |= {room(one) for one in imported} - {room(module)}
    return rooms


def floors_of(graph: dict[str, set[str]]) -> list[set[str]]:
    """Nodes by the longest chain of imports below them; CycleError names a circle."""
    level: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        level[node] = 1 + max((level[one] for one in graph[node]), default=-1)
    return [{node for node in level if level[node] == n} for n in sorted(set(level.values()))]


@pytest.mark.parametrize("package", ["compcoll", "benchmarks"])
def test_no_module_imports_itself_through_others(package):
    floors_of(graph_of(ROOT, package))


def test_each_package_imports_only_packages_below_it():
    floors = floors_of(rooms_of(graph_of(ROOT, "compcoll")))
    assert len(floors) <= FLOORS, floors


def test_a_circle_is_found(tmp_path):
    """An import in a function that closes a circle is an error, among modules and among packages."""
    texts = {"__init__": "", "a/__init__": "", "a/one": "import p.b.two", "b/__init__": ""}
    texts |= {"b/two": "", "b/three": "def f():\n    from p.a import one"}
    for name, text in texts.items():
        path = tmp_path / "p" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = graph_of(tmp_path, "p")
    assert len(floors_of(graph)) == 3
    with pytest.raises(CycleError, match=r"p\.a.*p\.b"):
        floors_of(rooms_of(graph))
    (tmp_path / "p/b/two.py").write_text("from p.b.three import f")
    with pytest.raises(CycleError, match=r"p\.a\.one"):
        floors_of(graph_of(tmp_path, "p"))
