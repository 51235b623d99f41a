"""DTensor over this backend, with torch's base class for its tests."""

# torch's assertEqual compares tensors.
# ruff: noqa: PT009

import itertools

import pytest
import torch
import torch.nn.functional as F
from ranks import WORLD, DTensorRanks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed._tensor.common_dtensor import (
    MLPModule,
    ModelArgs,
    Transformer,
    with_comms,
)

pytestmark = pytest.mark.filterwarnings("default")

SHAPES = [(2 * WORLD.size, 3 * WORLD.size), (2 * WORLD.size + 1, 3), (1, 5), (61, 97)]
TYPES = [torch.float32, torch.bfloat16, torch.int64]


def whole(shape, dtype, seed=0):
    """Tensor of small whole numbers, equal on all ranks."""
    given = torch.Generator().manual_seed(seed)
    return torch.randint(0, 5, shape, generator=given).to(dtype)


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class TestDTensor(DTensorRanks):
    def mesh_2d(self):
        rows = 2 if self.world_size % 2 == 0 else 1
        return init_device_mesh("cpu", (rows, self.world_size // rows), mesh_dim_names=("dp", "tp"))

    @with_comms
    def test_redistribute_between_all_placements(self):
        mesh = self.build_device_mesh()
        places = [Replicate(), Shard(0), Shard(1), Shard(-1)]
        for shape, dtype in itertools.product(SHAPES, TYPES):
            given = whole(shape, dtype)
            for source, target in itertools.product(places, places):
                got = distribute_tensor(given, mesh, [source]).redistribute(mesh, [target])
                self.assertEqual(got.placements, (target if target != Shard(-1) else Shard(1),))
                self.assertEqual(got.full_tensor(), given)

    @with_comms
    def test_redistribute_partial_sums(self):
        mesh = self.build_device_mesh()
        for shape, target in itertools.product(SHAPES, [Replicate(), Shard(0), Shard(1)]):
            for op, want in (
                ("sum", sum(whole(shape, torch.float32, r) for r in range(self.world_size))),
                (
                    "max",
                    torch.stack([whole(shape, torch.float32, r) for r in range(self.world_size)]).amax(0),
                ),
            ):
                mine = whole(shape, torch.float32, self.rank)
                got = DTensor.from_local(mine, mesh, [Partial(op)]).redistribute(mesh, [target])
                self.assertEqual(got.full_tensor(), want)

    @with_comms
    def test_redistribute_on_two_dimensions(self):
        mesh, places = self.mesh_2d(), [Replicate(), Shard(0), Shard(1)]
        pairs = [
            pair
            for pair in itertools.product(places, places)
            if pair not in ((Shard(0),) * 2, (Shard(1),) * 2)
        ]
        given = whole((4 * self.world_size, 2 * self.world_size + 1), torch.float32)
        for source, target in itertools.product(pairs, pairs):
            got = distribute_tensor(given, mesh, source).redistribute(mesh, target)
            self.assertEqual(got.full_tensor(), given)

    @with_comms
    def test_gradient_of_a_redistribution(self):
        mesh = self.build_device_mesh()
        for source, target in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):
            given = distribute_tensor(whole((7, 5), torch.float32), mesh, [source]).requires_grad_()
            (given.redistribute(mesh, [target]) ** 2).sum().backward()
            self.assertEqual(given.grad.full_tensor(), 2 * whole((7, 5), torch.float32))

    @with_comms
    def test_operations_on_all_shardings(self):
        mesh, n = self.build_device_mesh(), 2 * self.world_size
        torch.manual_seed(0)
        a, b, c = torch.randn(n, n), torch.randn(n, n), torch.randn(2, n, n)
        self._test_op(mesh, torch.add, a, b)
        self._test_op(mesh, torch.mul, a, b)
        self._test_op(mesh, torch.mm, a, b)
        self._test_op(mesh, torch.bmm, c, c)
        self._test_op(mesh, torch.sum, a)
        self._test_op(mesh, torch.mean, c, dim=1)
        self._test_op(mesh, torch.amax, a, dim=0)
        self._test_op(mesh, F.softmax, a, dim=1)
        self._test_op(mesh, F.layer_norm, a, [n])
        self._test_op(mesh, lambda x, y: torch.cat([x, y], 0), a, b)
        self._test_op(mesh, lambda x: x.transpose(0, 1).reshape(-1), a)
        self._test_op(mesh, F.linear, c, a, b[0])
        self._test_op(mesh, lambda x: torch.cumsum(x, 1), a)

    @with_comms
    def test_tensor_parallel_layers(self):
        mesh = self.build_device_mesh()
        for sequence in (False, True):
            model, parallel = MLPModule("cpu"), MLPModule("cpu")
            layout = Shard(0) if sequence else Replicate()
            plan = {
                "net1": ColwiseParallel(input_layouts=layout, use_local_output=False),
                "net2": RowwiseParallel(output_layouts=layout),
            }
            parallel = parallelize_module(parallel, mesh, plan)
            torch.manual_seed(1)
            x = torch.randn(3 * self.world_size, 10)
            model(x).square().sum().backward()
            mine = x.tensor_split(self.world_size)[self.rank] if sequence else x
            parallel(mine).square().sum().backward()
            for a, b in zip(model.parameters(), parallel.parameters(), strict=True):
                self.assertEqual(b.full_tensor(), a)
                self.assertEqual(b.grad.full_tensor(), a.grad)

    @with_comms
    def test_transformer(self):
        mesh = self.build_device_mesh()
        for sequence in (False, True):
            args = ModelArgs(
                dropout_p=0.0,
                n_heads=2 * self.world_size,
                dim=8 * self.world_size,
                max_seq_len=4 * self.world_size,
                vocab_size=4 * self.world_size,
            )
            torch.manual_seed(5)
            model = Transformer(args)
            torch.manual_seed(5)
            parallel = Transformer.parallelize(Transformer(args), mesh, sequence, local_output_for_attn=True)
            tokens = whole((2, args.max_seq_len), torch.int64)
            optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, parallel)]
            for _ in range(2):
                losses = []
                for net, optimizer in zip((model, parallel), optimizers, strict=True):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.detach())
                self.assertEqual(full(losses[1]), losses[0])
            want = dict(model.named_parameters())
            for name, parameter in parallel.named_parameters():
                self.assertEqual(full(parameter), want[name], rtol=1e-4, atol=1e-5)

    @with_comms
    def test_loss_of_sharded_logits(self):
        mesh, n = self.build_device_mesh(), 4 * self.world_size
        torch.manual_seed(0)
        logits, target = torch.randn(6, n), torch.randint(n, (6,))
        whole_logits = logits.clone().requires_grad_()
        want = F.cross_entropy(whole_logits, target)
        want.backward()
        parts = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
        with loss_parallel():
            got = F.cross_entropy(parts, target)
            got.backward()
        self.assertEqual(got.full_tensor(), want)
        self.assertEqual(parts.grad.full_tensor(), whole_logits.grad)

    @with_comms
    def test_sequence_parallel_norm(self):
        mesh, n = self.build_device_mesh(), 5 * self.world_size
        torch.manual_seed(0)
        norm, x = torch.nn.LayerNorm(8), torch.randn(2, n, 8)
        want = norm(x)
        parallel = parallelize_module(norm, mesh, SequenceParallel(sequence_dim=1))
        self.assertEqual(parallel(distribute_tensor(x, mesh, [Shard(1)])).full_tensor(), want)
