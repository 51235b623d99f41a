"""``compcoll bench``."""

from __future__ import annotations

import click

from compcoll.cli.launch import benchmark, is_launched, relaunch

OPERATIONS = (
    "allgather", "allreduce", "alltoall", "bcast", "bibw", "bw", "gather", "latency", "reduce_scatter",
    "scatter",
)  # fmt: skip


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="`compcoll bench OP -- --help` lists the options of the benchmarks.",
)
@click.option("--ranks", type=click.IntRange(1), default=2, show_default=True, help="Ranks to start.")
@click.argument("op", metavar="OP", type=click.Choice(OPERATIONS))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, ranks: int, op: str, options: tuple[str, ...]) -> None:
    """Time an operation on compressed messages beside plain MPI, as the OSU benchmarks do.

    OP is one of allgather, allreduce, alltoall, bcast, bibw, bw, gather, latency, reduce_scatter and
    scatter. Among its OPTIONS are --codec, --sizes, --iters, --data FILE, --dtype, --json and --plot.
    Outside of mpiexec the command starts its ranks itself.
    """
    if options and options[0] == "--":
        options = options[1:]
    if not is_launched() and "--help" not in options:
        ctx.exit(relaunch(ranks, ["bench", op, *options]))
    benchmark("main").main(getattr(benchmark(op), op), list(options))
