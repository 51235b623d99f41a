"""A host's namespaces: its network namespace seen from outside, and a process that holds the others."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from .watchdog import NETNS

__all__ = ["connected", "hold_host", "inside", "port_bytes", "throughput", "write_sysctl"]

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_CHUNK = 1 << 18
#: Script that ends when its input is closed. Namespaces and shared memory end with the last process in them.
_HOLD = 'mount -t tmpfs tmpfs /dev/shm && hostname "$0" && echo && exec cat >&2'


def inside(namespace: str, function: Callable[[], T]) -> T:
    """Call a function in a network namespace; sockets that it makes stay in that namespace.

    Only a new thread joins the namespace, and it ends with the call: the process does not move.
    """

    def task() -> T:
        with open(f"{NETNS}/{namespace}") as handle:
            # Python has os.setns from 3.12 on.
            if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot join the network namespace {namespace}")
        return function()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(task).result()


def hold_host(hostname: str) -> subprocess.Popen:
    """Start a process with its own IPC, UTS and mount namespaces: a host name, and memory to share.

    MPI and UCX share memory inside these namespaces: System V's belongs to the IPC namespace, POSIX's is a
    file in ``/dev/shm``. The process writes a line when it is set up and ends when its input is closed.
    """
    command = ["unshare", "--ipc", "--uts", "--mount", "--propagation", "slave", "sh", "-c", _HOLD, hostname]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def port_bytes(device: str = "eth0") -> tuple[int, int]:
    """Bytes that this namespace's network interface sent and received, headers included.

    A rank in a lab gets the counts of its host.
    """
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == device:
            received, *_ = fields = counts.split()
            return int(fields[8]), int(received)
    raise LookupError(f"no network interface {device}")


def write_sysctl(namespace: str, settings: dict[str, int]) -> None:
    """Set kernel parameters below ``net`` in a namespace, except those that this kernel lacks."""

    def write() -> None:
        for name, value in settings.items():
            path = Path("/proc/sys/net", *name.split("."))
            if path.exists():
                path.write_text(f"{value}\n")

    inside(namespace, write)


def connected(source: str, target: str, address: str, seconds: float) -> tuple[socket.socket, socket.socket]:
    """Connect two namespaces by TCP, with retries.

    Returns
    -------
    tuple of socket
        The end in `source` and the end in `target`, whose address is used.

    Raises
    ------
    TimeoutError
        If there is no connection after the given number of seconds.
    """
    deadline = time.monotonic() + seconds
    with inside(target, lambda: socket.create_server((address, 0))) as server:
        while True:
            client = inside(source, socket.socket)
            client.settimeout(0.2)
            try:
                client.connect(server.getsockname())
                break
            except OSError:
                client.close()
                if time.monotonic() > deadline:
                    message = f"no connection from {source} to {target} in {seconds:g} s"
                    raise TimeoutError(message) from None
                time.sleep(0.02)
        accepted, _ = server.accept()
    client.settimeout(None)
    return client, accepted


def throughput(sender: socket.socket, receiver: socket.socket, nbytes: int) -> float:
    """Bytes per second that arrive over a connection, timed from the first byte to the last."""
    chunk = os.urandom(_CHUNK)

    def send() -> None:
        for start in range(0, nbytes, _CHUNK):
            sender.sendall(chunk[: nbytes - start])

    with ThreadPoolExecutor(max_workers=1) as thread:
        sending = thread.submit(send)
        into = bytearray(_CHUNK)
        first = arrived = receiver.recv_into(into)
        begin = time.perf_counter()
        while arrived < nbytes:
            got = receiver.recv_into(into)
            if not got:
                raise ConnectionError(f"the sender left after {arrived} of {nbytes} bytes")
            arrived += got
        elapsed = time.perf_counter() - begin
        sending.result()
    return (nbytes - first) / elapsed
