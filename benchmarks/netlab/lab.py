"""A cluster of namespaces: several for each host, and one (the head) for the switch and mpiexec."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import watchdog
from .launch import RankLauncher
from .namespace import connected, hold_host, inside, port_bytes, throughput, write_sysctl

__all__ = ["HEAD_ADDRESS", "Lab", "LabError", "Unavailable"]

HEAD_ADDRESS = "10.77.0.1"
_MAX_HOSTS = 64
_READY_SECONDS = 15.0
#: Bytes of a bucket at 1 Gb/s. The kernel passes on packets of up to 64 KiB, which have to fit into the
#: bucket. A larger bucket would let short messages pass faster than the link.
_ONE_PACKET = 72 << 10
#: TCP gives up a silent peer after 13 s, not after the usual quarter of an hour.
_HOST_SYSCTLS = {"ipv4.tcp_retries2": 5, "ipv6.conf.all.disable_ipv6": 1, "ipv6.conf.default.disable_ipv6": 1}
_NOT_HERE = ("not permitted", "not supported", "unknown device", "kind is unknown", "permission denied")
_PACKAGES = {"iproute2": ("ip", "tc"), "util-linux": ("unshare", "nsenter"), "hostname": ("hostname",)}
_numbers = itertools.count()


class LabError(RuntimeError):
    """The lab could not be set up, or does not work."""


class Unavailable(LabError):
    """This machine cannot have a lab: no root, no iproute2, or a kernel without the parts."""


class Lab(RankLauncher):
    """A cluster on one machine that exists inside a ``with`` block.

    Every host is a network namespace with one interface, ``eth0``, on a common switch, and has its own name
    and shared memory. A token bucket shapes both ends of each link. Hosts reach each other and the head, and
    nothing else.

    Parameters
    ----------
    hosts : int
        Number of hosts, 1 to 64.
    gbit : float
        Rate of every link in each direction, in 10^9 bit/s; 0 leaves the links unshaped.
    mtu : int
        Bytes of an IP packet.
    burst : int, optional
        Bytes that may pass faster than the rate after a pause; by default one packet of 64 KiB, times the
        rate in Gb/s if that is more than 1.
    cores_per_host : int, optional
        Cores of each host; by default the machine's cores divided among the hosts, at least one each.
    shared_cores : bool
        True if all hosts use the same cores: ``cores_per_host`` of them, by default all of the machine's. A
        host can then use another one's idle cores, which resemble spare cores of real nodes.
    verbose : bool
        Show the commands on standard error.

    Raises
    ------
    Unavailable
        On entering, if this user, machine or kernel cannot have a lab.
    """

    def __init__(
        self,
        hosts: int = 2,
        gbit: float = 1.0,
        *,
        mtu: int = 9000,
        burst: int | None = None,
        cores_per_host: int | None = None,
        shared_cores: bool = False,
        verbose: bool = False,
    ):
        if not 1 <= hosts <= _MAX_HOSTS:
            raise ValueError(f"{hosts} hosts are not between 1 and {_MAX_HOSTS}")
        if not 0 <= gbit <= 400:
            raise ValueError(f"a rate of {gbit} Gb/s is not between 0 and 400")
        if not 1280 <= mtu <= 65535:
            raise ValueError(f"an MTU of {mtu} bytes is not between 1280 and 65535")
        if burst is not None and burst < mtu + 14:
            raise ValueError(f"a burst of {burst} bytes holds no packet of {mtu} bytes and its header")
        here = len(os.sched_getaffinity(0))
        needed = (cores_per_host or 0) * (1 if shared_cores else hosts)
        if cores_per_host is not None and (cores_per_host < 1 or needed > here):
            whose = "for all hosts" if shared_cores else f"for each of {hosts} hosts"
            raise ValueError(f"{cores_per_host} cores {whose}: this process may use {here}")
        self.hosts = hosts
        self.cores_per_host = cores_per_host
        self.shared_cores = shared_cores
        self.gbit = gbit
        self.mtu = mtu
        self.burst = burst or int(_ONE_PACKET * max(1.0, gbit))
        self.verbose = verbose
        self.name = ""
        self.holders: list[subprocess.Popen] = []
        self._watchdog: subprocess.Popen | None = None

    @property
    def head(self) -> str:
        """The namespace of the switch, where mpiexec runs."""
        return f"{self.name}.head"

    def namespace(self, host: int) -> str:
        """The namespace of a host."""
        if not 0 <= host < self.hosts:
            raise ValueError(f"host {host} is not between 0 and {self.hosts - 1}")
        return f"{self.name}.{host}"

    def address(self, host: int) -> str:
        """The address of a host; its last part is the host's number."""
        return f"10.77.1.{host}"

    def __enter__(self) -> Lab:
        _require_tools()
        for name in watchdog.stale():
            watchdog.remove(name)
        self.name = watchdog.new_name(next(_numbers))
        script = [sys.executable, "-I", watchdog.__file__, self.name]
        self._watchdog = subprocess.Popen(script, stdin=subprocess.PIPE, start_new_session=True)
        try:
            self._build()
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes in the lab and remove it. A second call has no effect."""
        if self._watchdog is not None:
            self._watchdog.stdin.close()
            self._watchdog.wait()
            self._watchdog = None
        for holder in self.holders:
            holder.communicate()
        self.holders.clear()

    def set_link(self, host: int, up: bool) -> None:
        """Drop or restore a host's link, at the switch."""
        self.namespace(host)
        self.command("ip", "-n", self.head, "link", "set", f"port{host}", "up" if up else "down")

    def measure(self, nbytes: int | None = None, repeats: int = 3) -> list[tuple[float, float]]:
        """Measure every link by itself, between its host and the head, which has no link of its own.

        Parameters
        ----------
        nbytes : int, optional
            Bytes sent each way; by default as many as take 0.15 s.
        repeats : int
            Number of measurements. The fastest one counts: a busy machine delays packets, but only a wrong
            shape lets them pass too early.

        Returns
        -------
        list of (float, float)
            For each host, the Gb/s of TCP payload that it sends and receives.
        """
        nbytes = nbytes or int((self.gbit or 8.0) * 1e9 / 8 * 0.15)
        result = []
        for host in range(self.hosts):
            ends = connected(self.head, self.namespace(host), self.address(host), _READY_SECONDS)
            with ends[0] as at_head, ends[1] as at_host:
                sent = max(throughput(at_host, at_head, nbytes) for _ in range(repeats))
                received = max(throughput(at_head, at_host, nbytes) for _ in range(repeats))
            result.append((sent * 8e-9, received * 8e-9))
        return result

    def port_bytes(self) -> list[tuple[int, int]]:
        """For each host, the bytes that it has sent and received so far, headers included."""
        return [inside(self.namespace(host), port_bytes) for host in range(self.hosts)]

    def command(self, *argv: str, stdin: str = "") -> str:
        """Run a command and return its output; LabError if it fails."""
        if self.verbose:
            print("+", *argv, *stdin.splitlines(), sep="\n  " if stdin else " ", file=sys.stderr)
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True)
        if done.returncode:
            message = f"{' '.join(argv)}: {done.stderr.strip()}"
            cannot = any(words in done.stderr.lower() for words in _NOT_HERE)
            raise Unavailable(message) if cannot else LabError(message)
        return done.stdout

    def _build(self) -> None:
        self._add_namespace(self.head)
        self._batch(
            self.head,
            [
                f"link add eth0 mtu {self.mtu} type bridge stp_state 0 forward_delay 0",
                f"address add {HEAD_ADDRESS}/16 dev eth0",
                "link set eth0 up",
            ],
        )
        for host in range(self.hosts):
            name = self.namespace(host)
            self._add_namespace(name)
            pair = f"type veth peer name eth0 mtu {self.mtu} netns {name}"
            self._batch(self.head, [f"link add port{host} mtu {self.mtu} {pair}"])
            self._shape(self.head, f"port{host}")
            self._shape(name, "eth0")
            self._batch(self.head, [f"link set port{host} master eth0 up"])
            self._batch(name, [f"address add {self.address(host)}/16 dev eth0", "link set eth0 up"])
            self._hold(f"host{host}")

    def _add_namespace(self, name: str) -> None:
        self.command("ip", "netns", "add", name)
        write_sysctl(name, _HOST_SYSCTLS)
        self._batch(name, ["link set lo up"])

    def _hold(self, hostname: str) -> None:
        holder = hold_host(hostname)
        self.holders.append(holder)
        if not holder.stdout.readline():
            raise Unavailable(f"no namespaces for {hostname}: {holder.communicate()[1].strip()}")

    def _shape(self, namespace: str, device: str) -> None:
        if self.gbit:
            bucket = f"tbf rate {int(self.gbit * 1e9)}bit burst {self.burst}b latency 20ms"
            self.command("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *bucket.split())

    def _batch(self, namespace: str, lines: list[str]) -> None:
        self.command("ip", "-n", namespace, "-batch", "-", stdin="\n".join(lines) + "\n")

    def _wait_until_ready(self) -> None:
        for host in range(self.hosts):
            for end in connected(self.head, self.namespace(host), self.address(host), _READY_SECONDS):
                end.close()


def _require_tools() -> None:
    if os.geteuid() != 0:
        raise Unavailable("network namespaces need root: run this with sudo")
    for package, tools in _PACKAGES.items():
        missing = [tool for tool in tools if shutil.which(tool) is None]
        if missing:
            raise Unavailable(f"{' and '.join(missing)} not found: install {package}")
    if not Path("/proc/self/ns/net").exists():
        raise Unavailable("this kernel has no network namespaces")
