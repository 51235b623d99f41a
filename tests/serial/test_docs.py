"""Prose: links of pages that are read where they lie (`make docs` checks the site's), promises, comments."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Commands of README.md for a clone, which install what they need.
COMMAND = re.compile(r"^    (make \w[^#\n]*?) *(?:#.*)?$", re.MULTILINE)
#: First words of sentences without a subject, which a reader has to turn round.
INVERTED = re.compile(r"(Of|Those|What(?!'s new)|The same|Who|As|Whether|They|It)\b")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/REPORT.md"])
def test_links_lead_to_files(page):
    path = ROOT / page
    missing = [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert not missing


def test_messages_of_the_preloaded_library_are_explained():
    """Every problem that the preloaded library prints is explained in docs/troubleshooting.md."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    source = "".join(path.read_text() for path in sorted((ROOT / "csrc/layer").glob("*.cpp")))
    problems = re.findall(r'problem = "([^"]+)"', source)
    assert len(problems) >= 3
    assert [text for text in problems if f"calls are not accelerated: {text}" not in page] == []


def test_ci_begins_with_the_commands_of_the_readme():
    """README's commands are the first steps of .ci/run; before them no variable is set that make reads."""
    commands = COMMAND.findall((ROOT / "README.md").read_text())
    assert commands == ["make demo", "make test"]
    text = (ROOT / ".ci/run").read_text()
    steps = re.findall(r"^ *step (.*)$", text, re.MULTILINE)
    assert steps[: len(commands)] == commands
    before = text[: text.index(f"step {commands[0]}")]
    assert re.findall(r"export (\w+)", before) == ["PYTHON"]  # where python3 is not new enough
    assert 'if [ "$python" != python3 ]; then export PYTHON' in before


def test_each_promise_has_tests():
    """CONTRIBUTING.md names existing tests for README.md's promises and for sections of the sharp bits."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    promises = re.findall(r"^(\d\. )\*\*(.*)\.\*\*", (ROOT / "README.md").read_text(), re.MULTILINE)
    sharp = (ROOT / "docs/sharp-bits.md").read_text()
    sections = re.findall(r"^(?:### |## (?=What a layer))(.*)$", sharp, re.MULTILINE)
    assert (len(promises), len(sections)) > (8, 20)
    for name in [*map("".join, promises), *sections]:
        row = re.search(rf"^\| {re.escape(name)} \| (.*) \|$", page, re.MULTILINE)
        assert row is not None, name
        for file, _, test in (cell.partition("::") for cell in re.findall(r"`([\w/]+\.py\S*)`", row[1])):
            assert f"def {test}(" in (ROOT / "tests" / file).read_text() or not test, test


def comments(text):
    """First lines of the comments in a file of C++, one for each run of lines that begin with //."""
    before = ""
    for line in text.splitlines():
        code, slashes, comment = line.partition("//")
        if slashes and '"' not in code and not (before.startswith("//") and not code.strip()):
            yield comment.lstrip("/< ")
        before = line.strip()


def docstrings(text):
    """Docstrings in a file of Python."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize(
    ("folder", "pattern", "sentences"),
    [
        ("csrc", "*.[ch]*", comments),
        ("compcoll", "*.py", docstrings),
        ("tests", "*.py", docstrings),
        ("benchmarks", "*.py", docstrings),
    ],
)
def test_comments_begin_with_their_subject(folder, pattern, sentences):
    found = {path: list(sentences(path.read_text())) for path in sorted((ROOT / folder).rglob(pattern))}
    assert sum(map(len, found.values())) > 100
    inverted = [f"{path}: {one[:60]}" for path, some in found.items() for one in some if INVERTED.match(one)]
    assert inverted == []
