"""What all tests share: how many of them run, what several ranks print, and how a run on several ranks ends.

`make test` runs a sample: of a test's parameters such sets that each value of each parameter occurs, two of
these sets if the test is marked ``exhaustive(but=2)``, none if it is marked ``exhaustive``; and no files that
tests/mpi/conftest.py leaves out on more than 2 ranks. ``EXHAUSTIVE=1`` runs everything, and so does a test
that is asked for by `-k` or by its name; ``EXHAUSTIVE=rest`` what such a sample leaves out, as CI does. The
file is not in tests/, from where tests/torch would then be imported as torch.
"""

import faulthandler
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from pathlib import Path

import pytest

# Trials of tests are not for the jobs of whoever runs them.
os.environ["COMPCOLL_TABLE"] = "off"
EXHAUSTIVE = os.environ.get("EXHAUSTIVE", "0")
#: This process's rank where tests run on several.
RANK = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
SIZE = int(os.environ.get("PMI_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", 1)))
#: Names the folder of `Job`; set by tests/run_ranks.py, which prints the file ``last`` there at the end.
FOLDER = "TEST_RANKS_FOLDER"
#: Seconds in which a test that fails on one rank may fail on all others too.
GRACE = 3
#: Seconds in which the other ranks write where they are.
ANSWER = 1
#: The place of a rank that has run all of its tests.
END = "after the last test"


def pytest_addoption(parser):
    parser.addoption("--gpu", action="store_true", help="run tests of devices on this machine's GPU")


@pytest.hookimpl(trylast=True)  # behind the reporter's own
def pytest_configure(config):
    config.addinivalue_line("markers", "exhaustive(but=0): `make test` runs so many sets of parameters")
    if SIZE > 1:
        config.pluginmanager.register(Job(config), "job")
    if RANK not in (None, "0"):  # rank 0 alone shows progress and counts
        config.option.verbose = -2
        config.pluginmanager.getplugin("terminalreporter")._show_progress_info = False


def pytest_collection_modifyitems(config, items):
    if config.getoption("gpu"):
        # Warnings of CuPy and torch are none of ours, wherever they say that they come from.
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.filterwarnings("error::RuntimeWarning:compcoll"))
    if EXHAUSTIVE == "1" or config.option.keyword or any("::" in argument for argument in config.args):
        return
    of_test = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("exhaustive")
        most = len(items) if mark is None else mark.kwargs.get("but", 0)
        if most:
            of_test[item.nodeid.partition("[")[0], most].append(item)
    chosen = {item for (_, most), test in of_test.items() for item in sample(test)[:most]}
    if EXHAUSTIVE == "rest":
        chosen = set(items) - chosen
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


