"""torch.distributed.checkpoint with compressed files: equal tensors, in fewer bytes."""

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from compcoll.torch.dcp import Reader, Writer


@pytest.fixture
def folder(world):
    made = [tempfile.mkdtemp(prefix="dcp-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    yield Path(made[0])
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(made[0], ignore_errors=True)


def state(seed: int) -> dict:
    torch.manual_seed(seed)
    return {
        "w": torch.randn(1500, 1000).mul(0.02).bfloat16(),
        "f": torch.randn(777, 11),
        "n": torch.arange(seed + 5),
        "mask": torch.rand(13) < 0.5,
        "step": seed,
        "text": "x" * 100,
    }


@pytest.mark.parametrize("is_async", [False, True])
def test_round_trip(folder, gloo, agree, is_async):
    saved, found = state(1), state(2) | {"n": torch.zeros(6, dtype=torch.int64)}
    save = dcp.async_save if is_async else dcp.save
    future = save(saved, storage_writer=Writer(folder), process_group=gloo)
    if future is not None and is_async:
        future.result()
    dcp.load(found, storage_reader=Reader(folder), process_group=gloo)
    same = [
        torch.equal(saved[k], found[k]) if torch.is_tensor(saved[k]) else saved[k] == found[k] for k in saved
    ]
    assert agree(all(same))
    assert agree(sum(path.stat().st_size for path in folder.iterdir()) < 3_000_000 / 1.4)


def test_damage(folder, gloo, agree):
    dcp.save(state(1), storage_writer=Writer(folder), process_group=gloo)
    if dist.get_rank() == 0:
        for path in folder.glob("*.distcp"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 16
            path.write_bytes(data)
    dist.barrier()
    failed = False
    try:
        dcp.load(
            state(2) | {"n": torch.zeros(6, dtype=torch.int64)},
            storage_reader=Reader(folder),
            process_group=gloo,
        )
    except BaseException as error:  # torch's error for an error of any rank
        failed = "FrameError" in repr(error) or "damaged" in repr(error)
    assert agree(failed)
