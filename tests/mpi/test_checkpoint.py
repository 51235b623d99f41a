"""Checkpoints: the newest complete set loads exactly, after a loss of files, on any number of ranks."""

import errno
import os
import resource
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import checkpoint_flips
import numpy as np
import pytest
from common import BF16, bits, data

import compcoll
from compcoll import checkpoint
from compcoll.checkpoint import Checkpointer, Part, sets
from compcoll.checkpoint import checkpointer as module

N = 50_001
#: Bits flipped in each case.
FLIPS = 10


@pytest.fixture
def folder(comm):
    """Temporary folder that all ranks share."""
    made = comm.bcast(tempfile.mkdtemp(prefix="checkpoint-") if comm.rank == 0 else None)
    yield Path(made)
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(made, ignore_errors=True)


def arrays(rank: int, step: int) -> dict[str, np.ndarray]:
    weights = data(N, BF16, rank)
    weights.view("u2")[:: 40 + rank] += np.uint16(step)
    return {
        "w": weights,
        "u": data(6000, "f8", rank + step).reshape(20, 3, 100),
        "none": np.zeros((0, 4), "i4"),
        "flags": np.arange(777) % (step + 2) == 0,
        "one": np.array(3.5 + step),
        "c": data(900, "c8", step),
        "five": data(7 * 32, "f4", step).reshape(7, 2, 2, 2, 4),
    }


def equal(found, want) -> bool:
    return found.keys() == want.keys() and all(
        found[k].dtype == want[k].dtype
        and found[k].shape == want[k].shape
        and bits(found[k]) == bits(want[k])
        for k in want
    )


