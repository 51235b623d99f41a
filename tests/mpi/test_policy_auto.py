"""codec="auto" and when="pays": ranks make trials together, and follow these or a table of earlier ones."""

import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from common import same
from mpi4py import MPI

import compcoll
from compcoll.core import environment
from compcoll.policy import advisor, table, trial
from compcoll.policy.table import Row

N = 1 << 15
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")


def new_process():
    """Forget what this process has found."""
    table.store.cache_clear()


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Start each test without earlier results, with short blocks, and count messages of N values as large."""
    monkeypatch.setattr(trial, "BLOCK_SECONDS", 0.0)
    monkeypatch.setattr(trial, "LARGE_NBYTES", 4 * N)
    new_process()
    yield
    new_process()


@pytest.fixture(params=["slow", "fast"])
def network(request, nodes_of_one, monkeypatch):
    """Network on which trials find that compression takes half of plain MPI's time, or three times it."""
    part = 0.5 if request.param == "slow" else 3.0
    make_clear(monkeypatch, part)
    return request.param


#: For tests whose claim is the same on both networks.
slow = pytest.mark.parametrize("network", ["slow"], indirect=True)


def make_clear(monkeypatch, part):
    """Make trials pay, and find that compression takes this part of plain MPI's time."""
    monkeypatch.setattr(trial.Pair, "part", property(lambda self: part))
    monkeypatch.setattr(
        trial.Kind, "_weigh", lambda self, agree, speed: self._begin_pairs(trial._State.TRIAL)
    )
    monkeypatch.setattr(trial.Known, "differs", lambda self, seconds, share, limit: False)
    monkeypatch.setattr(trial, "FULL", 0.0)  # whatever speed of the link was measured


@pytest.fixture
def known_link(comm, nodes_of_one, monkeypatch):
    """Link of 10 MB/s between ranks, as if the process had measured it."""
    monkeypatch.setattr(advisor, "_links", {"network": 1e-7})
    monkeypatch.setattr(trial, "FULL", 0.0)  # blocks of calls do not show another speed


@pytest.fixture
def folder(comm, tmp_path, monkeypatch):
    """Folder of tables for all ranks; None on ranks other than 0."""
    path = comm.bcast(str(tmp_path))
    monkeypatch.setenv("COMPCOLL_TABLE", path)
    monkeypatch.setattr(environment, "pretends_nodes", lambda: False)  # or nothing would be written
    monkeypatch.setattr(table, "EACH_WRITE", 0.0)
    return tmp_path if comm.rank == 0 else None


@pytest.fixture
def smooth(comm):
    return np.sin(np.arange(N * comm.size) * 1e-3 + comm.rank).astype("f4")


def make(comm, **options):
    return compcoll.Comm(comm.Dup(), **{"codec": "auto", "min_nbytes": 4096, **options})


def ways(ours, call, n):
    """List of booleans, one for each of ``n`` calls: True if it was compressed."""
    found = []
    for _ in range(n):
        call()
        found.append(ours.report.accelerated)
    return found


def test_what_calls_took_decides(comm, agree, nodes_of_one, smooth):
    """Ranks decide alike by the times of calls, whatever these are."""
    ours, got = make(comm), np.empty_like(smooth)
    found = ways(ours, lambda: ours.Alltoall(smooth, got), 60)
    assert agree(not any(found[:8]))
    assert agree(len(set(comm.allgather(tuple(found)))) == 1)
    (kind,) = ours._marked.advisor._kinds.values()
    assert agree(kind.known is not None)
    assert agree("plain MPI" in ours.report.reason)


@pytest.mark.parametrize("options", [{"codec": "auto"}, {"codec": "zfp:rate=8", "when": "pays"}])
def test_all_kinds_are_tried(comm, agree, network, smooth, options):
    one, many = np.array(smooth[:N]), np.empty_like(smooth)
    ours = make(comm, **options)
    calls = {
        "Alltoall": lambda: ours.Alltoall(smooth, many),
        "Allgather": lambda: ours.Allgather(smooth[:N], many),
        "Bcast": lambda: ours.Bcast(one),
        "Allreduce": lambda: ours.Allreduce(smooth, many),
        "Reduce_scatter_block": lambda: ours.Reduce_scatter_block(smooth, one),
    }
    for name, call in calls.items():
        found = ways(ours, call, 26)
        if options["codec"] == "auto" and "educe" in name:
            assert agree(not any(found)), "another order gives other bits"
            continue
        n, _ = trial.LARGE_BLOCK
        c, p = [True] * n, [False] * n
        pairs = c + p + p + c if network == "fast" else c + p + p + c + c + p + p + c
        rest = [network == "slow"] * (26 - 8 - len(pairs))
        assert agree(found == [False] * 8 + pairs + rest), (name, found, ours.report.reason)
        assert agree("measured" in ours.report.reason)


