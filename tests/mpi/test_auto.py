"""codec="auto" and when="pays": what the model says is the same on all ranks, and is obeyed."""

import threading

import numpy as np
import pytest
from common import same
from mpi4py import MPI

import compcoll
from compcoll.engine import group
from compcoll.model import profile, trials
from compcoll.model.trials import LARGE_TRIALS, MOST_ROUNDS, TRIALS
from compcoll.schedule.virtual import Link

N = 1 << 18


@pytest.fixture(params=["slow", "fast"])
def network(request, comm, nodes_of_one, tmp_path, monkeypatch):
    """The profile that rank 0 finds: of a network that is worth compressing for, or one that is not."""
    link = Link(1e-5, 1e7) if request.param == "slow" else Link(1e-6, 1e12)
    monkeypatch.setenv("COMPCOLL_PROFILE", str(tmp_path / "profile.json"))
    if comm.rank == 0:
        profile.save(profile.MachineProfile("test", link, link))
    return request.param


@pytest.fixture
def hopeful(comm, nodes_of_one, tmp_path, monkeypatch):
    """A profile by which compression is worth a trial, however fast memory is."""
    monkeypatch.setenv("COMPCOLL_PROFILE", str(tmp_path / "profile.json"))
    if comm.rank == 0:
        profile.save(profile.MachineProfile("test", Link(1e-5, 1e7), Link(1e-5, 1e7)))


@pytest.fixture
def smooth(comm):
    return np.sin(np.arange(N * comm.size) * 1e-3 + comm.rank).astype("f4")


def run(ours, comm, smooth):
    """One call of each kind, whether it was compressed, and whether that was so on all ranks."""
    one, many = np.random.default_rng(comm.rank).random(N, "f4"), np.empty_like(smooth)
    if comm.rank == 0:  # only what the root of a broadcast has is looked at
        one[:] = smooth[:N]
    counts = [N] * comm.size
    calls = {
        "Alltoall": lambda: ours.Alltoall(smooth, many),
        "Allgather": lambda: ours.Allgather(smooth[:N], many),
        "Bcast": lambda: ours.Bcast(one),
        "Allreduce": lambda: ours.Allreduce(smooth, many),
        "Reduce_scatter_block": lambda: ours.Reduce_scatter_block(smooth, one),
        "Alltoallv": lambda: ours.Alltoallv([smooth, counts], [many, counts]),
        "Sendrecv": lambda: ours.Sendrecv(smooth[:N], (comm.rank + 1) % comm.size, 0, one),
    }
    found = {}
    for name, call in calls.items():
        call()
        found[name] = comm.allgather(ours.report.wire_nbytes > 0 and ours.report.codec is not None)
    return found


def test_what_calls_took_decides(comm, agree, hopeful, smooth):
    """The model hopes, the clock says no: memory is faster than any codec."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    fresh = comm.Dup()
    ours, got = compcoll.Comm(fresh, codec="auto", min_nbytes=4096), np.empty_like(smooth)
    reports = []
    for _ in range(2 * LARGE_TRIALS * MOST_ROUNDS + 2):
        ours.Alltoall(smooth, got)
        reports.append(ours.report)
    tried = [report.accelerated for report in reports]
    (trial,) = ours._marked.advisor._trials.values()
    both_ways = [True] * LARGE_TRIALS + [False] * LARGE_TRIALS
    assert agree(1 <= trial.rounds <= MOST_ROUNDS)
    assert agree(tried[: len(both_ways) * trial.rounds] == both_ways * trial.rounds)
    assert agree("on trial" in reports[0].reason)
    assert agree("measured" in reports[-1].reason)
    assert agree(len(set(comm.allgather(tuple(tried)))) == 1)
    assert agree(tried[-2] == tried[-1])
    fresh.Free()


def test_sizes_of_one_class_are_tried_together(comm, agree, hopeful):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    fresh = comm.Dup()
    ours = compcoll.Comm(fresh, codec="auto")
    sizes = [(1 << 18) + 1000 * (i % 7) for i in range(2 * TRIALS * MOST_ROUNDS + 2)]
    for n in sizes:
        values = np.linspace(0, 1, n, dtype="f4") if comm.rank == 0 else np.empty(n, "f4")
        ours.Bcast(values)
        assert agree(values[-1] == 1)
    (trial,) = ours._marked.advisor._trials.values()
    *both_ways, chosen = [count.calls for count in trial.counts]
    assert agree(both_ways == [LARGE_TRIALS] * 2 * trial.rounds)
    assert agree(chosen == len(sizes) - sum(both_ways))
    assert agree("measured" in ours.report.reason)
    fresh.Free()


@pytest.mark.parametrize("options", [{"codec": "auto"}, {"codec": "zfp:rate=8", "when": "pays"}])
def test_pays_or_not(comm, agree, network, smooth, options):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    fresh = comm.Dup()
    ours = compcoll.Comm(fresh, min_nbytes=4096, **options)
    found = run(ours, comm, smooth)
    senders = [True] * comm.size
    for name, compressed in found.items():
        if name == "Bcast":  # the last rank forwards nothing
            assert agree(any(compressed) == (network == "slow"))
        elif options["codec"] == "auto" and "educe" in name:  # which are floating-point sums
            assert agree(not any(compressed))
        elif network == "slow" and not (name in ("Alltoallv", "Sendrecv") and options["codec"] == "auto"):
            assert agree(compressed == senders)
        elif network == "fast" and name != "Sendrecv":  # which reports that it received
            assert agree(not any(compressed))
    fresh.Free()


def test_results_stay_lossless(comm, agree, network, smooth):
    fresh = comm.Dup()
    ours = compcoll.Comm(fresh, codec="auto", min_nbytes=4096)
    got, want = np.empty_like(smooth), np.empty_like(smooth)
    for _ in range(3):
        ours.Alltoall(smooth, got)
        comm.Alltoall(smooth, want)
        assert agree(got.tobytes() == want.tobytes())
    fresh.Free()


def test_links_are_measured_where_no_profile_is(comm, agree, nodes_of_one, tmp_path, monkeypatch):
    if comm.size == 1:
        pytest.skip("a single rank has no link")
    monkeypatch.setenv("COMPCOLL_PROFILE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fresh = comm.Dup()
    machine = compcoll.Comm(fresh)._marked.advisor.machine
    assert agree(machine.measured == ("network",))
    assert agree(machine.network.bandwidth > 1e6)
    assert agree(len(set(comm.allgather(machine.as_json()))) == 1)
    fresh.Free()


def test_a_node_asks_nobody(comm, agree, smooth):
    """Inside a node everything is MPI's: nothing is measured, nothing tried."""
    fresh = comm.Dup()
    ours, got = compcoll.Comm(fresh), np.empty_like(smooth)
    ours.Alltoall(smooth, got)
    assert agree(ours._marked.advisor is None and not ours.report.accelerated)
    assert agree(comm.size == 1 or "inside a node" in ours.report.reason)
    fresh.Free()


