"""torch's own tests of a backend, in the ranks of this job, each with gloo and with this backend.

    mpiexec -n 2 python tests/torch/distributed_suite.py [--gate mpi] [--match REGEX] [--out out/suite.json]

The command fails if a test that passes with gloo does not pass with this backend, except for those listed
below with a reason. The default group compresses all that it can, other groups only what is large. The tests
depend on a backend's name that torch reads when they are imported: ``--gate mpi`` includes the tests of
all-to-all, and ``--gate gloo`` most of the others. expecttest must be installed.
"""

import argparse
import json
import os
import re
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

import compcoll.torch

# Reasons for skips, by exit code.
SKIPS = {
    72: "backend",
    73: "more ranks",
    74: "CUDA",
    75: "GPUs",
    76: "NCCL",
    77: "GPUs",
    78: "ROCm",
    80: "GPUs",
    81: "GPUs",
    82: "GPUs",
    86: "generic",
    87: "an even number of ranks",
    88: "an import",
    89: "accelerator",
}
#: Time-out of a group in seconds, after which a test has failed.
TIMEOUT = 20
#: Tests that pass with gloo and not with this backend, with reasons.
EXPECTED = {
    r"test_monitored_barrier_.*": "torch takes no backend but gloo there before 2.14",
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gate", default="gloo", choices=["gloo", "mpi"])
    parser.add_argument("--match", default="", help="regular expression of names")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no test after so long")
    parser.add_argument("--out", help="JSON file for the outcomes")
    return parser.parse_args()


def begin(args):
    """torch's module of tests, prepared for this backend."""
    os.environ.setdefault("COMPCOLL_CODEC", "lossless")
    os.environ["BACKEND"] = args.gate
    os.environ.setdefault("TEMP_DIR", "/tmp")
    import torch.testing._internal.distributed.distributed_test as dt

    for feature in ("ddp", "subgroup"):
        dt.DistTestCases.backend_feature[feature].add("compcoll")
    return dt


class Suite:
    """Runner of one test after the other, each with its own default group."""

    def __init__(self, args):
        from mpi4py import MPI

        self.comm, self.args = MPI.COMM_WORLD.Dup(), args
        self.dt = begin(args)
        import torch.distributed as dist

        self.dist = dist
        self.folder = None
        base = self.dt.DistributedTest._DistTestBase
        self.cls = type("Tests", (self.dt.TestDistBackend, base), {})
        names = [n for n in dir(self.cls) if n.startswith("test_") and re.search(args.match, n)]
        self.names = self.comm.bcast(names)

    def run(self):
        """Outcome of each test with gloo and, if it passes there, with this backend."""
        found, until = {}, time.monotonic() + self.args.seconds
        for name in self.names:
            if self.comm.bcast(time.monotonic() > until):
                break
            gloo = self.worst(name, "gloo")
            found[name] = gloo, self.worst(name, "compcoll") if gloo[0] == "passed" else gloo
            if self.comm.rank == 0:
                print(f"{found[name][1][0]:8} {name} {found[name][1][1]}", flush=True)
        return found

    def worst(self, name, backend):
        """Outcome of a test on the rank where it is worst."""
        outcomes = self.comm.allgather(self.one(name, backend))
        return max(outcomes, key=lambda o: ("passed", "skipped", "failed").index(o[0]))

    def one(self, name, backend):
        """Outcome of a test on this rank, and its reason."""
        from torch.testing._internal.common_utils import set_rng_seed

        dt, dist, comm = self.dt, self.dist, self.comm
        if comm.rank == 0:
            dt.initialize_temp_directories()
        os.environ["TEMP_DIR"] = comm.bcast(os.environ["TEMP_DIR"])
        if comm.rank == 0:
            dt.Barrier.init()
        dt.Barrier.barrier_id = 0
        test = self.cls(name)
        test.rank = comm.rank
        test.file_name = f"{os.environ['TEMP_DIR']}/store-{name}-{backend}"
        os.environ["WORLD_SIZE"] = str(comm.size)
        # Some tests choose what to do by the backend's name, and know few of them.
        dt.BACKEND = "gloo" if "accumulate_gradients_no_sync" in name else backend
        comm.Barrier()
        options = None if backend == "gloo" else compcoll.torch.Options("lossless", min_nbytes=0)
        try:
            dist.init_process_group(
                backend,
                pg_options=options,
                init_method=f"file://{test.file_name}",
                rank=comm.rank,
                world_size=comm.size,
                timeout=timedelta(seconds=TIMEOUT),
            )
            test._barrier()
            set_rng_seed()
            getattr(test, name)()
            outcome = "passed", ""
        except unittest.SkipTest as skip:
            outcome = "skipped", str(skip)
        except SystemExit as end:
            outcome = (
                ("skipped", f"needs {SKIPS[end.code]}")
                if end.code in SKIPS
                else ("failed", f"exit {end.code}")
            )
        except BaseException as error:
            lines = traceback.format_exception(error)
            outcome = (
                "failed",
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200],
            )
            if os.environ.get("VERBOSE"):
                sys.stderr.write("".join(lines))
        self.give_up_what_is_stuck()
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception as error:
                outcome = ("failed", f"destroying the group: {error}") if outcome[0] == "passed" else outcome
        return outcome

    def give_up_what_is_stuck(self):
        """Invalidate all groups if a failed test has left operations that never end, which block a free."""
        from compcoll.torch.groups import all_groups

        stuck = any(group.broken or group.oldest() is not None for group in all_groups())
        if self.comm.allreduce(stuck):
            for group in all_groups():
                group.invalidate("a test failed")


def judge(found):
    """Print the outcomes; returns the number of tests that should have passed and did not."""
    passes = [name for name, (gloo, _) in found.items() if gloo[0] == "passed"]
    missing = {name: found[name][1] for name in passes if found[name][1][0] != "passed"}
    reasons = {
        name: next((why for pattern, why in EXPECTED.items() if re.fullmatch(pattern, name)), None)
        for name in missing
    }
    print(
        f"of {len(found)} tests gloo passes {len(passes)}, of these this backend {len(passes) - len(missing)}"
    )
    for name, (kind, why) in missing.items():
        print(f"  {kind:8} {name}: {why}" + (f" (expected: {reasons[name]})" if reasons[name] else ""))
    return sum(reason is None for reason in reasons.values())


def main():
    args = arguments()
    suite = Suite(args)
    start = time.monotonic()
    found = suite.run()
    wrong = 0
    if suite.comm.rank == 0:
        wrong = judge(found)
        print(f"{time.monotonic() - start:.0f} s on {suite.comm.size} ranks", flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(found, indent=1))
    wrong = suite.comm.bcast(wrong)
    sys.stdout.flush()
    suite.comm.Barrier()
    os._exit(wrong > 0)  # MPI_Finalize would wait for operations left by tests of time-outs


if __name__ == "__main__":
    main()