def everything(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("codec", ["lossless", "delta"])
@pytest.mark.parametrize("has_local", [True, False])
def test_save_and_load(comm, agree, folder, codec, has_local):
    local = folder / f"local-{comm.rank}" if has_local else None
    ours = Checkpointer(folder / "shared", comm, local=local, codec=codec, keep=2, whole_every=3)
    for step in range(8):
        report = ours.save(arrays(comm.rank, step), step)
        assert agree(report.whole == (codec != "delta" or step % 3 == 0))
        assert agree(report.raw_nbytes == sum(a.nbytes for a in arrays(comm.rank, step).values()))
    if codec == "delta":
        assert agree(report.ratio > 1.9)
    ours.wait()
    comm.Barrier()
    for checkpointer in (ours, Checkpointer(folder / "shared", comm, local=local)):
        loaded = checkpointer.load()
        assert agree((loaded.step, loaded.ranks, loaded.rebuilt) == (7, comm.size, False))
        assert agree(equal(loaded.arrays, arrays(comm.rank, 7)))
    comm.Barrier()
    steps = {path.parent.name.split("-")[1].lstrip("0") for path in everything(folder / "shared")}
    assert agree(
        steps == ({"6", "7"} if not has_local else {"5", "6", "7"} | ({"3"} if codec == "delta" else set()))
    )


def test_a_lost_folder(comm, agree, folder):
    """If one rank loses its local folder before a flush, its partner's copy loads and is written again."""
    if comm.size == 1:
        pytest.skip("a single rank has no partner")
    local = folder / f"local-{comm.rank}"
    ours = Checkpointer(folder / "shared", comm, local=local)
    ours.save(arrays(comm.rank, 3), 3)
    ours.wait()
    for lost in range(comm.size):
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(folder / "shared", ignore_errors=True)
            shutil.rmtree(folder / f"local-{lost}")
        comm.Barrier()
        loaded = Checkpointer(folder / "shared", comm, local=local).load()
        assert agree(equal(loaded.arrays, arrays(comm.rank, 3)))
        assert agree(loaded.rebuilt == (comm.rank == lost))
        assert agree(len(everything(local)) == 2)


@pytest.mark.parametrize("case", checkpoint_flips.CASES)
def test_any_flipped_bit(comm, agree, folder, case):
    """A load with one flipped bit is right or raises on all ranks: a sample of ``checkpoint_flips.py``."""
    counted = checkpoint_flips.flip(folder, comm, checkpoint_flips.CASES[case], FLIPS)
    assert agree(sum(counted[one] for one in checkpoint_flips.FINE) == FLIPS)
    if comm.size > 1 and case in ("copies", "local folders"):
        assert agree(counted["right"] == FLIPS)


def test_a_damaged_set_without_another(comm, agree, folder):
    """A load of a damaged set without another raises FrameError, not FileNotFoundError.

    A program that starts anew if there is no set must not do so here.
    """
    Checkpointer(folder, comm).save(arrays(comm.rank, 1), 1)
    comm.Barrier()
    if comm.rank == 0:
        for path in everything(folder):
            if path.name in ("rank-0.cck", "copy-0.cck"):
                path.write_bytes(path.read_bytes()[:-1] + b"?")
    comm.Barrier()
    with pytest.raises(compcoll.FrameError, match=r"no sound file of rank 0: .*frames"):
        Checkpointer(folder, comm).load()


def test_an_incomplete_set(comm, agree, folder):
    """A set that some rank has not written is passed over with a warning, and the previous set loads."""
    ours = Checkpointer(folder, comm)
    ours.save(arrays(comm.rank, 1), 1)
    ours.save(arrays(comm.rank, 2), 2)
    comm.Barrier()
    if comm.rank == 0:
        for path in everything(folder):
            if "step-000000000002" in str(path) and path.name in ("rank-0.cck", "copy-0.cck"):
                os.rename(path, f"{path}.7.tmp")
    comm.Barrier()
    with pytest.warns(RuntimeWarning, match="step 1 is not the newest: step-0+2-.* no sound file of rank 0"):
        loaded = ours.load()
    assert agree(loaded.step == 1 and equal(loaded.arrays, arrays(comm.rank, 1)))
    assert agree(len(loaded.passed_over) == 1)


def test_other_numbers_of_ranks(comm, agree, folder):
    """A set saved by all ranks loads on one, and a set saved by one loads on all, by rows and by boxes."""
    whole = data(37 * 11 * 5, "f4", 0).reshape(37, 11, 5)
    begin, end = comm.rank * 37 // comm.size, (comm.rank + 1) * 37 // comm.size
    Checkpointer(folder / "all", comm).save({"u": Part(whole[begin:end], whole.shape, (begin, 0, 0))}, 1)
    alone = comm.Split(comm.rank, 0)
    if comm.rank == 0:
        Checkpointer(folder / "one", alone).save({"u": Part(whole, whole.shape, (0, 0, 0))}, 1)
    comm.Barrier()
    assert agree(bits(Checkpointer(folder / "all", alone).load().arrays["u"]) == bits(whole))
    ours = Checkpointer(folder / "one", comm)
    if comm.size > 1:
        assert agree(bits(ours.load().arrays["u"]) == bits(whole[begin:end]))
    for path in ("one", "all"):
        box = ours if path == "one" else Checkpointer(folder / path, comm)
        found = box.load({"u": ((comm.rank, 2, 1), (20, 7, 3))}).arrays["u"]
        assert agree(bits(found) == bits(whole[comm.rank : comm.rank + 20, 2:9, 1:4]))
        with pytest.raises((ValueError, RuntimeError), match="is not within"):
            box.load({"u": ((30, 0, 0), (20, 7, 3))})
        with pytest.raises((ValueError, RuntimeError), match="no array 'v'"):
            box.load({"v": ((0,), (1,))})
    alone.Free()


def test_errors(comm, agree, folder):
    """An error of one rank in a save is raised on all ranks, and its set does not exist."""
    ours = Checkpointer(folder, comm)
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        ours.load()
    ours.save({"u": np.ones(5)}, 1)
    with pytest.raises((ValueError, RuntimeError), match="step = "):
        ours.save({"u": np.ones(5)}, -1 if comm.rank == comm.size - 1 else 2)
    bad = {"u": np.array([object()])} if comm.rank == comm.size - 1 else {"u": np.zeros(5)}
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        ours.save(bad, 3)
    assert agree(ours.load().step == 1)
    with pytest.raises(ValueError, match="is not within"):
        Part(np.ones((3, 4)), (3, 5), (0, 2))
    with pytest.raises(ValueError, match="keep = 0"):
        Checkpointer(folder, comm, keep=0)


def test_errors_of_one_rank(comm, agree, folder):
    """An error of one rank in the constructor, in a load or in its folder is raised on all ranks."""
    last = comm.rank == comm.size - 1
    with pytest.raises((ValueError, RuntimeError), match="whole_every = 0"):
        Checkpointer(folder, comm, whole_every=0 if last else 1)
    ours = Checkpointer(folder / "sets", comm)
    ours.save({"u": Part(np.ones(5), (5,), (0,))}, 1)
    with pytest.raises((TypeError, RuntimeError), match="unpack"):
        ours.load({"u": 5} if last else None)
    if comm.rank == 0:
        (folder / "file").write_text("no folder")
    comm.Barrier()
    with pytest.raises((NotADirectoryError, RuntimeError), match="Not a directory"):
        checkpoint.load(folder / "file", comm=comm)
    assert agree(ours.load().step == 1)


@pytest.mark.parametrize("codec", ["lossless", "delta"])
def test_flushes_that_fail(comm, agree, folder, monkeypatch, codec):
    """After failed flushes of one rank the program continues, and earlier sets stay in the shared folder."""
    write, shared = sets.write, folder / "shared"
    ours = Checkpointer(shared, comm, local=folder / f"local-{comm.rank}", codec=codec, whole_every=2)
    errors = []

    def written(into, name, data):
        path = Path(into)
        if path.parent == shared and 3 <= int(path.name.split("-")[1]) < 10 and comm.rank == comm.size - 1:
            raise OSError(errno.ENOSPC, "No space left on device", into)
        write(into, name, data)

    monkeypatch.setattr(sets, "write", written)
    for step in range(1, 13):
        if step == 6 and comm.rank == comm.size - 1:
            with pytest.raises(OSError, match="No space"):
                ours.wait()
        try:
            ours.save(arrays(comm.rank, step), step)
            saved = step
        except (OSError, RuntimeError) as error:
            errors.append(str(error))
        if step == 9:
            comm.Barrier()
            assert agree(ours.load().step == saved > 3)
            warned = pytest.warns(RuntimeWarning, match="no sound file of rank")
            with warned if comm.size > 1 else nullcontext():  # a single rank has left nothing there
                found = Checkpointer(shared, comm).load()
            assert agree(found.step == 2 and equal(found.arrays, arrays(comm.rank, 2)))
    ours.close()
    assert agree(saved == 12 and len(errors) == 4 and all("No space" in error for error in errors))
    found = Checkpointer(shared, comm).load()
    assert agree(found.step == 12 and equal(found.arrays, arrays(comm.rank, 12)))


def test_a_full_disk(comm, agree, folder):
    """One rank's disk is full: its set is discarded, the previous one loads, and later saves work again."""
    ours = Checkpointer(folder, comm)
    ours.save(arrays(comm.rank, 1), 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if comm.rank == comm.size - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises((OSError, RuntimeError), match="File too large"):
            ours.save(arrays(comm.rank, 2), 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    comm.Barrier()
    assert agree({path.parent.name[:17] for path in everything(folder)} == {"step-000000000001"})
    assert agree(equal(ours.load().arrays, arrays(comm.rank, 1)))
    ours.save(arrays(comm.rank, 2), 2)
    assert agree(equal(ours.load().arrays, arrays(comm.rank, 2)))


def test_a_full_disk_when_a_set_is_loaded(comm, agree, folder, monkeypatch):
    """If a full disk prevents the rebuild of a lost file, the load warns and returns the values."""
    if comm.size == 1:
        pytest.skip("a single rank has no partner")
    ours = Checkpointer(folder, comm)
    ours.save(arrays(comm.rank, 1), 1)
    comm.Barrier()
    if comm.rank == 0:
        (next(folder.glob("step-*")) / "rank-1.cck").unlink()
    comm.Barrier()

    def full(into, name, data):
        raise OSError(errno.ENOSPC, "No space left on device", into)

    monkeypatch.setattr(sets, "write", full)
    with pytest.warns(RuntimeWarning, match=r"rank 1 could not rebuild .* No space left"):
        loaded = ours.load()
    assert agree(equal(loaded.arrays, arrays(comm.rank, 1)) and not loaded.rebuilt)


def test_two_jobs(comm, agree, folder, monkeypatch):
    """Two jobs in one folder neither load nor remove each other's sets."""
    if comm.size == 1:
        pytest.skip("a job of its own needs another rank")
    alone = comm.Split(comm.rank, 0)
    ours = Checkpointer(folder, alone, keep=1)
    if comm.rank == 0:
        ours.save(arrays(0, 5), 5)
    comm.Barrier()
    if comm.rank == 1:
        with pytest.raises(FileExistsError, match=r"step-000000000005-.* neither saved nor loaded"):
            ours.save(arrays(1, 1000), 1000)
        # Both jobs have looked before either of them writes.
        with monkeypatch.context() as patched:
            patched.setattr(ours, "_refuse_others", lambda: None)
            ours.save(arrays(1, 1000), 1000)
    comm.Barrier()
    if comm.rank == 0:
        with pytest.raises(FileExistsError, match="step-000000001000"):
            ours.save(arrays(0, 6), 6)
    if comm.rank < 2:
        with pytest.raises(ValueError, match=r"of 2 jobs, step-0+5-.* and step-0+1000-"):
            ours.load()
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(next(folder.glob("step-000000001000-*")))
        assert equal(ours.load().arrays, arrays(0, 5))
    alone.Free()


def test_a_job_that_is_started_again(comm, agree, folder, monkeypatch):
    """A restarted job loads the last set, continues after it, and removes the sets of the job before."""
    for run in range(3):
        monkeypatch.setattr(module, "_known", set())
        monkeypatch.setattr(module, "_jobs", {})
        ours = Checkpointer(folder, comm, keep=1)
        if run:
            with pytest.raises((FileExistsError, RuntimeError), match="neither saved nor loaded"):
                ours.save(arrays(comm.rank, 0), 0)
            assert agree(ours.load().step == 2 * run - 1)
        for step in (2 * run, 2 * run + 1):
            ours.save(arrays(comm.rank, step), step)
        ours.close()
    comm.Barrier()
    assert agree({path.parent.name[:17] for path in everything(folder)} == {"step-000000000005"})


def test_functions(comm, agree, folder):
    report = checkpoint.save(folder, {"u": np.arange(10.0)}, 4, comm=comm, codec="zfp:rate=32")
    checkpoint.wait(folder)
    assert agree(report.step == 4 and report.nbytes > 0)
    assert agree(np.allclose(checkpoint.load(folder).arrays["u"], np.arange(10.0), atol=1e-3))
    for _ in range(3):  # each call makes its own reader
        with pytest.raises(FileNotFoundError):
            checkpoint.load(folder / "none", comm=comm)