@slow
def test_sizes_of_one_class_are_tried_together(comm, agree, network):
    ours = make(comm)
    for n in [N + 1000 * (i % 7) for i in range(30)]:
        values = np.linspace(0, 1, n, dtype="f4") if comm.rank == 0 else np.empty(n, "f4")
        ours.Bcast(values)
        assert agree(values[-1] == 1)
    (kind,) = ours._marked.advisor._kinds.values()
    assert agree(kind._chosen + kind.window.calls == 30 - 8 - 16)


def test_a_node_asks_nobody(comm, agree, smooth):
    """Inside a node, calls are MPI's without a measurement or a trial."""
    ours, got = make(comm), np.empty_like(smooth)
    ours.Alltoall(smooth, got)
    assert agree(ours._marked.measured is None and not ours.report.accelerated)
    assert agree("inside a node" in ours.report.reason)


def test_nonblocking_and_persistent_calls_go_as_blocking_ones(comm, agree, network, smooth, monkeypatch):
    """Nonblocking and persistent calls follow the trials of blocking ones, and small ones are plain."""
    monkeypatch.setattr(advisor, "_links", {"network": 1e-12})
    monkeypatch.setattr(advisor, "BESIDE_NBYTES", 4 * N)
    ours, got, want = make(comm), np.empty_like(smooth), np.empty_like(smooth)
    comm.Alltoall(smooth, want)

    def begin(values, into):
        ours.Ialltoall(values, into).Wait()

    assert agree(not any(ways(ours, lambda: begin(smooth, got), 20)))
    ways(ours, lambda: ours.Alltoall(smooth, got), 30)
    got[:] = 0
    assert agree(ways(ours, lambda: begin(smooth, got), 2) == [network == "slow"] * 2)
    assert agree(got.tobytes() == want.tobytes())
    assert agree("pairs" in ours.report.reason)
    part = smooth[: 4096 * comm.size].copy()
    assert agree(not any(ways(ours, lambda: begin(part, part.copy()), 20)))
    assert agree("nonblocking" in ours.report.reason)
    if MPI.Get_version() >= (4, 0):
        request = ours.Alltoall_init(smooth, got)
        assert agree(ways(ours, lambda: request.Start() or request.Wait(), 3) == [network == "slow"] * 3)
        request.Free()


def test_messages_go_by_the_measured_link(comm, agree, known_link, smooth, folder):
    """Messages do not pay with the cautious default ratio, and pay with the ratio of a row."""

    def send(ours):
        if comm.rank == 0:
            ours.Send(smooth[:N], 1)
        elif comm.rank == 1:
            ours.Recv(np.empty(N, "f4"), 0)
        return comm.bcast((ours.report.accelerated, ours.report.reason))

    accelerated, reason = send(make(comm))
    assert agree(not accelerated and "expected" in reason)
    keep(make(comm), replace(ROW, share=0.25))
    accelerated, reason = send(make(comm))
    assert agree(accelerated and "ratio of 4.00" in reason)


KIND = ("Alltoall", "float32", (1,), "lossless", "pairwise", 1)
ROW = Row(*KIND, 4 * N, True, (7e-4, 1e-3), (7e-4, 1e-3), 0.7, (3, 3), made="2026-11-26T15:06+00:00")


def keep(ours, *rows):
    """Write these rows to rank 0's table, for communicators that are made from now on."""
    marked = ours._marked
    if marked.rank == 0:
        rows = [replace(row, ranks_a_node=(1,) * marked.size) for row in rows]
        table.write_file(table.folder(), marked.measured.about, rows)
        new_process()
    marked.comm.Barrier()


