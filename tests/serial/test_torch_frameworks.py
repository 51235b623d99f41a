"""Frameworks train with the backend compcoll, and with compression beside gloo, as with gloo alone."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_launch import marked  # noqa: F401

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Message of torch 2.13 if a gloo thread has an operation in flight when Python exits, after all training.
GLOO_ABORTS = "terminate called without an active exception"
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"

#: A model with data, and a report of its losses by rank 0.
COMMON = """
import json
import sys
import torch
import torch.distributed as dist
import compcoll.torch

torch.set_num_threads(1)
torch.manual_seed(0)
*backends, path = sys.argv[1:]
backend = backends[0]
net = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.ReLU(), torch.nn.Linear(200, 1))
x = torch.randn(64, 200)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True) / 10)
loss_of = torch.nn.functional.mse_loss

def say(losses):
    with open(path, "a") as file:
        found = losses, dist.get_backend(), dist.get_world_size(), str(compcoll.torch.report())
        file.write(json.dumps(found) + "\\n")
"""

LIGHTNING = """
import copy
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.losses = copy.deepcopy(net), []

    def training_step(self, batch, number):
        loss = loss_of(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

for backend in backends:
    model = Model()
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=backend), max_epochs=2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
    if trainer.is_global_zero:
        say(model.losses)
    if backend != backends[-1]:
        dist.destroy_process_group()
"""

ACCELERATE = """
from accelerate import Accelerator

dist.init_process_group(backend)  # on the CPU, Accelerate would make one of gloo
accelerator = Accelerator(cpu=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(data, batch_size=8)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
losses = []
for _ in range(2):
    for x, y in loader:
        loss = loss_of(net(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach()).mean().item())
if accelerator.is_main_process:
    say(losses)
accelerator.end_training()
"""

DEEPSPEED = """
import deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiling it would take a minute
deepspeed.init_distributed(backend)
config = {
    "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
}
engine, _, loader, _ = deepspeed.initialize(
    model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.05), training_data=data, config=config
)
losses = []
for _ in range(2):
    for x, y in loader:
        loss = loss_of(engine(x), y)
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / 2)
if dist.get_rank() == 0:
    say(losses)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("package", "launcher", "program"),
    [
        ("pytorch_lightning", (), LIGHTNING),
        ("accelerate", TORCHRUN, ACCELERATE),
        ("deepspeed", TORCHRUN, DEEPSPEED),
    ],
    ids=["lightning", "accelerate", "deepspeed"],
)
def test_the_losses_of_gloo(tmp_path, marked, package, launcher, program):  # noqa: F811
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (tmp_path / "train.py").write_text(COMMON + program)
    path, backends = tmp_path / "said", ("gloo", "compcoll")
    # Accelerate and DeepSpeed have one backend in each process.
    for each in [backends] if package == "pytorch_lightning" else [[backend] for backend in backends]:
        done = subprocess.run(
            [sys.executable, *launcher, "train.py", *each, path],
            cwd=tmp_path,
            timeout=140,
            env={**marked, "COMPCOLL_CODEC": "lossless"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 or (each == ["gloo"] and GLOO_ABORTS in done.stderr), done.stderr
    found = dict(zip(backends, map(json.loads, path.read_text().splitlines()), strict=True))
    theirs, ours = found["gloo"][0], found["compcoll"][0]
    assert found["compcoll"][1:3] == ["compcoll", 2]
    assert re.search(r"Allreduce +lossless", found["compcoll"][3])
    assert len(set(theirs)) > 6
    assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(
    ("package", "launcher"),
    [("pytorch_lightning", ()), ("accelerate", TORCHRUN), ("deepspeed", TORCHRUN)],
    ids=["lightning", "accelerate", "deepspeed"],
)
def test_compression_beside_gloo(tmp_path, marked, package, launcher):  # noqa: F811
    """An example with a codec has nearly the losses of one without, and sends 3 to 4 times fewer bytes."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    example, texts = EXAMPLES / f"with_{package.removeprefix('pytorch_')}.py", []
    both = tmp_path / "both.py"
    both.write_text(BOTH.format(folder=str(EXAMPLES), module=example.stem))
    commands = [[both]] if package == "pytorch_lightning" else [[example, "none"], [example, "bfp:bits=8"]]
    for command in commands:
        done = subprocess.run(
            [sys.executable, *launcher, *command],
            cwd=tmp_path,
            timeout=140,
            env=marked,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 or GLOO_ABORTS in done.stderr, done.stderr
        texts.append(done.stdout)
    losses = [float(x) for x in re.findall(r"loss (\S+)", "".join(texts))]
    assert len(losses) == 8
    assert losses[4:] == pytest.approx(losses[:4], rel=0.02)
    assert 3 < float(re.search(r"(\S+) times fewer bytes", texts[-1])[1]) < 4


#: An example without a codec, and with one.
BOTH = """
import sys
sys.path.append({folder!r})
import {module}
{module}.main("none")
{module}.main("bfp:bits=8")
"""

CALLBACK = """
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from compcoll.torch import CompressedReduceScatter
from compcoll.torch.lightning import CompressGradients

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(64, 64)

    def configure_model(self):
        if not isinstance(self.trainer.strategy, DDPStrategy):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, number):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

def trained(strategy, epochs, checkpoint=None):
    callback = CompressGradients({0: "bfp:bits=8", 3: "bfp:bits=4"})
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=epochs, callbacks=[callback],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(32, 64), batch_size=8), ckpt_path=checkpoint)
    return trainer, callback

trainer, first = trained("ddp", 1)
trainer.save_checkpoint("one.ckpt")
trainer, second = trained("ddp", 2, "one.ckpt")
if trainer.is_global_zero:
    print("steps", first.compressions[0].step, second.compressions[0].step, second.compressions[0].codec.spec)
trainer, callback = trained(ModelParallelStrategy(2, 1), 1)
if trainer.is_global_zero:
    (only,) = callback.compressions
    print("is for FSDP2:", isinstance(only, CompressedReduceScatter), only.wire_nbytes > 0)
"""


def test_a_callback_goes_on_from_its_checkpoint_and_takes_fsdp2(tmp_path, marked):  # noqa: F811
    pytest.importorskip("pytorch_lightning")
    (tmp_path / "train.py").write_text(CALLBACK)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, timeout=140, env=marked, capture_output=True, text=True
    )
    assert done.returncode == 0 or GLOO_ABORTS in done.stderr, done.stderr
    assert "steps 2 4 bfp:bits=4" in done.stdout
    assert "is for FSDP2: True True" in done.stdout
