"""Hooks beside gloo: nodes, settings, shared groups and threads, time-outs, errors on all ranks, memory."""

import os
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from buckets import Bucket, averaged, mean_by_gloo, of_rank
from test_conformance import model, train
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

from compcoll.torch import ErrorFeedback, compress_ddp, compressed_hook, hooks, node_group

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shares", [True, False])
def test_sums_and_blocks_inside_a_node(gloo, agree, dtype, shares, monkeypatch):
    """Sums and gathers in a node are right in shared memory and, if a rank has none, through the group."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if not shares and rank == size - 1:
        monkeypatch.setattr(node_group, "_FOLDER", "/nowhere")
    node = node_group.NodeGroup(gloo)
    for n in (5, 0, 3000, 7):
        rows = of_rank(rank, 2 * size * n, dtype).view(2 * size, n)
        everything = [of_rank(peer, 2 * size * n, dtype).view(2 * size, n) for peer in range(size)]
        want = torch.stack(everything).double().sum(0)[2 * rank : 2 * rank + 2]
        got = node.reduce_scatter(rows)
        tolerance = 2 * size * torch.finfo(dtype).eps
        assert agree(got.dtype == dtype and torch.allclose(got.double(), want, rtol=0, atol=5 * tolerance))
        assert agree(torch.equal(node.all_gather(rows), torch.cat(everything)))
    assert agree(bool(node._blocks) == shares)


def test_a_file_of_another_container_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        node_group._mapped(str(tmp_path / "theirs"), 4096)
    assert not (tmp_path / "theirs").exists()


def test_settings_that_differ_are_an_error_on_all_ranks(gloo, agree):
    for one, options in (("int8", {}), ("int4", {}), ("int8", {"levels": 2}), ("int8", {"min_numel": 9})):
        mine = (one, options) if dist.get_rank() else ("int8", {})
        problem = ""
        try:
            averaged(ErrorFeedback(mine[0], gloo, **mine[1]), torch.ones(9))
        except ValueError as error:
            problem = str(error)
        assert agree(("ranks differ in settings" in problem) == ((one, options) != ("int8", {})))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"nodes": [0]}, "nodes has 1 entries for"), ({"levels": 3}, "levels = 3 is not 1")],
)
def test_a_rank_with_bad_settings_is_an_error_on_all(gloo, agree, options, message):
    with pytest.raises(ValueError, match=message):
        averaged(ErrorFeedback("int8", gloo, **(options if dist.get_rank() else {})), torch.ones(9))
    assert agree(True)


def test_levels_that_cannot_be_two_say_why(gloo, agree):
    nodes = [0] * (dist.get_world_size() - 1) + [1]
    state = ErrorFeedback("int8", gloo, nodes=nodes, levels=2)
    averaged(state, torch.ones(9))
    why = "every node has one rank" if len(nodes) == 2 else f"nodes have 1 to {len(nodes) - 1} ranks"
    assert agree(state.levels == 1 and why in state.reason)


def test_nodes_by_a_mesh_and_by_the_environment(gloo, agree, place, monkeypatch):
    size = dist.get_world_size()
    shape = (2, size // 2) if size % 2 == 0 else (size, 1)
    state = ErrorFeedback("int8", gloo, nodes=init_device_mesh("cpu", shape))
    averaged(state, torch.ones(9))
    assert agree(state.levels == (2 if shape[1] > 1 else 1))
    monkeypatch.setenv("COMPCOLL_NODES", ",".join(map(str, place[0])))
    state = ErrorFeedback("int8", gloo)
    averaged(state, torch.ones(9))
    assert agree(state.levels == place[1])


def test_hosts_of_one_name_are_nodes_of_their_own(gloo, agree, monkeypatch):
    """Ranks that cannot share memory are on nodes of their own, such as containers with one host name."""
    links = {"/proc/self/ns/pid": f"pid:[{dist.get_rank()}]"}
    readlink = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: links.get(path) or readlink(path))
    state = ErrorFeedback("int8", gloo)
    averaged(state, torch.ones(9))
    assert agree(state.reason == "every node has one rank"), state.reason


def groups():
    return set(dist.distributed_c10d._world.pg_names)


@pytest.mark.parametrize("anew", [False, True], ids=["one group", "a group each"])
def test_models_in_turn_share_groups_and_threads(world, agree, anew):
    group, counts = dist.new_group(backend="gloo"), []
    for _ in range(5):
        if anew:
            dist.destroy_process_group(group)
            group = dist.new_group(backend="gloo")
        net = DDP(model(), process_group=group)
        state = compress_ddp(net, "int8")
        train(net, steps=2)
        counts.append((len(groups()), threading.active_count()))
        assert agree(state.wire_nbytes > 0)
    assert agree(len(set(counts)) == 1), counts


def test_groups_at_one_time_share_nothing(world, agree):
    """Two groups that exist at one time share no pipeline: ranks may use them in different orders."""
    states = [ErrorFeedback("int8", dist.new_group(backend="gloo")) for _ in range(2)]
    for state in states:
        averaged(state, torch.ones(999))
    values = [of_rank(dist.get_rank() + 10 * k, 999) for k in range(2)]
    order = [0, 1] if dist.get_rank() else [1, 0]
    futures = {k: compressed_hook(states[k], Bucket(values[k].clone())) for k in order}
    for k, state in enumerate(states):
        error = futures[k].wait() - mean_by_gloo(state.group, values[k])
        assert agree(error.abs().max() < 0.1)


def test_other_groups_come_and_go(world, agree):
    """New hooks work when ranks have different numbers of other groups, or the same number as before."""
    others = [dist.new_group(backend="gloo") for _ in range(2)]
    for when in range(2):
        group, values = dist.new_group(backend="gloo"), of_rank(dist.get_rank(), 999)
        got = averaged(ErrorFeedback("int8", group), values)
        assert agree((got - mean_by_gloo(group, values)).abs().max() < 0.1)
        for other in others:
            dist.destroy_process_group(other)
        others = [dist.new_group([0], backend="gloo")] if when == 0 else []


@pytest.mark.parametrize("backend", ["gloo", "compcoll"])
def test_time_outs_of_groups(world, agree, backend):
    group, before = dist.new_group(backend=backend, timeout=timedelta(seconds=6)), groups()
    averaged(ErrorFeedback("int8", group), torch.ones(999))
    made = [one._get_backend(torch.device("cpu")) for one in groups() - before]
    limits = [one.state.timeout if backend == "compcoll" else one.options._timeout.seconds for one in made]
    assert agree(len(limits) == 2 and set(limits) == {6}), limits


def test_phases_that_fail(world, agree, monkeypatch):
    """A phase that fails on one rank is an error on all, within the group's time-out; later objects work."""
    limit, mine = timedelta(seconds=2), of_rank(dist.get_rank(), 999)
    states = {
        phase: ErrorFeedback("int8", dist.new_group(backend="gloo", timeout=limit))
        for phase in ("node_sum", "reduce_scatter", "all_gather")
    }
    for state in states.values():
        averaged(state, mine)

    def failing(phase, state):
        original = getattr(hooks, phase)

        def run(called, *args):
            if called is state:
                raise MemoryError("there is none")
            return original(called, *args)

        return run

    def is_an_error():
        kind = RuntimeError if dist.get_rank() else Exception
        return pytest.raises(kind, match=r"there is none|Timed out")

    with monkeypatch.context() as patched:
        for phase, state in states.items() if dist.get_rank() == 0 else ():
            patched.setattr(hooks, phase, failing(phase, state))
        futures = [compressed_hook(state, Bucket(mine.clone())) for state in states.values()]
        for state, future in zip(states.values(), futures, strict=True):
            with is_an_error():
                future.wait()
            with is_an_error():
                averaged(state, mine)
    for state in states.values():
        assert agree(state.wire_nbytes > 0)  # and all have come here
        again = averaged(ErrorFeedback("int8", state.group), mine)
        assert agree((again - mean_by_gloo(state.group, mine)).abs().max() < 0.1)


def test_rows_of_a_bucket_are_freed_before_the_next_phase_ends(gloo, agree, place, monkeypatch):
    """A bucket's rows are freed before its averages are gathered."""
    state, rows = ErrorFeedback("int8", gloo, nodes=place[0], feeds_back=False), []
    reduce_scatter, all_gather, freed = hooks.reduce_scatter, hooks.all_gather, []

    def noting(state, sums, *args):
        rows.append(weakref.ref(sums.untyped_storage()))
        return reduce_scatter(state, sums, *args)

    def looking(*args):
        until = time.monotonic() + 20
        while any(one() is not None for one in rows) and time.monotonic() < until:
            time.sleep(0.01)  # until the thread that added them up is done with them
        freed.append(all(one() is None for one in rows))
        return all_gather(*args)

    monkeypatch.setattr(hooks, "reduce_scatter", noting)
    monkeypatch.setattr(hooks, "all_gather", looking)
    averaged(state, of_rank(dist.get_rank(), 5000))
    assert agree(len(rows) == 1 and freed == [True])
