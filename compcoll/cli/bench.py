"""``compcoll bench``."""

from __future__ import annotations

from typing import Any

import click

from compcoll.cli.launch import is_launched, need_mpi, relaunch, same_ranks
from compcoll.cli.spec import ranks_option
from compcoll.core.names import did_you_mean

COLLECTIVES = (
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "alltoallw",
    "barrier",
    "bcast",
    "gather",
    "gatherv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "scatterv",
)
MESSAGES = ("bibw", "bw", "latency", "mbw_mr", "multi_lat", "request_reply", "sendrecv")
#: Nonblocking operations, which are timed beside a computation.
NONBLOCKING = tuple(f"i{op}" for op in COLLECTIVES if op != "barrier")
OPERATIONS = (*COLLECTIVES, *MESSAGES, *NONBLOCKING)


#: Options that ask for help.
HELP = {"-h", "--help"}


class Operation(click.Choice):
    """An operation's name."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(error.message.rstrip(".") + did_you_mean(value, OPERATIONS), param, ctx)


class Bench(click.Command):
    """A command that passes ``-h`` and ``--help`` on to an operation, if one is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(word.lower() in OPERATIONS for word in args):
            ctx.help_option_names = []
        return super().parse_args(ctx, args)


@click.command(
    cls=Bench,
    context_settings={"ignore_unknown_options": True},
    epilog="`compcoll bench OP --help` lists the options of the benchmarks.",
)
@ranks_option(1, None, "Ranks to start. [default: 2]")
@click.argument("op", metavar="OP", type=Operation(OPERATIONS, case_sensitive=False))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, ranks: int | None, op: str, options: tuple[str, ...]) -> None:
    """Time an operation on compressed messages beside plain MPI, as the OSU benchmarks do.

    OP is a collective, such as alltoall or reduce_scatter; bw, bibw, latency, sendrecv, request_reply, or
    mbw_mr and multi_lat on several pairs of ranks; or a nonblocking collective such as ialltoall, with the
    part of its time that a computation hides. OPTIONS include --codec, --sizes, --iters, --data FILE,
    --dtype, --pickle and --json. A size is that of the whole buffer that a rank passes; for alltoall, OSU
    counts one peer's block instead. Without mpiexec the command starts its ranks itself.
    """
    asks = not HELP.isdisjoint(options)
    if not is_launched() and not asks:
        ctx.exit(relaunch(ranks or 2, ["bench", op, *options]))
    need_mpi()
    if ranks is not None and not asks:
        same_ranks(ranks)
    if op in NONBLOCKING:
        from compcoll.benchmarks.osu.overlap import main
    else:
        from compcoll.benchmarks.osu.command import main
    main(op, list(options), f"compcoll bench {op}")