@pytest.mark.parametrize("compress", [True, False])
def test_a_row_says_how_the_first_call_goes(comm, agree, known_link, folder, smooth, compress, monkeypatch):
    monkeypatch.setattr(trial.Known, "differs", lambda self, seconds, share, limit: False)
    keep(make(comm), replace(ROW, compress=compress))
    ours, got = make(comm), np.empty_like(smooth)
    assert agree(ways(ours, lambda: ours.Alltoall(smooth, got), 40) == [compress] * 40)
    assert agree("trial of 2026-11-26" in ours.report.reason)
    many = smooth[: N // 2 * comm.size].copy()
    assert agree(not any(ways(ours, lambda: ours.Alltoall(many, got[: many.size]), 8))), "of another size"


def test_a_trial_is_written_and_read_by_the_next_job(comm, agree, known_link, folder, smooth, monkeypatch):
    make_clear(monkeypatch, 0.5)
    ours, got = make(comm), np.empty_like(smooth)
    assert agree(ways(ours, lambda: ours.Alltoall(smooth, got), 40)[-1])
    if folder is not None:
        ((_, about, (row,)),) = table.tables()
        assert row.op == "Alltoall"
        assert row.compress
        assert row.bytes == 4 * N
        assert row.ranks_a_node == (1,) * comm.size
        assert about.link_MBps_log2 == 3
        new_process()
    next_job = make(comm)
    assert agree(ways(next_job, lambda: next_job.Alltoall(smooth, got), 5) == [True] * 5)


def test_a_trial_goes_on_in_the_next_job(comm, agree, known_link, folder, smooth, monkeypatch):
    """A job that ends within a trial leaves its pairs to the next one, which ends the trial."""
    make_clear(monkeypatch, 0.5)
    monkeypatch.setattr(trial, "LARGE_WARM", 2)
    monkeypatch.setattr(trial, "WARM_NBYTES", 0)
    for i, n_plain in enumerate((2 + 4, 2 + 4)):
        ours, got = make(comm), np.empty_like(smooth)
        found = ways(ours, lambda ours=ours, got=got: ours.Alltoall(smooth, got), 2 + 8 + 1 + i)
        assert agree(found.count(False) == n_plain), found
        if folder is not None:
            table.store().write()  # as before MPI is finalized
            ((_, _, rows),) = table.tables()
            assert len(rows) == i
            new_process()
        comm.Barrier()
    next_job = make(comm)
    assert agree(ways(next_job, lambda: next_job.Alltoall(smooth, got), 5) == [True] * 5)
    assert agree("trial of" in next_job.report.reason)


def test_a_trial_that_ends_without_an_outcome_is_forgotten(
    comm, agree, known_link, folder, smooth, monkeypatch
):
    """A kind that is left to plain MPI leaves no pairs, from which the next job would go on."""
    make_clear(monkeypatch, 0.5)
    monkeypatch.setattr(trial, "WARM_NBYTES", 0)
    monkeypatch.setattr(trial, "outcome", lambda *_: trial.Known(False, source="plain MPI"))
    ours, got = make(comm), np.empty_like(smooth)
    ways(ours, lambda: ours.Alltoall(smooth, got), 2 + 4 * 4 + 1)
    if folder is not None:
        table.store().write()
        about = ours._marked.measured.about
        assert agree(table.store().found(about).begun == [])
    else:
        assert agree(True)


def test_a_row_that_is_no_longer_so(comm, agree, known_link, folder, smooth, monkeypatch):
    """If a row does not hold any more, ranks agree so after 16 calls, and try both ways again."""
    monkeypatch.setattr(trial.Pair, "part", property(lambda self: 3.0))
    keep(make(comm), replace(ROW, seconds=(1.0, 2.0), in_call=(1.0, 2.0)))
    ours, got = make(comm), np.empty_like(smooth)
    found = ways(ours, lambda: ours.Alltoall(smooth, got), 16 + 37)
    assert agree(found[:16] == [True] * 16)
    assert agree(not found[-1] and len(set(comm.allgather(tuple(found)))) == 1)


def test_a_frozen_table(comm, agree, known_link, tmp_path, smooth, monkeypatch):
    """A frozen table gives a row or plain MPI, and no trial."""
    monkeypatch.setenv("COMPCOLL_TABLE", "read")
    monkeypatch.setenv("XDG_CACHE_HOME", comm.bcast(str(tmp_path)))
    make(comm)
    keep(make(comm), ROW)
    ours, got = make(comm), np.empty_like(smooth)
    assert agree(all(ways(ours, lambda: ours.Alltoall(smooth, got), 30)))
    assert agree(not any(ways(ours, lambda: ours.Allgather(smooth[:N], got), 30)))
    assert agree("no row" in ours.report.reason)


def test_each_rank_has_a_table_of_its_own(comm, agree, known_link, smooth, tmp_path, monkeypatch):
    """Rank 0's table decides if each rank has another one."""
    monkeypatch.setenv("COMPCOLL_TABLE", str(tmp_path))
    about = make(comm)._marked.measured.about
    row = replace(ROW, compress=comm.rank > 0, ranks_a_node=(1,) * comm.size)
    table.write_file(tmp_path, about, [row])
    new_process()
    ours, got = make(comm), np.empty_like(smooth)
    assert agree(ways(ours, lambda: ours.Alltoall(smooth, got), 10) == [False] * 10)
    assert agree("trial of" in ours.report.reason)


@pytest.mark.parametrize("who", [0, 1])
def test_one_rank_has_no_home(comm, agree, nodes_of_one, smooth, monkeypatch, who):
    monkeypatch.delenv("COMPCOLL_TABLE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if comm.rank == who:
        monkeypatch.setenv("HOME", "/proc/nowhere")
    else:
        monkeypatch.setenv("COMPCOLL_TABLE", "off")
    ours, got = make(comm, codec="lossless", when="pays"), np.empty_like(smooth)
    ways(ours, lambda: ours.Alltoall(smooth, got), 60)
    comm.Alltoall(smooth, want := np.empty_like(smooth))
    assert agree(got.tobytes() == want.tobytes())


def test_a_link_is_measured_once(comm, agree, nodes_of_one, monkeypatch):
    measured = []
    monkeypatch.setattr(advisor, "_links", {})
    monkeypatch.setattr(advisor, "byte_seconds", lambda comm, peer: measured.append(peer) or 1e-9)
    bytes = {make(comm)._marked.measured.byte for _ in range(3)}
    assert agree(measured == [1] and bytes == {1e-9})


def frozen(array):
    """Read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view


#: Calls, and a change of rank 0's array for which a plan for similar arrays does not fit.
ODD = {
    "read-only": (lambda c, a, b: c.Bcast(a), frozen),
    "other order": (lambda c, a, b: c.Alltoall(a, b), np.asfortranarray),
}


@slow
@pytest.mark.parametrize("odd", ODD)
def test_all_ranks_count_a_call_once(comm, agree, network, odd):
    """A call counts once on each rank, whatever its buffers, so that ranks begin a trial together."""
    ours = make(comm)
    a = np.sin(np.arange(N * comm.size) * 1e-3).astype("f4").reshape(64 * comm.size, -1)
    b = np.empty_like(a)
    call, changed = ODD[odd]
    other = changed(a) if comm.rank == 0 else a
    for i in range(40):
        call(ours, a if i % 3 else other, b)
    (kind,) = ours._marked.advisor._kinds.values()
    assert agree(len(set(comm.allgather((kind._chosen, kind.window.calls)))) == 1)
    assert agree(ours.report.accelerated)


@slow
def test_first_calls_of_two_threads_in_other_orders(comm, agree, network, smooth):
    """First calls of two threads complete, begun in another order on each rank.

    Python decides each of them, where ranks may meet while another call waits for its ranks.
    """
    both = [make(comm), make(comm)]
    got, failed = [np.empty_like(smooth) for _ in both], []
    comm.Alltoall(smooth, want := np.empty_like(smooth))

    def run_all(i: int) -> None:
        n = smooth.size // comm.size
        for m in range(n, n - 40, -1):
            both[i].Alltoall(smooth[: m * comm.size], got[i][: m * comm.size])
            if m == n and (got[i] != want).any():
                failed.append(i)

    threads = [threading.Thread(target=run_all, args=(i,)) for i in range(2)]
    for thread in threads[:: 1 if comm.rank % 2 else -1]:
        thread.start()
    for thread in threads:
        thread.join()
    assert agree(not failed)


def test_communicators_of_others_in_any_order(comm, agree, known_link, smooth, monkeypatch):
    """A decision on an intermediate communicator on one rank changes no decision on its descendants."""
    monkeypatch.setattr(advisor, "BESIDE_NBYTES", 4 * N)
    first = make(comm)
    between = first.Split()
    last = between.Split()
    comm.Alltoall(smooth, want := np.empty_like(smooth))
    both = [(one, np.empty_like(smooth)) for one in (between, last)]
    requests = [one.Ialltoall(smooth, array) for one, array in both[:: 1 if comm.rank else -1]]
    MPI.Request.Waitall(requests)
    for one, array in both:
        assert agree((array == want).all())
        assert agree("expected" in one.report.reason)
    for one in (last, between):
        one.Free()


def test_a_trial_that_is_not_worth_it_holds_for_other_buffers_too(comm, agree, known_link, monkeypatch):
    """The verdict of a trial also discards remembered nonblocking calls, so that ranks decide alike."""
    monkeypatch.setattr(advisor, "BESIDE_NBYTES", 4 * N)
    ours, n = make(comm), 1 << 17
    mine = np.random.default_rng(comm.rank).integers(0, 1 << 16, n, np.uint16).view(np.float16)
    got, want = np.empty(n * comm.size, np.float16), np.empty(n * comm.size, np.float16)
    comm.Allgather(mine, want)
    ours.Iallgather(mine, got).Wait()
    assert agree(ours.report.accelerated)
    assert agree(not any(ways(ours, lambda: ours.Allgather(mine, got), 12)))
    assert agree("little is saved" in ours.report.reason)
    request = ours.Iallgather(MPI.IN_PLACE if comm.rank == 1 else mine, got)
    request.Wait()
    assert agree(got.tobytes() == want.tobytes() and not ours.report.accelerated)


def test_values_on_a_gpu_are_measured_once_they_are_copied(comm, agree, device, known_link):
    """A codec is tried on this call's host copies of GPU values, not on what their memory held before."""
    ours, n, size = make(comm), (1 << 18) // comm.size, comm.size  # of which `trial.WARM` calls warm up
    column = MPI.FLOAT.Create_vector(n, 1, size).Create_resized(0, 4).Commit()
    mine, got = device.array(np.zeros(n, "f4")), device.array(np.zeros((n, size), "f4"))
    assert agree(not any(ways(ours, lambda: ours.Allgather(mine, [got, 1, column]), trial.WARM)))
    noise = [np.random.default_rng(rank).integers(0, 1 << 32, n, np.uint32) for rank in range(size)]
    mine.set(noise[comm.rank].view("f4"))
    ours.Allgather(mine, [got, 1, column])
    column.Free()
    assert agree("little is saved" in ours.report.reason)
    assert agree((got.get().view(np.uint32) == np.stack(noise, axis=1)).all())


def test_a_rank_that_does_not_come_to_the_agreement(comm, nodes_of_one, smooth, monkeypatch):
    """A rank waits as long as ``COMPCOLL_TIMEOUT`` says for ranks that do not come to an agreement."""
    monkeypatch.setenv("COMPCOLL_TIMEOUT", "1")
    ours, got = make(comm), np.empty_like(smooth)
    ways(ours, lambda: ours.Alltoall(smooth, got), 8)
    if comm.rank == 0:
        with pytest.raises(MPI.Exception) as caught:
            ours.Alltoall(smooth, got)
        assert caught.value.Get_error_class() == compcoll.errors.TIMEOUT
    comm.Barrier()


@slow
def test_an_interrupt_between_blocks(comm, agree, network, smooth):
    """Calls that raise are counted on all ranks, and the trial continues."""
    ours, got = make(comm), np.empty_like(smooth)
    for i in range(40):
        if i % 5 == 2:
            with pytest.raises(MPI.Exception):
                ours.Alltoall(smooth, smooth)  # the same memory
        ours.Alltoall(smooth, got)
    comm.Alltoall(smooth, want := np.empty_like(smooth))
    assert agree(got.tobytes() == want.tobytes())
    assert agree(len(set(comm.allgather(ours.report.accelerated))) == 1)


@slow
def test_memory_of_a_gpu(comm, agree, device, network, smooth):
    """Blocks of a trial that MPI carries go through the host, and their results arrive in GPU memory."""
    ours, found = make(comm), set()
    smooth = smooth[: N // 4 * comm.size].copy()
    comm.Alltoall(smooth, want := np.empty_like(smooth))
    send, recv = device.array(smooth), device.array(np.zeros_like(smooth))
    for _ in range(12):  # the first 8 are plain
        device.fill_later(recv, np.zeros_like(smooth))
        ours.Alltoall(send, recv)
        found.add(ours.report.accelerated)
        assert agree(same(recv, want))
    assert agree(found == {True, False})


def test_the_variable_is_looked_at_on_all_ranks(comm, agree, nodes_of_one, monkeypatch):
    monkeypatch.setenv("COMPCOLL_TABLE", "of")
    with pytest.raises(ValueError, match=r"'of'.*not off, read or the path of a folder"):
        make(comm)
    assert os.environ["COMPCOLL_TABLE"] == "of"
