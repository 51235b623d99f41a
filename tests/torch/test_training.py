"""The training examples: a model on several ranks learns as it does on one rank."""

from functools import cache

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from benchmarks.training.corpus import corpus
from benchmarks.training.model import GPT, Shape, cross_entropy

pytestmark = pytest.mark.filterwarnings("default")
SHAPE, RATE, STEPS, BATCH = Shape(4, 32, 4, 16), 1e-2, 6, 12


def batches():
    return [corpus().batch(np.random.default_rng(i), BATCH, SHAPE.length) for i in range(STEPS)]


@cache
def alone() -> list[float]:
    """Losses on held-out bytes of a model in this process alone."""
    torch.manual_seed(0)
    model = GPT(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            seen, following = corpus().held_out(12, SHAPE.length)
            losses.append(float(cross_entropy(model(seen), following)))
    return losses


def made(name: str, dims: tuple[int, int, int]):
    from benchmarks.training.strategies import make  # warns when it is imported

    torch.manual_seed(0)
    return make(name, SHAPE, RATE, dims)


def together(way) -> list[float]:
    part, parts = way.shard
    losses = []
    for x, y in batches():
        way.step(x[part::parts], y[part::parts])
        losses.append(way.loss(*corpus().held_out(12, SHAPE.length)))
    return losses


@pytest.mark.parametrize("name", ["fsdp", "dp", "tp", "pp"])
def test_as_on_one_rank(world, name):
    size = dist.get_world_size()
    if name in ("tp", "pp") and SHAPE.heads % size:
        pytest.skip(f"{size} ranks do not divide {SHAPE.heads} heads")
    dp, tp, pp = (size if name == dim else 1 for dim in ("dp", "tp", "pp"))
    way = made("hybrid" if name in ("dp", "tp", "pp") else name, (dp, tp, pp))
    losses, expected = together(way), alone()
    assert expected[-1] < expected[0]
    assert losses == pytest.approx(expected, rel=1e-3)


def test_experts_learn(world):
    losses = together(made("moe", (1, 1, 1)))
    assert losses[-1] < losses[0]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, losses)
    assert all(theirs == pytest.approx(losses, rel=1e-5) for theirs in everyone)


def test_sparse_gradients_of_two_embeddings(world, agree):
    """DDP averages two sparse buckets that are reduced at once."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Embedding(50, 8, sparse=True)
            self.second = nn.Embedding(50, 8, sparse=True)
            self.head = nn.Linear(8, 1)

        def forward(self, i):
            return self.head(self.first(i) * self.second(i))

    def words(step, rank):
        return torch.randint(50, (6,), generator=torch.Generator().manual_seed(10 * step + rank))

    size = dist.get_world_size()
    net, whole = DDP(Model()), Model()
    ours, theirs = (torch.optim.SGD(model.parameters(), 0.5) for model in (net, whole))
    for step in range(3):
        ours.zero_grad()
        theirs.zero_grad()
        net(words(step, dist.get_rank())).sum().backward()
        sum(whole(words(step, rank)).sum() / size for rank in range(size)).backward()
        assert net.module.first.weight.grad.is_sparse
        ours.step()
        theirs.step()
    pairs = zip(net.module.parameters(), whole.parameters(), strict=True)
    assert agree(all(torch.allclose(a, b, atol=1e-6) for a, b in pairs))
