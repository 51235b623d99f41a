"""Start MPI ranks in a lab with the hooks that MPICH's and Open MPI's mpiexec have for ssh."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import watchdog

__all__ = ["OPEN_MPI", "RankLauncher", "find_mpiexec"]

#: Open MPI's mpiexec, as Debian names it.
OPEN_MPI = "mpiexec.openmpi"

#: Called as ``ssh [options] ADDRESS COMMAND...``. Like ssh, it lets a shell parse the joined words.
#: A rank sees only its own host's cores, so that it does not use idle cores of another host.
#: ``ip netns exec`` comes last: it mounts the host's ``/sys``, where UCX looks for interfaces.
_LAUNCHER = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=${{1##*.}}
shift
holder=$(echo {holders} | cut -d' ' -f$((host + 1)))
set -- taskset -c $(echo {cores} | cut -d' ' -f$((host + 1))) sh -c "$*"
exec nsenter --target $holder --ipc --uts --mount --wd="$PWD" ip netns exec {lab}.$host "$@"
"""
#: The shaped link between hosts, and shared memory inside them, where UCX finds one IPC namespace.
_TRANSPORT = {
    "UCX_TLS": "tcp,self,sm",
    "UCX_NET_DEVICES": "eth0",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
    "GLOO_SOCKET_IFNAME": "eth0",
}
#: Like `_TRANSPORT`, for Open MPI.
_OPEN_MPI_TRANSPORT = {
    "btl": "tcp,vader,self",
    "btl_tcp_if_include": "eth0",
    "oob_tcp_if_include": "eth0",
    "mpi_yield_when_idle": "1",
}


def find_mpiexec() -> str:
    """Find MPICH's mpiexec, preferably the one beside this Python; FileNotFoundError if there is none."""
    beside = Path(sys.executable).with_name("mpiexec")
    paths = [str(beside)] * beside.exists() + [path for path in [shutil.which("mpiexec")] if path]
    for path in paths:
        if "HYDRA" in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
            return path
    if paths:
        raise FileNotFoundError(f"{paths[0]} is not MPICH's mpiexec: pip install mpich")
    raise FileNotFoundError("mpiexec not found: pip install mpich")


class RankLauncher:
    """A cluster that starts MPI ranks on its hosts."""

    #: Seconds after a link drops at which mpiexec loses the host; the program ends at most 3 s later.
    LOST_SECONDS = 15.0
    name: str
    hosts: int
    head: str
    holders: list[subprocess.Popen]
    cores_per_host: int | None
    shared_cores: bool
    verbose: bool

    def namespace(self, host: int) -> str:
        """The namespace of a host."""
        raise NotImplementedError

    def address(self, host: int) -> str:
        """The address of a host."""
        raise NotImplementedError

    def set_link(self, host: int, up: bool) -> None:
        """Drop or restore a host's link."""
        raise NotImplementedError

    def run(
        self,
        argv: Sequence[str],
        *,
        ppn: int = 1,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float | None = None,
        down: Sequence[tuple[int, float]] = (),
        capture: bool = False,
        open_mpi: bool = False,
    ) -> subprocess.CompletedProcess:
        """Run an MPI program, `ppn` ranks on each host.

        Parameters
        ----------
        argv : sequence of str
            Options for mpiexec, then the program. ``-n`` as the first one replaces the lab's number of ranks.
        ppn : int
            Ranks on each host.
        env : mapping, optional
            Environment that replaces this process's.
        check : bool
            Raise for a non-zero status.
        timeout : float, optional
            Seconds after which everything in the lab is killed.
        down : sequence of (host, seconds)
            Links to drop, each that many seconds after the start. A program that does not end by itself is
            ended with a nonzero status at most `LOST_SECONDS` + 3 s later.
        capture : bool
            Return the output as text instead of showing it.
        open_mpi : bool
            Start the program by Open MPI's mpiexec instead of MPICH's.

        Returns
        -------
        subprocess.CompletedProcess

        Raises
        ------
        subprocess.CalledProcessError, subprocess.TimeoutExpired
        """
        if ppn < 1:
            raise ValueError(f"{ppn} ranks on a host are less than 1")
        for host, _ in down:
            self.namespace(host)
        with tempfile.TemporaryDirectory(prefix=f"{self.name}-") as folder:
            launcher = _write_launcher(self, Path(folder))
            command = (_open_mpi_command if open_mpi else _command)(self, argv, ppn, launcher)
            if self.verbose:
                print("+", *command, file=sys.stderr)
            pipe = subprocess.PIPE if capture else None
            with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) as process:
                timers = [timer for host, seconds in down for timer in _drop(self, host, seconds)]
                try:
                    for timer in timers:
                        timer.start()
                    output, errors = process.communicate(timeout=timeout)
                except BaseException:
                    watchdog.kill(self.name)
                    raise
                finally:
                    for timer in timers:
                        timer.cancel()
        # Ranks that outlive an aborted mpiexec would slow the next program down.
        watchdog.kill(self.name)
        done = subprocess.CompletedProcess(command, process.returncode, output, errors)
        if check:
            done.check_returncode()
        return done


