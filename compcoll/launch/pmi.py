"""A server of PMI-1, the protocol by which the processes of an MPICH job find each other.

It is a process of its own, started by rank 0, since MPI_Init holds Python's lock and the job may outlive any
rank's interpreter. It needs nothing but the standard library, so it runs isolated (``python -I -S pmi.py``)
and starts in some 20 ms. Its parameters come as JSON on the standard input.

Each rank has two connections. On ``pmi`` it waits until all ranks have come, then MPICH speaks PMI-1 there.
Nothing is ever sent on ``watch``: its end tells the server that the process has ended, and the process, by a
signal, that the job has.

PMI-1 is described in MPICH's sources, src/pmi/maint/pmi-1.1.txt.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import resource
import secrets
import selectors
import socket
import sys
import time
from contextlib import suppress
from itertools import groupby

#: The first word of the server on each connection.
PROTOCOL = "compcoll-pmi-1"
CHANNELS = ("pmi", "watch")
#: Seconds in which ranks may end by themselves, or by a launcher that knows why, after one of them failed.
_GRACE = 1.0
#: Seconds in which a member takes what is sent to it.
_PATIENCE = 10.0
#: The longest names, keys and values, as Hydra has them.
_MAXES = {"kvsname_max": 256, "keylen_max": 64, "vallen_max": 1024}
_LONGEST_LINE = 1 << 16
#: Unauthenticated connections that may be open, beyond two for each rank.
_MOST_STRANGERS = 64
_PAIR = re.compile(r"(\w+)=((?:\\.|[^\s\\])*)")


def proof(secret: str, nonce: str, hello: str) -> str:
    """The authentication code of ``hello``, sent by a client that knows the secret."""
    return hmac.new(secret.encode(), f"{nonce} {hello}".encode(), "sha256").hexdigest()


def keep_alive(line: socket.socket) -> None:
    """Have a connection end, within a minute, when the other host does."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def ranks_of(numbers: list[int]) -> str:
    """``rank 1`` or ``ranks 1, 2, 5``, at most eight of them."""
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} others" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"


def process_mapping(nodes: list[str]) -> str | None:
    """MPICH's ``PMI_process_mapping``: by blocks of ranks on which node; None where it is too long."""
    order = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    blocks = ",".join(f"({order[node]},1,{len(list(run))})" for node, run in groupby(nodes))
    mapping = f"(vector,{blocks})"
    return mapping if len(mapping) < _MAXES["vallen_max"] else None


class JobError(Exception):
    """The ranks cannot start a job; the message says why."""


class _Line:
    """A connection; ``rank`` is -1 until its owner is authenticated."""

    def __init__(self, line: socket.socket):
        self.socket, self.rank, self.channel = line, -1, ""
        self.nonce, self._received = secrets.token_hex(16), b""
        line.settimeout(_PATIENCE)
        keep_alive(line)

    def lines(self) -> list[str] | None:
        """The whole lines received since the last call; None at the end of the connection."""
        try:
            data = self.socket.recv(_LONGEST_LINE)
        except OSError:
            return None
        *whole, self._received = (self._received + data).split(b"\n")
        if not data or len(self._received) > _LONGEST_LINE:
            return None
        return [line.decode(errors="replace") for line in whole]

    def send(self, text: str) -> None:
        with suppress(OSError):  # a closed connection is noticed when it is read
            self.socket.sendall(f"{text}\n".encode())


