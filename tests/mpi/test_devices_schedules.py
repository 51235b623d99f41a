"""One executor: a call on device memory runs the same schedule as a call on host memory."""

import internals
import numpy as np
import pytest
from common import same, walk
from mpi4py import MPI

import compcoll
from compcoll.comm import call

N = 3000
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")
CALLS = {
    "Alltoall": (lambda p: N * p, lambda p: N * p, ["direct"]),
    "Allgather": (lambda p: N, lambda p: N * p, ["ring"]),
    "Allreduce": (lambda p: N * p, lambda p: N * p, ["ring", "direct", "recursive_halving"]),
    "Reduce_scatter_block": (lambda p: N * p, lambda p: N, ["ring", "direct"]),
}


class Recorded:
    """Schedules of prepared calls, and the bytes that arrive."""

    def __init__(self, monkeypatch):
        self.schedules, self.frames = [], []
        schedule_of = call.schedule_of

        def noted(*args):
            self.schedules.append(schedule_of(*args))
            return self.schedules[-1]

        monkeypatch.setattr(call, "schedule_of", noted)
        internals.set_recv_hook(lambda message: self.frames.append(message.tobytes()))


def done(c, name, send, recv, monkeypatch):
    """Schedules of a call, its messages, and its report without times."""
    with monkeypatch.context() as patch:
        recorded = Recorded(patch)
        try:
            getattr(c, name)(send, recv)
        finally:
            internals.set_recv_hook(None)
    report = c.report
    what = (
        report.messages,
        report.raw_nbytes,
        report.wire_nbytes,
        report.codecs,
        report.fallbacks,
        report.error_bound,
    )
    return recorded.schedules, sorted(recorded.frames), what


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp:abs=1e-3", "lossless"])
@pytest.mark.parametrize("name", CALLS)
def test_schedules_messages_and_results_are_the_same(comm, agree, device, monkeypatch, spec, name):
    n, m, algorithms = CALLS[name]
    for algorithm in algorithms:
        rule = {"codec": spec, "chunk_nbytes": 4096, "algorithm": algorithm}
        c = compcoll.Comm(comm, policy={"codec": "lossless", "min_nbytes": 0, "rule": [rule]})
        send, host = walk(comm.rank, n(comm.size)), np.zeros(m(comm.size), "f4")
        ours = device.array(host)
        wanted = done(c, name, send, host, monkeypatch)
        got = done(c, name, device.array(send), ours, monkeypatch)
        assert agree(len(wanted[0]) == len(got[0]) == 1 and wanted[0][0] is got[0][0])
        assert agree(wanted[1] and wanted[1] == got[1])
        assert agree(wanted[2] == got[2]), (wanted[2], got[2])
        assert agree(same(ours, host))