@pytest.mark.parametrize("compress", [True, False])
def test_starts_go_both_ways(comm, agree, network, smooth, monkeypatch, compress):
    """Persistent collectives in different orders on different ranks; the values are MPI's on all ways."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    monkeypatch.setattr(
        trials.Advisor, "_judge", lambda self, trial, found: trial.choose(compress, f"found {found.shape}")
    )
    fresh = comm.Dup()
    ours, n = compcoll.Comm(fresh, min_nbytes=4096), 2 * LARGE_TRIALS + 4
    mine, came, want = (np.empty((2, *smooth.shape), "f4") for _ in range(3))
    try:
        requests = [ours.Alltoall_init(mine[i], came[i]) for i in range(2)]
    except NotImplementedError:
        pytest.skip("this MPI has no persistent collectives")
    ways = []
    for step in range(n):
        for i in (0, 1) if comm.rank % 2 else (1, 0):
            mine[i] = smooth + step + i
            comm.Barrier()
            requests[i].Start()
        MPI.Prequest.Waitall(requests)
        ways.append(ours.report.accelerated)
        for i in range(2):
            comm.Alltoall(mine[i], want[i])
        assert agree(came.tobytes() == want.tobytes())
    tried = [True] * LARGE_TRIALS + [False] * (LARGE_TRIALS + 1)
    last = [compress] * (n - len(tried))
    assert agree(ways == (tried + last if network == "slow" else [False] * n))
    for request in requests:
        request.Free()
    fresh.Free()


def frozen(array):
    """A read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view