class Server:
    """The server of one job.

    Parameters
    ----------
    listeners : list of socket.socket
    size : int
    secret : str
    timeout : float
        Seconds in which all ranks have to come.
    """

    def __init__(self, listeners: list[socket.socket], size: int, secret: str, timeout: float):
        self._listeners, self._size, self._secret, self._timeout = listeners, size, secret, timeout
        self._selector = selectors.DefaultSelector()
        self._strangers: list[_Line] = []
        self._members: dict[tuple[int, str], _Line] = {}
        self._hosts: dict[int, str] = {}
        self._nodes: dict[int, str] = {}
        self._name = f"compcoll-{secrets.token_hex(16)}"
        self._values: dict[str, str] = {}
        self._in_barrier: list[_Line] = []
        self._finalized: set[int] = set()
        self._end_at: float | None = None

    def run(self) -> None:
        """Wait for all ranks, then serve them until their processes have ended."""
        try:
            try:
                self._gather()
            finally:
                self._close_to_others()  # first, so that the port is free once ranks hear of an error
            self._serve()
        except JobError as error:
            for line in self._members.values():
                line.send(json.dumps({"error": str(error)}))
        finally:
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._selector.close()

    def _gather(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)
        deadline = time.monotonic() + self._timeout
        while len(self._members) < len(CHANNELS) * self._size:
            for key, _ in self._selector.select(max(deadline - time.monotonic(), 0)):
                if key.data is None:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                elif key.data.rank >= 0:
                    host = self._hosts[key.data.rank]
                    raise JobError(f"rank {key.data.rank} ({host}) left while others were waited for")
                else:
                    self._greet(key.data)
            if time.monotonic() >= deadline:
                break
        missing = [r for r in range(self._size) if any((r, c) not in self._members for c in CHANNELS)]
        if missing:
            raise JobError(f"{ranks_of(missing)} of {self._size} did not come within {self._timeout:g} s")

    def _close_to_others(self) -> None:
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        for line in list(self._strangers):
            self._drop(line)

    def _accept(self, listener: socket.socket) -> None:
        if len(self._strangers) > _MOST_STRANGERS + len(CHANNELS) * self._size:
            self._drop(self._strangers[0])
        with suppress(OSError):
            line = _Line(listener.accept()[0])
            self._strangers.append(line)
            self._selector.register(line.socket, selectors.EVENT_READ, line)
            line.send(f"{PROTOCOL} {line.nonce}")

    def _greet(self, line: _Line) -> None:
        """Admit a client that knows the secret."""
        received = line.lines() if line in self._strangers else []
        if received == []:  # not yet a line, or dropped meanwhile for a later one
            return
        given, _, hello = received[0].partition(" ") if received else ("", "", "")
        if not hmac.compare_digest(given.encode(), proof(self._secret, line.nonce, hello).encode()):
            line.send(json.dumps({"error": "the secret is not that of rank 0"}))
            self._drop(line)
            return
        try:
            self._admit(line, **json.loads(hello))
            self._strangers.remove(line)
        except (TypeError, ValueError, RecursionError):  # where the secret is empty
            self._drop(line)

    def _admit(self, line: _Line, rank: int, size: int, channel: str, host: str, node: str) -> None:
        if {type(rank), type(size)} != {int} or {type(channel), type(host), type(node)} != {str}:
            raise TypeError("a rank and a size are integers; a channel, a host, and a node are strings")
        line.rank, line.channel = rank, channel
        problem = ""
        if size != self._size or not 0 <= rank < size or channel not in CHANNELS:
            problem = f"rank {rank} ({host}) is one of {size} ranks, rank 0 one of {self._size}"
        elif (rank, channel) in self._members:
            problem = f"two processes are rank {rank}: {self._hosts[rank]} and {host}"
        if problem:
            line.send(json.dumps({"error": problem}))
            raise JobError(problem)
        self._members[rank, channel], self._hosts[rank], self._nodes[rank] = line, host, node

    def _drop(self, line: _Line) -> None:
        self._selector.unregister(line.socket)
        line.socket.close()
        if line in self._strangers:
            self._strangers.remove(line)

    def _serve(self) -> None:
        mapping = process_mapping([self._nodes[rank] for rank in range(self._size)])
        if mapping:
            self._values["PMI_process_mapping"] = mapping
        for rank in range(self._size):
            self._members[rank, "pmi"].send(json.dumps({"kvsname": self._name}))
        alive = set(range(self._size))
        while alive:
            left = None if self._end_at is None else self._end_at - time.monotonic()
            if left is not None and left <= 0:
                print(f"compcoll: killing {ranks_of(sorted(alive))}", file=sys.stderr, flush=True)
                return  # which closes their connections
            for key, _ in self._selector.select(left):
                self._read(key.data, alive)

    def _read(self, line: _Line, alive: set[int]) -> None:
        received = line.lines()
        if received is None:
            self._drop(line)
            if line.channel == "watch":
                alive.remove(line.rank)
                if line.rank not in self._finalized:
                    host = self._hosts[line.rank]
                    self._end(f"rank {line.rank} ({host}) ended without MPI_Finalize", alive)
        for text in received or ():
            words = dict(_PAIR.findall(text))
            if words.get("cmd") == "abort":
                self._end(f"rank {line.rank} called MPI_Abort({words.get('exitcode', '')})", alive)
            elif words.get("cmd") == "barrier_in":
                self._in_barrier.append(line)
                # A rank that aborts may reach MPI_Finalize; released, it exits with its own status.
                if len(self._in_barrier) == self._size or self._end_at is not None:
                    for one in self._in_barrier:
                        one.send("cmd=barrier_out rc=0")
                    self._in_barrier.clear()
            elif "cmd" in words or text == "endcmd":  # a spawn has many lines, of which this is the last
                line.send(self._answer(line.rank, words))

    def _answer(self, rank: int, words: dict[str, str]) -> str:
        key = words.get("key", "")
        match words.get("cmd", "spawn"):
            case "init":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                return f"cmd=maxes {' '.join(f'{name}={value}' for name, value in _MAXES.items())} rc=0"
            case "get_appnum":
                return "cmd=appnum appnum=0 rc=0"
            case "get_my_kvsname":
                return f"cmd=my_kvsname kvsname={self._name} rc=0"
            case "get_universe_size":
                return f"cmd=universe_size size={self._size} rc=0"
            case "put" | "get" as cmd if words.get("kvsname") != self._name:
                return f"cmd={cmd}_result rc=-1 msg=another_kvsname"
            case "put":
                self._values[key] = words.get("value", "")
                return "cmd=put_result rc=0 msg=success"
            case "get" if key in self._values:
                return f"cmd=get_result rc=0 msg=success value={self._values[key]}"
            case "get":
                return "cmd=get_result rc=-1 msg=key_not_found value=unknown"
            case "finalize":
                self._finalized.add(rank)
                return "cmd=finalize_ack rc=0"
            case other:
                return f"cmd={other.removesuffix('_name')}_result rc=-1 msg=not_supported"

    def _end(self, reason: str, alive: set[int]) -> None:
        """Kill all ranks after the grace period."""
        if self._end_at is None and alive:
            self._end_at = time.monotonic() + _GRACE
            print(f"compcoll: {reason}", file=sys.stderr, flush=True)


def main() -> None:
    """Serve a job in the background."""
    given = json.load(sys.stdin)
    listeners = [socket.socket(fileno=fd) for fd in given.pop("listeners")]
    if os.fork():
        os._exit(0)  # so that the server is nobody's child
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Server(listeners, **given).run()


if __name__ == "__main__":
    main()
