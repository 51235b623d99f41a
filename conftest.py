"""What all tests share: how many of them run, and what several ranks print.

`make test` runs a sample: of a test's parameters such sets that each value of each parameter occurs, and no
test marked ``exhaustive``, nor files that tests/mpi/conftest.py leaves out on more than 2 ranks.
``EXHAUSTIVE=1`` runs everything, as CI does; so does a test that is asked for by `-k` or by its name. The
file is not in tests/, from where tests/torch would then be imported as torch.
"""

import os
from collections import defaultdict

import pytest

# Trials of tests are not for the jobs of whoever runs them.
os.environ["COMPCOLL_TABLE"] = "off"
EXHAUSTIVE = os.environ.get("EXHAUSTIVE", "0") != "0"
#: This process's rank where tests run on several.
RANK = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))


@pytest.hookimpl(trylast=True)  # behind the reporter's own
def pytest_configure(config):
    config.addinivalue_line("markers", "exhaustive: not in the sample that `make test` runs")
    if RANK not in (None, "0"):  # rank 0 alone shows progress and counts
        config.option.verbose = -2
        config.pluginmanager.getplugin("terminalreporter")._show_progress_info = False


def pytest_collection_modifyitems(config, items):
    if EXHAUSTIVE or config.option.keyword or any("::" in argument for argument in config.args):
        return
    of_test = defaultdict(list)
    for item in items:
        if item.get_closest_marker("exhaustive") is None:
            of_test[item.nodeid.partition("[")[0]].append(item)
    chosen = {item for test in of_test.values() for item in sample(test)}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def sample(items):
    """Items of one test in which each value of each parameter occurs, few of them; the same on all ranks."""
    values = [{(name, id(value)) for name, value in _parameters(item).items()} for item in items]
    missing, chosen = set().union(*values), []
    while missing or not chosen:
        best = max(range(len(items)), key=lambda i: len(values[i] & missing))
        chosen.append(items[best])
        missing -= values[best]
    return chosen


def _parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def pytest_report_teststatus(report):
    """Ranks but 0 have something to say of failures alone."""
    if RANK not in (None, "0") and report.outcome != "failed":
        return "", "", ""
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if RANK is not None and report.failed:
        path, line, name = report.location
        report.location = path, line, f"{name} on rank {RANK}"
    return report