#: Calls in which rank 0 has an array that a plan for others like it is not fit for.
ODD = {
    "read-only": (lambda c, a, b: c.Bcast(a), frozen),
    "other order": (lambda c, a, b: c.Alltoall(a, b), np.asfortranarray),
}


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("odd", ODD)
def test_all_ranks_count_a_call_once(comm, agree, hopeful, monkeypatch, odd, compress):
    """Whatever its buffers are: else one of them would be the first to begin another trial."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    monkeypatch.setattr(trials.Advisor, "_choose", lambda self, trial: trial.choose(compress, "a test"))
    fresh = comm.Dup()
    ours = compcoll.Comm(fresh, codec="auto", min_nbytes=4096)
    a = np.sin(np.arange(N * comm.size) * 1e-3).astype("f4").reshape(64 * comm.size, -1)
    b = np.empty_like(a)
    call, changed = ODD[odd]
    other = changed(a) if comm.rank == 0 else a
    for i in range(2 * TRIALS + 20):
        call(ours, a if i < 2 * TRIALS + 5 else other, b)
    (trial,) = ours._marked.advisor._trials.values()
    assert agree(ours.report.accelerated == compress)
    assert agree(trial.count.calls == 2 * (TRIALS - LARGE_TRIALS) + 20)
    fresh.Free()


def test_a_link_that_the_profile_lacks_is_measured(comm, agree, tmp_path, monkeypatch):
    """By the first communicator that spans nodes; here each rank is taken for one."""
    if comm.size == 1:
        pytest.skip("a single rank has no link")
    monkeypatch.setenv("COMPCOLL_PROFILE", str(tmp_path / "profile.json"))
    node = Link(1e-6, 5e9)
    if comm.rank == 0:
        profile.save(profile.UNKNOWN.with_links(network=None, node=node))
    facts = group.Facts("network", 1, 0, True, nodes=tuple(range(comm.size)))
    machine = group.find_machine(comm, facts)
    assert agree(machine.measured == ("network", "node"))
    assert agree(machine.node == node)
    assert agree(machine.network != profile.UNKNOWN.network)


#: Seconds of compressed and of plain calls in turn, the faster way, and the rounds until it is chosen.
TIMES = {
    "clear": (lambda rng: 1.0, lambda rng: 2.0, True, 1),
    "clearly slower": (lambda rng: 2.0, lambda rng: 1.0, False, 1),
    "faster, by noise": (lambda rng: rng.uniform(0.5, 0.8), lambda rng: rng.uniform(0.5, 1.5), True, None),
    "slower, by noise": (lambda rng: rng.uniform(0.6, 2), lambda rng: rng.uniform(0.5, 1.5), False, None),
    "equal": (lambda rng: rng.uniform(0.5, 1.5), lambda rng: rng.uniform(0.5, 1.5), None, None),
}


@pytest.mark.parametrize("case", TIMES)
def test_calls_go_both_ways_until_one_is_faster(comm, agree, case):
    compressed, plain, faster, rounds = TIMES[case]
    least = LARGE_TRIALS
    advisor = trials.Advisor(comm, profile.UNKNOWN, 1, 0)
    ways = trials.Decision(None, "pairwise", 0, "compressed"), trials.Decision(None, "mpi", 0, "plain")
    found, tried = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        trial = trials.Trial(*ways, least, (0.0, 0.0))
        while trial.chosen is None:
            for _ in range(least):
                trial.count.calls += 1
                trial.record((compressed if trial.compresses else plain)(rng))
            if trial.compresses:
                trial.go_other_way()
            else:
                advisor._choose(trial)
        found.append(trial.chosen.algorithm == "pairwise")
        tried.append(trial.rounds)
    assert agree(faster is None or found.count(faster) >= 18)
    assert agree(max(tried) <= MOST_ROUNDS and (rounds is None or set(tried) == {rounds}))
    assert agree(rounds is not None or len(set(tried)) > 1)  # as long as it takes


def test_first_calls_of_two_threads_in_other_orders(comm, agree, hopeful, smooth):
    """Each is decided on in Python, where ranks may meet, while another one waits for its ranks there."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    origins = [comm.Dup(), comm.Dup()]
    both = [compcoll.Comm(origin, codec="auto", min_nbytes=4096) for origin in origins]
    got, failed = [np.empty_like(smooth) for _ in both], []
    comm.Alltoall(smooth, want := np.empty_like(smooth))

    def run_all(i: int) -> None:
        n = smooth.size // comm.size
        for m in range(n, n - 20, -1):
            both[i].Alltoall(smooth[: m * comm.size], got[i][: m * comm.size])
            if m == n and (got[i] != want).any():
                failed.append(i)

    threads = [threading.Thread(target=run_all, args=(i,)) for i in range(2)]
    for thread in threads[:: 1 if comm.rank % 2 else -1]:
        thread.start()
    for thread in threads:
        thread.join()
    assert agree(not failed)
    for origin in origins:
        origin.Free()


def test_communicators_of_others_in_any_order(comm, agree, hopeful, smooth):
    """What one rank has asked of a communicator between decides nothing about one that was made of it."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    fresh = comm.Dup()
    first = compcoll.Comm(fresh, codec="auto", min_nbytes=4096)
    between = first.Split()
    last = between.Split()
    comm.Alltoall(smooth, want := np.empty_like(smooth))
    both = [(one, np.empty_like(smooth)) for one in (between, last)]
    requests = [one.Ialltoall(smooth, array) for one, array in both[:: 1 if comm.rank else -1]]
    MPI.Request.Waitall(requests)
    for one, array in both:
        assert agree((array == want).all())
        assert agree("predicted" in one.report.reason)
    for one in (last, between, fresh):
        one.Free()


@pytest.mark.skipif(MPI.Get_version() < (4, 0), reason="MPI 3 has no persistent collectives")
def test_starts_on_a_gpus_memory_are_tried(comm, agree, device, hopeful, smooth):
    """Those that are left to MPI go through the host, and what is received is in the GPU's memory."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    fresh = comm.Dup()
    ours = compcoll.Comm(fresh, codec="auto", min_nbytes=4096)
    smooth = smooth[: N // 8 * comm.size].copy()
    comm.Alltoall(smooth, want := np.empty_like(smooth))
    send, recv = device.array(smooth), device.array(np.zeros_like(smooth))
    request, tried = ours.Alltoall_init(send, recv), set()
    for _ in range(2 * TRIALS + 1):
        device.fill_later(recv, np.zeros_like(smooth))
        request.Start()
        request.Wait()
        tried.add(ours.report.accelerated)
        assert agree(same(recv, want))
        if len(tried) == 2:
            break
    assert agree(tried == {True, False})
    request.Free()
    fresh.Free()