class Job:
    """Ends the run on all ranks if a test fails on some of them, or takes too long on one.

    A rank reports a failure in a file, since the others may be waiting in MPI. If all ranks report the same
    failure within `GRACE` seconds, the run goes on. Otherwise a watching thread on each rank writes where the
    rank is. The rank that failed collects these places, writes its own traceback behind them, and exits, upon
    which mpiexec kills the others.
    """

    def __init__(self, config):
        self.rank, self.test, self.deadline, self.seconds = int(RANK), "before the first test", None, 0
        self.by_hand = FOLDER not in os.environ  # nobody prints the file ``last``
        folder = os.environ.get(FOLDER)
        if folder is None:
            from mpi4py import MPI

            folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp(prefix="compcoll-ranks-") if RANK == "0" else None)
        self.folder, self.ending = Path(folder), Path(folder, "ending")
        self.write(f"at.{self.rank}", self.test)
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            self.stderr = os.fdopen(os.dup(2), "w")
        threading.Thread(target=self.watch, name="ranks", daemon=True).start()

    # -- the watching thread

    def watch(self):
        """Answer a rank that ends the run; end the run if this rank's test takes too long."""
        while True:
            time.sleep(0.1)
            deadline = self.deadline
            if self.ending.exists():
                self.answer()
                time.sleep(10)  # mpiexec kills this rank before
                os._exit(1)
            if deadline is not None and time.monotonic() > deadline and not self.any_failed():
                late = f"{self.test} takes longer than {self.seconds:g} s on rank {self.rank}"
                self.end(f"{late}\n{self.stacks()}")

    def any_failed(self):
        """True if a rank has failed, and so will end the run: its traceback is the one to print."""
        return any(self.failure(rank).exists() for rank in range(SIZE))

    def answer(self):
        """Write where this rank is, unless it has a traceback to show."""
        if not self.failure(self.rank).exists():
            self.write(f"place.{self.rank}", f"{self.test}\n{self.stacks()}")

    def stacks(self):
        """The stacks of this rank's threads, the main thread's last, without pytest's frames."""
        frames = sys._current_frames()
        frames.pop(threading.get_ident(), None)
        main = frames.pop(threading.main_thread().ident, None)
        return "".join(map(stack, [*frames.values(), main] if main else frames.values()))

    # -- pytest's hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid):
        self.test = nodeid
        self.write(f"at.{self.rank}", nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            captured = "".join(f"{name}\n{text}" for name, text in report.sections)
            said = f"{report.nodeid}, {report.when}, fails on rank {self.rank}\n"
            self.settle(f"{report.nodeid} {report.when}", f"{said}{captured}{report.longreprtext}")

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report):
        if report.failed:
            said = f"{report.nodeid} is not collected on rank {self.rank}\n"
            self.settle(f"{report.nodeid} collected", said + report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_internalerror(self, excrepr):
        self.settle("internal error", f"pytest fails on rank {self.rank}\n{excrepr}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus):
        """All ranks end alike; one that then hangs in MPI_Finalize or in a join of threads is killed."""
        if exitstatus not in (0, 1, 5):
            said = f"pytest ends with {exitstatus!r} on rank {self.rank}, after {self.test}"
            self.settle(f"exit {exitstatus}", said)
        self.test = END
        self.write(f"at.{self.rank}", self.test)
        faulthandler.dump_traceback_later(300, exit=True, file=self.stderr)

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item, settings):
        """Replaces pytest-timeout's timer; a later one needs no lock of the interpreter."""
        self.seconds = settings.timeout
        self.deadline = time.monotonic() + settings.timeout
        faulthandler.dump_traceback_later(settings.timeout + 15, exit=True, file=self.stderr)
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_cancel_timer(self, item):
        self.deadline = None
        faulthandler.cancel_dump_traceback_later()
        return True

    # -- the end of a run

    def settle(self, what, text):
        """Return if the same failure occurs on all ranks; otherwise end the run with this rank's text."""
        self.deadline = None
        key = hashlib.sha1(what.encode()).hexdigest()
        self.write(self.failure(self.rank).name, text)
        self.write(f"{key}.{self.rank}", "")
        latest = time.monotonic() + GRACE
        while time.monotonic() < latest and not self.ending.exists():
            if all((self.folder / f"{key}.{rank}").exists() for rank in range(SIZE)):
                self.failure(self.rank).unlink()
                return
            time.sleep(0.05)
        self.end(text)

    def end(self, text):
        """End the run, of which this rank's text is printed last, unless another rank is ending it."""
        try:
            os.close(os.open(self.ending, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            self.answer()
            time.sleep(10)
            os._exit(1)
        others = [rank for rank in range(SIZE) if rank != self.rank]
        latest = time.monotonic() + ANSWER
        while time.monotonic() < latest and not all(map(self.said, others)):
            time.sleep(0.05)
        places = (f"== rank {rank}: {self.said(rank) or 'does not answer'}\n" for rank in others)
        text = f"\n{''.join(places)}== {text.rstrip()}\n"
        if self.by_hand:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.stderr.write(text)
            self.stderr.flush()
        else:
            self.write("last", text)
        os._exit(1)

    def failure(self, rank):
        return self.folder / f"failed.{rank}"

    def said(self, rank):
        """A rank's traceback if it failed as well, else where it is; empty before it answers."""
        for path in (self.failure(rank), self.folder / f"place.{rank}"):
            if path.exists():
                return path.read_text().rstrip()
        return ""

    def write(self, name, text):
        """Write a file that is complete as soon as it exists."""
        part = self.folder / f".{name}"
        part.write_text(text)
        part.replace(self.folder / name)


def stack(frame):
    """The lines of a thread's stack, without those of pytest and its callers."""
    lines = traceback.extract_stack(frame)
    others = ("/_pytest/", "/pytest/", "/pluggy/", "runpy")
    inner = [line for line in lines if not any(part in line.filename for part in others)]
    return "".join(traceback.format_list(inner[-12:])) + "\n"
