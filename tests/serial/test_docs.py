"""Prose: links of pages that are read where they lie (`make docs` checks the site's), promises, comments."""

import ast
import re
from pathlib import Path

import pytest

from benchmarks.report import pages
from benchmarks.report.experiments import experiments

ROOT = Path(__file__).parents[2]
#: Commands of README.md for a clone, which install what they need.
COMMAND = re.compile(r"^    (make \w[^#\n]*?) *(?:#.*)?$", re.MULTILINE)
#: First words of sentences without a subject, which a reader has to turn round.
INVERTED = re.compile(r"(Of|Those|What(?!'s new)|The same|Who|As|Whether|They|It)\b")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
#: A measured number, or several, in a cell. Versions have two dots; values of an option are in backquotes.
NUMBER = r"[-+~]?\d[\d,]*(\.\d+)? ?(x|ms|s|µs|GB/s|MB|%|dB)?"
MEASURED = re.compile(rf"{NUMBER}(( ?/ ?| to |, | ± ){NUMBER})*")
#: Rows of a measurement that `make report` does not repeat.
ROWS = re.compile(r"benchmarks/results/[\w.-]+\.jsonl")
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
]


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


def is_measured(table):
    """True if a table is one of measurements: a column is aligned to the right, or a cell is a number."""
    line, *rows = table.splitlines()[1:]
    cells = [cell.strip() for row in rows for cell in row.strip().strip("|").split("|")]
    return "-:" in line or any(MEASURED.fullmatch(cell) for cell in cells)


def unsourced(text):
    """First rows of tables of measurements outside of markers, without the path of their rows beside them."""
    blocks = [block for block in re.split(r"\n\s*\n", pages.MARKED.sub("", text)) if block.strip()]
    for i, block in enumerate(blocks):
        beside = "".join(blocks[max(i - 1, 0) : i + 2])
        table = re.search(r"^ *\|.*\n *\|[ :|-]+\|\n(?: *\|.*\n?)+", block, re.MULTILINE)
        known = any((ROOT / path).exists() for path in ROWS.findall(beside))
        if table and is_measured(table[0]) and not known:
            yield table[0].splitlines()[0]


@pytest.mark.parametrize("page", PAGES)
def test_tables_of_measurements_are_written_by_the_report(page):
    found = list(unsourced((ROOT / page).read_text()))
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("| a | b |\n| --- | ---: |\n| x | `1` |\n", ["| a | b |"]),
        ("| a | b |\n| --- | --- |\n| x | 1.5 ms |\n", ["| a | b |"]),
        ("| a | b |\n| --- | --- |\n| x | 1.19, 4.75 / 6.78 |\n", ["| a | b |"]),
        ("| a | b |\n| --- | --- |\n| x | `64` |\n| 3.11.7 | text of 2 |\n", []),
        ("<!-- t:begin -->\n| a |\n| ---: |\n| 1 |\n<!-- t:end -->\n", []),
        ("| a |\n| ---: |\n| 1 |\n\nRows: benchmarks/results/nvidia-h200-2026-11-27.jsonl\n", []),
        ("| a |\n| ---: |\n| 1 |\n\nRows: benchmarks/results/nowhere.jsonl\n", ["| a |"]),
        ("| a |\n| ---: |\n| 1 |\n\nText.\n\nbenchmarks/results/nvidia-h200-2026-11-27.jsonl\n", ["| a |"]),
    ],
)
def test_a_table_of_measurements_is_told_from_one_of_options(text, found):
    assert list(unsourced(text)) == found


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_the_results(page):
    """`python -m benchmarks.report --render` would change no page, and each pair of markers has a table."""
    text = (ROOT / page).read_text()
    results = {experiment.name: pages.result(experiment) for experiment in experiments()}
    own = [table for table in pages.TABLES if table.page == page]
    assert pages.filled(text, own, results) == text
    assert "Not measured yet" not in text
    marked = {name for name, _ in pages.MARKED.findall(text)}
    assert marked == {table.name for table in own}


def test_the_report_is_that_of_the_results():
    assert pages.report(list(experiments())) == (ROOT / "benchmarks/REPORT.md").read_text()
