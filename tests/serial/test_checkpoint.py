"""Checkpoints of ranks that are killed while they save."""

from checkpoint_kills import main

from compcoll.cli.launch import find_mpiexec


def test_killed_savers(monkeypatch):
    for key in ("PMI_RANK", "PMI_SIZE", "PMI_FD"):
        monkeypatch.delenv(key, raising=False)
    assert main(3, find_mpiexec()) > 0
