"""FSDP over this backend, with torch's base class for its tests, and its models."""

# torch's assertEqual compares tensors.
# ruff: noqa: PT009

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from ranks import FSDPRanks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullStateDictConfig,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.testing._internal.common_fsdp import (
    DEVICEInitMode,
    FSDPInitMode,
    MLPStack,
    NestedWrappedModule,
    TransformerWithSharedParams,
    check_sharded_parity,
    get_full_params,
)

pytestmark = pytest.mark.filterwarnings("default")

#: FSDP uses an accelerator unless it is given another device.
ON_CPU = {"device_id": torch.device("cpu")}
STRATEGIES = [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD]


class TestFSDP1(FSDPRanks):
    """FSDP1 trains like DDP: torch's `_test_fsdp_parity` compares losses and parameters."""

    def parity(self, model, **more):
        device = more.pop("device", DEVICEInitMode.DEVICE_BEFORE)
        self._test_fsdp_parity(model, FSDPInitMode.RECURSIVE, device, num_iters=2, **ON_CPU, **more)

    def model(self, cls, mode, settings=ON_CPU):
        return cls.init(self.process_group, mode, DEVICEInitMode.DEVICE_BEFORE, settings, deterministic=True)

    def test_nested_modules(self):
        for strategy in STRATEGIES:
            self.parity(NestedWrappedModule, sharding_strategy=strategy)

    def test_transformer_with_shared_parameters(self):
        # DDP takes the values that normalise batches from rank 0.
        self.parity(
            TransformerWithSharedParams, sharding_strategy=STRATEGIES[0], init_kwargs={"add_bn": False}
        )

    def test_prefetching(self):
        for prefetch in (BackwardPrefetch.BACKWARD_PRE, BackwardPrefetch.BACKWARD_POST):
            self.parity(NestedWrappedModule, backward_prefetch=prefetch, forward_prefetch=True)

    def test_hybrid_sharding(self):
        rows = 2 if self.world_size % 4 == 0 else 1  # a shard of one rank would not be sharding
        mesh = init_device_mesh("cpu", (rows, self.world_size // rows), mesh_dim_names=("replicate", "shard"))
        for strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
            plain, given = (self.model(NestedWrappedModule, FSDPInitMode.NO_FSDP) for _ in range(2))
            ddp = torch.nn.parallel.DistributedDataParallel(plain)
            sharded = FSDP(given, device_mesh=mesh, sharding_strategy=strategy, **ON_CPU)
            want, got = (self._train_for_several_steps(net, 3, autocast=False) for net in (ddp, sharded))
            self.assertEqual(got, want)
            self.assertEqual(get_full_params(sharded), list(ddp.parameters()))

    def test_state_dict_round_trip(self):
        model = self.model(TransformerWithSharedParams, FSDPInitMode.RECURSIVE)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
            kept = {name: value.clone() for name, value in model.state_dict().items()}
            with FSDP.summon_full_params(model), torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            model.load_state_dict(kept)
            for name, value in model.state_dict().items():
                self.assertEqual(value, kept[name])

    def test_gradients_clipped_together(self):
        for norm in (2.0, 1.0, float("inf")):
            plain = self.model(NestedWrappedModule, FSDPInitMode.NO_FSDP)
            sharded = FSDP(self.model(NestedWrappedModule, FSDPInitMode.RECURSIVE), **ON_CPU)
            ddp = torch.nn.parallel.DistributedDataParallel(plain)
            for net in (ddp, sharded):
                net(*plain.get_input("cpu")).sum().backward()
            want = torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.5, norm)
            self.assertEqual(sharded.clip_grad_norm_(0.5, norm), want)


class TestFSDP2(FSDPRanks):
    """FSDP2 trains like a replicated model: torch's `check_sharded_parity` compares shards."""

    def compare(self, model, sharded, x, steps=3, prefixes=()):
        optimizers = [torch.optim.SGD(net.parameters(), lr=1e-2) for net in (model, sharded)]
        for step in range(steps):
            losses = []
            for net, optimizer in zip((model, sharded), optimizers, strict=True):
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                loss = net(x).sum()
                losses.append(loss.detach())
                loss.backward()
                if net is model:
                    for parameter in model.parameters():
                        dist.all_reduce(parameter.grad)
                        parameter.grad.div_(self.world_size)
                optimizer.step()
            self.assertEqual(losses[0], losses[1])
            check_sharded_parity(self, model, sharded, prefixes)

    def pair(self, make, wrap):
        torch.manual_seed(42)
        model = make()
        sharded = copy.deepcopy(model)
        for module in sharded if isinstance(sharded, torch.nn.Sequential) else ():
            wrap(module)
        return model, wrap(sharded)

    def batch(self, *shape):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(100 + self.rank))

    def test_stack(self):
        for again in (True, False):
            mesh = init_device_mesh("cpu", (self.world_size,))
            wrap = functools.partial(fully_shard, mesh=mesh, reshard_after_forward=again)
            model, sharded = self.pair(lambda: MLPStack(11), wrap)
            self.compare(model, sharded, self.batch(5, 11))

    def test_replicated_and_sharded(self):
        rows = 2 if self.world_size % 2 == 0 else 1
        mesh = init_device_mesh("cpu", (rows, self.world_size // rows), mesh_dim_names=("replicate", "shard"))
        model, sharded = self.pair(lambda: MLPStack(8), functools.partial(fully_shard, mesh=mesh))
        self.compare(model, sharded, self.batch(4, 8))

    def test_accumulated_gradients(self):
        mesh = init_device_mesh("cpu", (self.world_size,))
        model, sharded = self.pair(lambda: MLPStack(8), functools.partial(fully_shard, mesh=mesh))
        for micro in range(3):
            last = micro == 2
            sharded.set_requires_gradient_sync(last)
            x = self.batch(4, 8) * (micro + 1)
            model(x).sum().backward()
            sharded(x).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(self.world_size)
        check_sharded_parity(self, model, sharded)

    def test_mixed_precision(self):
        mesh = init_device_mesh("cpu", (self.world_size,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model, sharded = self.pair(
            lambda: MLPStack(8), functools.partial(fully_shard, mesh=mesh, mp_policy=policy)
        )
        x, half = self.batch(4, 8), copy.deepcopy(model).to(torch.bfloat16)
        sharded(x).sum().backward()
        half(x.to(torch.bfloat16)).sum().backward()
        for parameter, part in zip(half.parameters(), sharded.parameters(), strict=True):
            want = parameter.grad.float()
            dist.all_reduce(want)
            self.assertEqual(part.grad.full_tensor(), want / self.world_size)

    def test_tensor_parallel_as_well(self):
        rows = 2 if self.world_size % 2 == 0 else 1
        mesh = init_device_mesh("cpu", (rows, self.world_size // rows), mesh_dim_names=("dp", "tp"))
        torch.manual_seed(42)
        model = MLPStack(4 * self.world_size)
        sharded = copy.deepcopy(model).parallelize(mesh["tp"], mesh["dp"], use_activation_checkpointing=False)
        given = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
        x = torch.randn(4, 4 * self.world_size, generator=given)
        self.assertEqual(sharded(x), model(x))
        sharded(x).sum().backward()
        model(x).sum().backward()
        for parameter, part in zip(model.parameters(), sharded.parameters(), strict=True):
            dist.all_reduce(parameter.grad)
            self.assertEqual(part.grad.full_tensor(), parameter.grad / self.world_size)
