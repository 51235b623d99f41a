"""``python -m benchmarks.netlab``: run an MPI program on a cluster of network namespaces."""

from __future__ import annotations

import subprocess
import sys

import click

from .lab import Lab, LabError

TIMED_OUT = 124
UNAVAILABLE = 69


class Drop(click.ParamType):
    """Option value ``HOST@SECONDS``."""

    name = "host@seconds"

    def convert(self, value, param, ctx) -> tuple[int, float]:
        try:
            host, seconds = value.split("@")
            return int(host), float(seconds)
        except ValueError:
            self.fail(f"{value!r} is not HOST@SECONDS, such as 1@2.5", param, ctx)


@click.command(context_settings={"allow_interspersed_args": False, "show_default": True})
@click.option("--hosts", default=2, help="Number of hosts.")
@click.option(
    "--ranks-per-host", "--ppn", "ppn", default=1, help="Ranks on each host, which share its memory."
)
@click.option("--gbit", default=1.0, help="Gb/s of every link in each direction; 0 for unshaped.")
@click.option("--mtu", default=9000, help="Bytes of a packet.")
@click.option("--burst", type=int, help="Bytes that may pass at once. [default: 72 KiB per Gb/s]")
@click.option("--cores-per-host", type=int, help="Cores of each host. [default: the machine's, shared out]")
@click.option("--shared-cores", is_flag=True, help="Give all hosts the same cores, by default all.")
@click.option("--down", type=Drop(), multiple=True, help="Drop a host's link so long after the start.")
@click.option("--timeout", type=float, help="Kill the program after so many seconds, with status 124.")
@click.option("--measure", is_flag=True, help="Measure every link first.")
@click.option("--count", is_flag=True, help="Print the bytes through each host's port after the program.")
@click.option("--open-mpi", is_flag=True, help="Start ranks by Open MPI's mpiexec, not MPICH's.")
@click.option("--verbose", is_flag=True, help="Show the commands that are run.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- [MPIEXEC OPTIONS] PROGRAM ...")
def main(
    hosts,
    ppn,
    gbit,
    mtu,
    burst,
    cores_per_host,
    shared_cores,
    down,
    timeout,
    measure,
    count,
    open_mpi,
    verbose,
    argv,
) -> None:
    """Run an MPI program on a cluster of network namespaces on this machine."""
    if not argv and not measure:
        raise click.UsageError("no program: give one after --, or --measure")
    try:
        lab = Lab(
            hosts,
            gbit,
            mtu=mtu,
            burst=burst,
            cores_per_host=cores_per_host,
            shared_cores=shared_cores,
            verbose=verbose,
        )
        with lab:
            if measure:
                show_links(lab)
            before = lab.port_bytes()
            if argv:
                done = lab.run(argv, ppn=ppn, check=False, timeout=timeout, down=down, open_mpi=open_mpi)
            status = done.returncode if argv else 0
            if count:
                show_bytes(before, lab.port_bytes())
    except subprocess.TimeoutExpired:
        click.echo(f"netlab: killed after {timeout:g} s", err=True)
        status = TIMED_OUT
    except (LabError, FileNotFoundError) as error:
        click.echo(f"netlab: {error}", err=True)
        status = UNAVAILABLE
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    # The status of a child that died of a signal is negative, which a shell cannot return.
    sys.exit(status if status >= 0 else 128 - status)


def show_links(lab: Lab) -> None:
    """Print the measured rate of every link, in TCP payload."""
    for host, (sent, received) in enumerate(lab.measure()):
        click.echo(f"host {host}: sends {sent:.3f} Gb/s, receives {received:.3f} Gb/s")


def show_bytes(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    """Print the bytes through every port during the run, including mpiexec's own messages."""
    for host, (old, new) in enumerate(zip(before, after, strict=True)):
        click.echo(f"host {host}: sent {new[0] - old[0]:,} bytes, received {new[1] - old[1]:,} bytes")


if __name__ == "__main__":
    main()
