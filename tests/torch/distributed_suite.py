"""torch's own tests of a backend, in the ranks that there are, beside the same with gloo.

    mpiexec -n 2 python tests/torch/distributed_suite.py --out out/suite.json [--gate mpi] [--backend gloo]
    python tests/torch/distributed_suite.py --compare out/ours.json out/gloo.json

Which tests there are depends on a name that torch looks at when its tests are imported: with ``--gate mpi``
those of all-to-all are among them, with ``--gate gloo`` most of the others.
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

# Exit codes that say why a test was skipped.
SKIPS = {
    72: "backend", 73: "more ranks", 74: "CUDA", 75: "GPUs", 76: "NCCL", 77: "GPUs", 78: "ROCm", 80: "GPUs",
    81: "GPUs", 82: "GPUs", 86: "generic", 87: "an even number of ranks", 88: "an import", 89: "accelerator",
}  # fmt: skip
#: Seconds of a group's time-out; what does not end by then has failed.
TIMEOUT = 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="compcoll", choices=["compcoll", "gloo"])
    parser.add_argument("--gate", default="gloo", choices=["gloo", "mpi"])
    parser.add_argument("--match", default="", help="regular expression of names")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no test after so long")
    parser.add_argument("--out", help="JSON file for the outcomes")
    parser.add_argument("--compare", nargs=2, metavar=("OURS", "GLOO"))
    return parser.parse_args()


def begin(args):
    """torch's module of tests, prepared for a backend."""
    import compcoll.torch  # noqa: F401

    os.environ["BACKEND"] = args.gate
    os.environ.setdefault("TEMP_DIR", "/tmp")
    import torch.testing._internal.distributed.distributed_test as dt

    dt.BACKEND = args.backend
    for feature in ("ddp", "subgroup"):
        dt.DistTestCases.backend_feature[feature].add(args.backend)
    return dt


class Suite:
    """Runs one test after the other, each with a default group of its own."""

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
        found, until = {}, time.monotonic() + self.args.seconds
        for name in self.names:
            if self.comm.bcast(time.monotonic() > until):
                break
            outcomes = self.comm.allgather(self.one(name))
            worst = max(outcomes, key=lambda o: ("passed", "skipped", "failed").index(o[0]))
            found[name] = worst
            if self.comm.rank == 0:
                print(f"{worst[0]:8} {name} {worst[1]}", flush=True)
        return found

    def one(self, name):
        """How a test ended on this rank, and why."""
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
        test.file_name = f"{os.environ['TEMP_DIR']}/store-{name}"
        os.environ["WORLD_SIZE"] = str(comm.size)
        # A few choose what to do by the name of a backend that they know.
        dt.BACKEND = "gloo" if "accumulate_gradients_no_sync" in name else self.args.backend
        comm.Barrier()
        try:
            dist.init_process_group(
                self.args.backend, init_method=f"file://{test.file_name}", rank=comm.rank,
                world_size=comm.size, timeout=timedelta(seconds=TIMEOUT),
            )  # fmt: skip
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
        if comm.allreduce(outcome[0] == "failed") and dist.is_initialized():
            from compcoll.torch.living import cores

            for core in cores():
                core.break_up("a test failed")
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception as error:
                outcome = ("failed", f"destroying the group: {error}") if outcome[0] == "passed" else outcome
        return outcome


def compare(ours, gloo):
    """Tests that gloo passes, and what became of them."""
    ours, gloo = (json.loads(Path(path).read_text()) for path in (ours, gloo))
    both = [name for name in gloo if gloo[name][0] == "passed" and name in ours]
    missing = [name for name in both if ours[name][0] != "passed"]
    more = [name for name in ours if ours[name][0] == "passed" and gloo.get(name, [""])[0] != "passed"]
    print(f"gloo passes {len(both)} tests; of these this backend passes {len(both) - len(missing)}")
    for name in missing:
        print(f"  {ours[name][0]:8} {name}: {ours[name][1]}")
    print(f"it passes {len(more)} that gloo does not: {', '.join(more) or 'none'}")
    return len(missing)


def main():
    args = arguments()
    if args.compare:
        raise SystemExit(compare(*args.compare) > 0)
    suite = Suite(args)
    found = suite.run()
    if suite.comm.rank == 0:
        totals = {kind: sum(o[0] == kind for o in found.values()) for kind in ("passed", "skipped", "failed")}
        print(totals, flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(found, indent=1))
    suite.comm.Barrier()


if __name__ == "__main__":
    main()
