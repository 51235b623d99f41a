"""Tensors on a GPU, or on the tests' device that stands for one: order of streams, futures, and errors."""

import time
from threading import Timer

import internals
import pytest
import torch
import torch.distributed as dist
from test_collectives import ALL_GATHER_SINGLE, run, same
from test_device import copied, mine

import compcoll.torch
from compcoll.devices.kernels import all_kernels

# These tests use a lossy codec for broadcasts on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:compcoll. a :UserWarning")


def test_an_operation_follows_the_stream_that_was_current(lossy, gpu, agree):
    """An operation waits for its caller's stream alone, and `wait` orders the stream that is current then."""
    size = dist.get_world_size()
    given = mine(3000)
    dist.all_gather(want := [torch.zeros(3000) for _ in range(size)], given, group=lossy)
    first, held = gpu.device.current, False
    for _ in range(8):  # the first times allocate memory, for which the driver waits for all streams
        gpu.device.use(first)
        first.hold()
        release = Timer(2, first.release)
        release.start()
        gpu.other_stream()
        x, outs = gpu.tensor(given), [gpu.tensor(torch.zeros(3000)) for _ in range(size)]
        work = dist.all_gather(outs, x, group=lossy, async_op=True)
        gpu.other_stream()
        work.wait()
        got = [copied(gpu, out) for out in outs]
        held = not first.done
        release.cancel()
        first.release()
        assert agree(same(got, want))
        if agree(held):
            break
    assert agree(held)


def test_operations_on_one_tensor_follow_each_other(lossy, gpu, agree):
    """Operations on one tensor run in order, although the program has not waited for the first ones."""
    given = mine(6000)
    for x in (want := given.clone(), got := gpu.tensor(given)):
        dist.all_reduce(x, dist.ReduceOp.AVG, group=lossy, async_op=True)
        dist.broadcast(x[:3000], 0, group=lossy, async_op=True)
        dist.all_reduce(x, group=lossy, async_op=True).wait()
    assert agree(same([copied(gpu, got)], [want]))


def test_coalesced_operations_on_one_tensor_follow_each_other(lossy, gpu, agree):
    given = mine(6000)
    for _ in range(4):
        for x in (want := given.clone(), got := gpu.tensor(given)):
            with dist._coalescing_manager(lossy, torch.device("cpu"), async_ops=True) as manager:
                dist.reduce(x, 0, dist.ReduceOp.AVG, group=lossy, async_op=True)
                dist.all_reduce(x, group=lossy, async_op=True)
            manager.wait()
        assert agree(same([copied(gpu, got)], [want]))


@pytest.mark.parametrize("n_streams", [1, 2])
def test_waits_in_streams(lossy, gpu, agree, n_streams):
    """Each stream that was current in a call of `wait` follows the operation."""
    dist.all_reduce(want := mine(6000), group=lossy)
    home = gpu.device.current
    for _ in range(5):
        gpu.device.use(home)
        x = gpu.tensor(mine(6000))
        work, copies = dist.all_reduce(x, group=lossy, async_op=True), []
        for _ in range(n_streams):
            gpu.other_stream()
            work.wait()
            copies.append(gpu.copy_later(x))
        gpu.synchronize()
        assert agree(same(copies[-1:], [want]))
        gpu.drain()
        assert agree(same(copies, [want] * n_streams))


def _all(x):
    return x.view(-1)


def _column(x):
    return x[:, 1]


@pytest.mark.parametrize("n_waits", range(3))
@pytest.mark.parametrize(
    ("group", "n", "part"),
    [("lossy", 3000, _all), ("lossy", 3000, _column), ("world", 20, _all), ("world", 20, _column)],
    ids=["engine", "engine with gaps", "MPI", "MPI with gaps"],
)
def test_memory_is_kept_until_the_end(request, gpu, agree, group, n, part, n_waits):
    """A deleted tensor's memory is not reused before its operation ends, whichever streams wait for it."""
    group, home = request.getfixturevalue(group), gpu.device.current
    for i in range(4):
        x = gpu.tensor(mine(3 * n).view(n, 3))
        work = dist.all_reduce(part(x), group=group, async_op=True)
        for _ in range(n_waits):
            gpu.other_stream()
            work.wait()
        gpu.delay()
        gpu.device.use(home)
        del x, work
        others = [gpu.tensor(torch.full((n, 3), float(i + k))) for k in range(2)]
        gpu.synchronize()
        gpu.finish()
        assert agree(all((other == i + k).all() for k, other in enumerate(others)))


