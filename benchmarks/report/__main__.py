"""``make report``: run the benchmarks in the lab, and write their results into one document.

Every experiment is a list of commands. Their measurements are written to benchmarks/results/, and from there
to benchmarks/REPORT.md and its figures; ``--render`` writes these again without measuring.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import click

from ..osu.operations import COLLECTIVES, OPERATIONS
from ..osu.output import as_json
from . import figures, tables

__all__ = ["main"]

HERE = Path(__file__).parents[1]
RESULTS = HERE / "results"
OPS = ("alltoall", "allgather", "bcast", "reduce_scatter", "allreduce")
#: Codecs that are compared in most sections.
CODECS = "bfp:bits=7,zfp:rate=8,int8,lossless"
WEIGHTS = HERE.parent.parent / "shared" / "data" / "transformer_weights.bf16"
SHARED = (
    "Both hosts have all of the machine's cores, so that a rank finds idle ones, as on most nodes. Compare "
    "speed-ups of this section with each other, never with those of hosts that have cores of their own."
)
#: Simulated GB/s at which one core encodes, decodes and copies.
SPEEDS = "--encode 2.76 --decode 2.64 --memory 15.75"


@dataclass(frozen=True)
class Experiment:
    """One section of the report.

    Attributes
    ----------
    name, title, text : str
        Name of its result file, its heading, and a description.
    commands : list of list of str
        Arguments of ``python -m``; ``--json FILE`` is appended.
    figure : callable
        Draws the runs into a file.
    rows : callable
        Returns the runs as lines of tables.
    """

    name: str
    title: str
    text: str
    commands: list[list[str]]
    figure: Callable[[list[dict], Path], None] | None = None
    rows: Callable[[list[dict]], list[str]] = tables.speedups

    @property
    def stem(self) -> str:
        """Name of the files in benchmarks/results/, without ending."""
        return self.name if self.name == "scaling" else f"lab-{self.name}"


def lab(
    hosts: int, gbit: float, program: str, options: str, ranks: int = 1, shared_cores: bool = False
) -> list[str]:
    """Arguments that run a program in the lab: hosts, link rate, ranks per host, own or shared cores."""
    shape = ["benchmarks.netlab", "--hosts", str(hosts), "--gbit", f"{gbit:g}"]
    shape += ["--ppn", str(ranks)] if ranks > 1 else []
    shape += ["--shared-cores"] if shared_cores else []
    module = ["benchmarks.osu", program] if program in OPERATIONS else [f"benchmarks.{program}"]
    return [*shape, "--", "python", "-m", *module, *options.split()]


def experiments() -> Iterator[Experiment]:
    """The report's sections, in order."""
    codecs = f"--codec {CODECS} --iters 5"
    gloo = "--gloo" if find_spec("torch") else ""
    yield Experiment(
        "two-hosts",
        "Two hosts, 32 MiB a message",
        "Smooth float32 with noise, plain MPI in the same run, and torch.distributed's gloo where torch is "
        "installed. The ratio is what the bytes allow.",
        [lab(2, gbit, op, f"{codecs} {gloo} --sizes 32M") for gbit in (1, 2.5, 5, 10) for op in OPS],
        figures.speedups,
    )
    in_a_row = f"--codec {CODECS} --min-nbytes 1024 --iters 5 --max-seconds 4"
    for name, shared in (("small", False), ("small-shared", True)):
        yield Experiment(
            name,
            f"Two hosts at 1 Gb/s{', shared cores' * shared}, small messages",
            "Many calls in a row without a barrier between them; what a message costs besides its bytes "
            "decides. " + (SHARED if shared else "Each host has one half of the machine's cores."),
            [
                lab(2, 1, op, f"{in_a_row} --sizes {sizes} --in-a-row {calls}", shared_cores=shared)
                for op in OPS
                for sizes, calls in (("4K,8K,16K,64K", 400), ("256K,1M", 20))
            ],
        )
    yield Experiment(
        "four-hosts",
        "Four hosts at 1 Gb/s, 8 MiB a message",
        "All collectives; four ranks share two cores.",
        [lab(4, 1, op, f"{codecs} --sizes 8M") for op in (*OPS, "gather", "scatter")],
    )
    yield Experiment(
        "shared-ports",
        "Two hosts of eight ranks, 1 MiB a message",
        "Eight ranks take turns at their host's link. MPICH's pairwise exchanges send every pair's block "
        "through it, 64 of them each way; a ring sends 15, and that is most of what Reduce_scatter_block "
        "gains. The link is slow so that 16 ranks on two cores are not what is measured. Alltoall is left "
        "out: in one of two runs plain MPI stood still in it for nine minutes.",
        [
            lab(2, 0.1, op, "--codec raw,bfp:bits=7 --sizes 1M --iters 3 --warmup 1", ranks=8)
            for op in OPS[1:]
        ],
    )
    nodes = "--codec bfp:bits=7,lossless --iters 9 --in-a-row 5"
    short = "--codec bfp:bits=7 --sizes 32K --min-nbytes 1024 --in-a-row 100 --iters 9"
    yield Experiment(
        "nodes",
        "Two hosts of four ranks, two levels",
        "Ranks of a host share its memory, and its link; eight ranks share two cores. MPI polls no more than "
        "once before it yields. Alltoall of 32 KiB is 4 KiB for each peer, 100 calls in a row.",
        [
            lab(2, gbit, op, f"{nodes} --sizes {size}", ranks=4)
            for gbit in (1, 5)
            for op, size in (("allreduce", "8M"), *((op, "4M") for op in OPS if op != "allreduce"))
        ]
        + [lab(2, gbit, "alltoall", short, ranks=4) for gbit in (1, 5)],
    )
    auto = "--codec auto --control --sizes 64K,512K,8M --iters 100 --warmup 20 --max-seconds 5"
    yield Experiment(
        "auto",
        "Never slower: codec=auto in all collectives",
        "The default. Two ranks that share memory, and two hosts. auto compresses only between hosts, where "
        "trial calls show that it pays, and leaves floating-point sums to MPI. Speed-ups are of medians; +- "
        'is two standard errors. "mpi again" is plain MPI against itself in the same run: its distance '
        "from 1 is what the machine adds.",
        [
            lab(hosts, gbit, op, auto, ranks=2 // hosts)
            for hosts, gbit in ((1, 0), (2, 1), (2, 5), (2, 10))
            for op in COLLECTIVES
            if op != "barrier"
        ],
        figures.auto,
    )
    if WEIGHTS.exists():
        data = f"--data {os.path.relpath(WEIGHTS, HERE.parent)} --dtype bf16"
        yield Experiment(
            "weights",
            "Lossless bfloat16 weights, two hosts at 1 Gb/s",
            "A trained transformer's weights.",
            [lab(2, 1, op, f"--codec lossless --sizes 32M --iters 5 {data}") for op in OPS[1:3]],
        )
    if find_spec("torch"):
        yield Experiment(
            "training",
            "A training step between two hosts at 1 Gb/s",
            "A GPT of 20 M parameters over torch.distributed: gloo beside this backend, in turns. The model "
            "works on few bytes a step, so that what is sent decides; each way sends what torch asks for, in "
            "float32 or bfloat16.",
            [
                lab(2, 1, "training.step", f"--way {way} --dtype {dtype}")
                for way, dtype in (("fsdp", "f4"), ("fsdp", "bf16"), ("ddp", "f4"))
            ],
            None,
            tables.steps,
        )
    yield Experiment(
        "scaling",
        "Up to 4096 ranks, predicted",
        "The real algorithms in virtual time, the faster of one level and two, with eight and with 64 ranks "
        "a node (up to as many ranks have a node each), and measured speeds of codec and memory on one core. "
        "The first table's figure ends at an eighth. Alltoall, Allgather and Reduce_scatter_block with 1 MiB "
        "for or from each peer. Plain MPI's algorithms are MPICH's for long messages, which look at nodes in "
        "small Bcasts alone.",
        [
            f"benchmarks.scaling --networks 1gbe,10gbe,100gbe,ndr {SPEEDS} {nodes} {more}".split()
            for nodes in ("", "--ranks-per-node 64")
            for more in ("", "--operations Allreduce --buffer 1073741824")
        ],
        figures.scaling,
        tables.scaling,
    )


@click.command()
@click.option("--only", multiple=True, help="Measure this experiment alone; may be repeated.")
@click.option("--render", is_flag=True, help="Write the report from the results that are there.")
def main(only: tuple[str, ...], render: bool) -> None:
    """Measure in the lab and write benchmarks/REPORT.md."""
    chosen = list(experiments())
    unknown = set(only) - {experiment.name for experiment in chosen}
    if unknown:
        names = ", ".join(experiment.name for experiment in chosen)
        raise click.BadParameter(f"{unknown.pop()!r} is not one of {names}", param_hint="--only")
    RESULTS.mkdir(exist_ok=True)
    for experiment in chosen:
        if not render and (not only or experiment.name in only):
            measure(experiment)
    write(chosen)


def measure(experiment: Experiment) -> None:
    """Run the commands of an experiment and keep their results."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        for i, arguments in enumerate(experiment.commands, 1):
            command = ["python", "-m", *arguments]
            click.echo(f"[{experiment.name} {i}/{len(experiment.commands)}] {' '.join(command)}", err=True)
            done = subprocess.run([sys.executable, *command[1:], "--json", str(path)], cwd=HERE.parent)
            if done.returncode and not path.exists():
                raise click.ClickException(f"{' '.join(command)} ended with status {done.returncode}")
            runs.append({**json.loads(path.read_text()), "command": " ".join(command)})
            path.unlink()
    result = {"experiment": experiment.name, "date": date.today().isoformat(), "runs": runs}
    (RESULTS / f"{experiment.stem}.json").write_text(as_json(result))


def write(chosen: list[Experiment]) -> None:
    """Write the report from all available results."""
    text = [
        "# Measurements",
        "",
        "Written by `make report` from `benchmarks/results/`. The lab is a cluster of network namespaces on "
        "one machine (`benchmarks/netlab`): every host's link is shaped in both directions. Each host has "
        "cores of its own as far as they go, one on a machine with two, unless a section says that hosts "
        "share them. Times are medians over calls of the maximum over ranks.",
        "",
    ]
    for experiment in chosen:
        path = RESULTS / f"{experiment.stem}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        text += [f"## {experiment.title}", "", experiment.text, ""]
        text += experiment.rows(result["runs"])
        if experiment.figure:
            figure = RESULTS / f"{experiment.stem}.png"
            experiment.figure(result["runs"], figure)
            text += ["", f"![{experiment.title}](results/{figure.name})"]
        text += ["", *about(result), ""]
    (HERE / "REPORT.md").write_text("\n".join(text))
    click.echo(f"wrote {HERE / 'REPORT.md'}", err=True)


def about(result: dict) -> list[str]:
    """Machine, versions and commands."""
    first = result["runs"][0]
    machine, versions = first["machine"], first["versions"]
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    commit = first.get("commit")
    at = f", commit {commit[:12]}{'-dirty' * commit.endswith('-dirty')}" if commit else ""
    lines = [f"{machine['processor']}, {machine['cores']} cores; {names}; {result['date']}{at}.", ""]
    commands = "\n".join(run["command"] for run in result["runs"])
    return [*lines, "<details><summary>Commands</summary>", "", "```", commands, "```", "", "</details>"]


if __name__ == "__main__":
    main()