def _drop(lab: RankLauncher, host: int, seconds: float) -> list[threading.Timer]:
    """Timers that drop a link, and that end the program later if it still runs.

    MPICH may wait forever for a peer whose connection UCX gave up. mpiexec does not notice the lost host
    either, because it has nothing to send to it. On clusters keep-alives solve this. Here mpiexec's
    connections to the host are closed at the time when keep-alives would expire, and mpiexec then ends the
    program. If the kernel cannot close them, the program is killed.
    """
    lost = seconds + lab.LOST_SECONDS
    close = ["ip", "netns", "exec", lab.head, "ss", "-K", "dst", lab.address(host)]
    return [
        threading.Timer(seconds, lab.set_link, (host, False)),
        threading.Timer(lost, subprocess.run, (close,), {"capture_output": True}),
        threading.Timer(lost + 3, watchdog.kill, (lab.name,)),
    ]


def _command(lab: RankLauncher, argv: Sequence[str], ppn: int, launcher: Path) -> list[str]:
    hosts = ",".join(lab.address(host) for host in range(lab.hosts))
    command = ["ip", "netns", "exec", lab.head, find_mpiexec()]
    command += ["-launcher", "ssh", "-launcher-exec", str(launcher), "-iface", "eth0"]
    command += ["-hosts", hosts, "-ppn", str(ppn)]
    for name, value in _TRANSPORT.items():
        command += ["-genv", name, value]
    if lab.hosts * ppn > len(set().union(*_cores_of_hosts(lab))):
        command += ["-genv", "MPIR_CVAR_POLLS_BEFORE_YIELD", "1"]  # a rank that spins takes another's core
    if argv[0] not in ("-n", "-np"):
        command += ["-n", str(lab.hosts * ppn)]
    return [*command, *argv]


def _open_mpi_command(lab: RankLauncher, argv: Sequence[str], ppn: int, launcher: Path) -> list[str]:
    if shutil.which(OPEN_MPI) is None:
        raise FileNotFoundError(f"{OPEN_MPI} not found; Debian's openmpi-bin has it")
    hosts = ",".join(f"{lab.address(host)}:{ppn}" for host in range(lab.hosts))
    command = ["ip", "netns", "exec", lab.head, OPEN_MPI, "--allow-run-as-root", "--host", hosts]
    command += ["--bind-to", "none", "--mca", "plm_rsh_agent", str(launcher), "--mca", "pml", "ob1"]
    for name, value in _OPEN_MPI_TRANSPORT.items():
        command += ["--mca", name, value]
    return [*command, *argv]


def _write_launcher(lab: RankLauncher, folder: Path) -> Path:
    path = folder / "launcher"
    holders = " ".join(str(holder.pid) for holder in lab.holders)
    cores = " ".join(",".join(map(str, some)) for some in _cores_of_hosts(lab))
    path.write_text(_LAUNCHER.format(lab=lab.name, cores=cores, holders=holders))
    path.chmod(0o700)
    return path


def _cores_of_hosts(lab: RankLauncher) -> list[list[int]]:
    """Cores of each host: its own, or the same for all. More hosts than cores share them in turn."""
    cores = sorted(os.sched_getaffinity(0))
    if lab.shared_cores:
        return [cores[: lab.cores_per_host or len(cores)]] * lab.hosts
    each = lab.cores_per_host or max(1, len(cores) // lab.hosts)
    whole = len(cores) // each
    return [cores[host % whole * each :][:each] for host in range(lab.hosts)]