@pytest.mark.parametrize("group", ["lossy", "world"])
def test_inputs_are_kept(request, gpu, agree, group):
    """Memory of a deleted input is not given to other tensors before its operation ends."""
    group, n = request.getfixturevalue(group), 3000 if group == "lossy" else 20
    size, given = dist.get_world_size(), mine(n)
    dist.all_gather(want := [torch.zeros(n) for _ in range(size)], given, group=group)
    for _ in range(4):
        outs, x = [gpu.tensor(torch.zeros(n)) for _ in range(size)], gpu.tensor(given)
        gpu.delay()
        work = dist.all_gather(outs, x, group=group, async_op=True)
        del x
        others = [gpu.tensor(torch.full((n,), -1.0)) for _ in range(2)]
        gpu.synchronize()
        work.wait()
        assert agree(same([copied(gpu, one) for one in (*outs, *others)], [*want, *[-torch.ones(n)] * 2]))


def test_it_goes_on_while_nobody_waits(lossy, gpu, agree):
    dist.all_reduce(want := mine(6000), group=lossy)
    work = dist.all_reduce(x := gpu.tensor(mine(6000)), group=lossy, async_op=True)
    end = time.monotonic() + 30
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(1e-3)
    assert agree(work.is_completed() and same([copied(gpu, x)], [want]))


def test_futures(lossy, gpu, agree):
    dist.all_reduce(want := mine(6000), group=lossy)
    work = dist.all_reduce(x := gpu.tensor(mine(6000)), group=lossy, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0].clone())
    assert agree(same([copied(gpu, future.wait())], [want]))
    assert agree(same([copied(gpu, x)], [want]))


# -- errors


def reasons_of(group, monkeypatch):
    """State of a group, and a list of reasons why it would be invalid.

    The group stays valid, so that MPI need not be aborted at the end.
    """
    reasons = []
    state = group.state if hasattr(group, "state") else group._get_backend(torch.device("cpu")).state
    monkeypatch.setattr(state, "invalidate", reasons.append)
    return state, reasons


def test_damage_is_noticed_by_the_next_operation_at_the_latest(lossy, gpu, agree, monkeypatch):
    state, reasons = reasons_of(lossy, monkeypatch)

    def damage(message):
        message[-1] ^= 1

    n, size = 6000, dist.get_world_size()
    outs = [gpu.tensor(torch.zeros(n)) for _ in range(size)]
    problem, given = "", gpu.tensor(mine(n))
    internals.set_recv_hook(damage)
    try:
        dist.all_gather(outs, given, group=lossy)
    except compcoll.FrameError as error:
        problem = str(error)
    state.flush()
    internals.set_recv_hook(None)
    assert agree("checksum" in problem or any("checksum" in reason for reason in reasons))


@pytest.mark.parametrize(("gpu", "later"), [(1, False), (2, True)], indirect=["gpu"])
def test_a_kernel_that_cannot_be_started_is_an_error_of_all(lossy, gpu, agree, monkeypatch, later):
    _, reasons = reasons_of(lossy, monkeypatch)
    x = gpu.tensor(mine(6000))
    gpu.synchronize()
    kernels = [one.name.encode() for one in all_kernels() if one.name.startswith("zfp_encode")]
    if dist.get_rank() == 0:
        for name in kernels:
            gpu.device.lib.standin_fail_launch(name, 701)
    with pytest.raises(
        (RuntimeError, compcoll.FrameError), match=r"cuLaunchKernel.* 701|another rank met an"
    ):
        run(dist.all_reduce, x, group=lossy, later=later)
    for name in kernels:
        gpu.device.lib.standin_fail_launch(name, 0)
    assert agree(reasons)


def test_arguments_that_do_not_fit(lossy, gpu, agree, monkeypatch):
    reasons_of(lossy, monkeypatch)
    x = gpu.tensor(torch.zeros(9001))
    with pytest.raises((ValueError, RuntimeError), match=r"elements|size"):
        ALL_GATHER_SINGLE(gpu.tensor(torch.zeros(7)), x, group=lossy)


def test_the_report_has_what_was_done(lossy, gpu, agree):
    before = lines(lossy)
    dist.all_reduce(gpu.tensor(mine(6000)), group=lossy)
    after = lines(lossy)
    assert agree(after[0] == before[0] + 1 and after[1] > before[1] and after[2] > 0)


def lines(group):
    """Compressed sums so far: calls, bytes sent, and the bound."""
    compcoll.torch.report()
    state = group.state if hasattr(group, "state") else group._get_backend(torch.device("cpu")).state
    found = [
        line for line in state.stats.lines.values() if (line.op, line.codec) == ("Allreduce", "zfp:rate=8")
    ]
    return (found[0].calls, found[0].wire_nbytes, found[0].bound) if found else (0, 0, 0.0)
