"""A server of PMI-1, the protocol by which the processes of an MPICH job find each other.

Rank 0 starts it as a separate process, since MPI_Init holds the GIL and the job may outlive any rank's
interpreter. The server uses only the standard library, so it runs isolated (``python -I -S pmi.py``) and
starts in some 50 ms. It gets its parameters as JSON on standard input.

Each rank has two connections. On ``pmi`` it waits until all ranks have connected, then MPICH speaks PMI-1
there. No data are sent on ``watch``: when it closes, the server learns that the process has ended, or the
process, by a signal, that the job has ended.

PMI-1 is described in MPICH's sources, src/pmi/maint/pmi-1.1.txt.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import resource
import secrets
import socket
import sys
from contextlib import suppress
from itertools import groupby

__all__ = ["CHANNELS", "JOINED", "PROTOCOL", "Server", "keep_alive", "process_mapping", "proof", "ranks_of"]

#: The first word of the server on each connection.
PROTOCOL = "compcoll-pmi-2"
CHANNELS = ("pmi", "watch")
#: Seconds in which ranks may end by themselves, or by a launcher, after a failed one has ended.
_GRACE = 1.0
#: Seconds in which a rank that aborts may end: launchers report the process that ends first as the cause.
_ABORT_SECONDS = 3.0
#: Seconds in which a client proves that it knows the secret.
_PATIENCE = 10.0
#: Largest lengths of names, keys and values, as in Hydra.
_MAXES = {"kvsname_max": 256, "keylen_max": 64, "vallen_max": 1024}
_LONGEST_LINE = 1 << 16
#: The answer when all ranks have connected; other answers begin with ``late`` or ``refused``.
JOINED = "joined"
_PAIR = re.compile(r"(\w+)=((?:\\.|[^\s\\])*)")
#: A client's first line: proof, rank, size, channel, node, and host.
_HELLO = re.compile(r"(\w+) ((\d{1,9}) (\d{1,9}) (pmi|watch) (\S+) (.+))\n")


def proof(secret: str, nonce: str, hello: str) -> str:
    """The authentication code of ``hello``, sent by a client that knows the secret."""
    return hmac.new(secret.encode(), f"{nonce} {hello}".encode(), "sha256").hexdigest()


def keep_alive(line: socket.socket) -> None:
    """Let a connection end within a minute when the other host is lost."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def ranks_of(numbers: list[int]) -> str:
    """``rank 1`` or ``ranks 1, 2, 5``, at most eight of them."""
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} others" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"


def process_mapping(nodes: list[str]) -> str | None:
    """MPICH's ``PMI_process_mapping``: the nodes of blocks of ranks; None if it is too long."""
    order = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    blocks = ",".join(f"({order[node]},1,{len(list(run))})" for node, run in groupby(nodes))
    mapping = f"(vector,{blocks})"
    return mapping if len(mapping) < _MAXES["vallen_max"] else None


class Server:
    """The server of one job.

    Parameters
    ----------
    listener : socket.socket
    size : int
    secret : str
    timeout : float
        Seconds in which all ranks have to connect.
    """

    def __init__(self, listener: socket.socket, size: int, secret: str, timeout: float):
        self._listener, self._size, self._secret, self._timeout = listener, size, secret, timeout
        self._members: dict[tuple[int, str], asyncio.StreamWriter] = {}
        self._hosts: dict[int, str] = {}
        self._nodes: dict[int, str] = {}
        self._name = f"compcoll-{secrets.token_hex(16)}"
        self._values: dict[str, str] = {}
        self._in_barrier: list[asyncio.StreamWriter] = []
        self._alive = set(range(size))
        self._finalized: set[int] = set()
        self._is_failing = False
        self._aborting: int | None = None

    def run(self) -> None:
        """Wait for all ranks, then serve them until their processes have ended."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        #: The answer to all ranks when all have connected, or when they cannot start a job.
        self._answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        listening = await asyncio.start_server(
            self._connected, sock=self._listener, limit=_LONGEST_LINE, backlog=1024
        )
        await asyncio.wait([self._answered], timeout=self._timeout)
        if not self._answered.done():
            missing = [r for r in range(self._size) if any((r, c) not in self._members for c in CHANNELS)]
            late = f"{ranks_of(missing)} of {self._size} did not come within {self._timeout:g} s"
            self._answered.set_result(f"late {late}")
        # First, so that the port is free once ranks hear of an error; what was accepted until now gets its
        # task, which closes it, by three turns of the loop.
        asyncio.get_running_loop().remove_reader(self._listener)
        for _ in range(3):
            await asyncio.sleep(0)
        listening.close()
        for (_, channel), writer in self._members.items():
            if channel == "pmi":
                _send(writer, self._answered.result())
        if self._answered.result() == JOINED:
            await self._over.wait()
        # The tasks of all connections end with this one, and close them.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection: first authenticate it, then, if it knows the secret, serve it as a rank's."""
        try:
            keep_alive(writer.get_extra_info("socket"))
            async with asyncio.timeout(_PATIENCE):
                member = await self._greet(reader, writer)
            if member is not None:
                await self._serve(*member, reader, writer)
        except (OSError, ValueError):  # it takes too long, resets the connection, or sends no lines
            pass
        except asyncio.CancelledError:  # at the end; asyncio of Python 3.11 would report it as an error
            pass
        finally:
            writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, str] | None:
        """Admit a client that knows the secret: its rank and channel; None for others."""
        nonce = secrets.token_hex(16)
        _send(writer, f"{PROTOCOL} {nonce}")
        found = _HELLO.fullmatch((await reader.readline()).decode(errors="replace"))
        if found is None or self._answered.done():
            return None
        code, hello, *numbers, channel, node, host = found.groups()
        if not hmac.compare_digest(code.encode(), proof(self._secret, nonce, hello).encode()):
            _send(writer, "refused the secret is not that of rank 0")
            return None
        rank, size = map(int, numbers)
        problem = ""
        if size != self._size or rank >= size:
            problem = f"rank {rank} ({host}) is one of {size} ranks, rank 0 one of {self._size}"
        elif (rank, channel) in self._members:
            problem = f"two processes are rank {rank}: {self._hosts[rank]} and {host}"
        if problem:
            _send(writer, f"refused {problem}")
            self._answered.set_result(f"refused {problem}")
            return None
        self._members[rank, channel], self._hosts[rank], self._nodes[rank] = writer, host, node
        if len(self._members) == len(CHANNELS) * self._size:
            mapping = process_mapping([self._nodes[one] for one in range(size)])
            if mapping:
                self._values["PMI_process_mapping"] = mapping
            self._answered.set_result(JOINED)
        return rank, channel

    async def _serve(
        self, rank: int, channel: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer a rank until its connection ends; the end of ``watch`` means that its process has ended."""
        with suppress(OSError, ValueError):
            while line := await reader.readline():
                text = line.decode(errors="replace").strip()
                words = dict(_PAIR.findall(text))
                # A spawn has many lines, of which this is the last.
                if channel == "pmi" and ("cmd" in words or text == "endcmd"):
                    self._answer(rank, words, writer)
        who = f"rank {rank} ({self._hosts[rank]})"
        if not self._answered.done():
            self._answered.set_result(f"refused {who} left while others were waited for")
        elif channel == "watch" and self._answered.result() == JOINED:
            self._alive.remove(rank)
            if rank not in self._finalized:
                self._fail(f"{who} ended without MPI_Finalize", _GRACE)
            if rank == self._aborting:
                asyncio.get_running_loop().call_later(_GRACE, self._kill)
            if not self._alive:
                self._over.set()

    def _answer(self, rank: int, words: dict[str, str], writer: asyncio.StreamWriter) -> None:
        """Act on one command of a rank."""
        key = words.get("key", "")
        match words.get("cmd", "spawn"):
            case "abort":
                self._aborting = rank if self._aborting is None else self._aborting
                self._fail(f"rank {rank} called MPI_Abort({words.get('exitcode', '')})", _ABORT_SECONDS)
            case "barrier_in":
                self._in_barrier.append(writer)
                # A rank that aborts may reach MPI_Finalize; released, it exits with its own status.
                if len(self._in_barrier) == self._size or self._is_failing:
                    for one in self._in_barrier:
                        _send(one, "cmd=barrier_out rc=0")
                    self._in_barrier.clear()
            case "init":
                _send(writer, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
            case "get_maxes":
                maxes = " ".join(f"{name}={value}" for name, value in _MAXES.items())
                _send(writer, f"cmd=maxes {maxes} rc=0")
            case "get_appnum":
                _send(writer, "cmd=appnum appnum=0 rc=0")
            case "get_my_kvsname":
                _send(writer, f"cmd=my_kvsname kvsname={self._name} rc=0")
            case "get_universe_size":
                _send(writer, f"cmd=universe_size size={self._size} rc=0")
            case "put" | "get" as cmd if words.get("kvsname") != self._name:
                _send(writer, f"cmd={cmd}_result rc=-1 msg=another_kvsname")
            case "put":
                self._values[key] = words.get("value", "")
                _send(writer, "cmd=put_result rc=0 msg=success")
            case "get" if key in self._values:
                _send(writer, f"cmd=get_result rc=0 msg=success value={self._values[key]}")
            case "get":
                _send(writer, "cmd=get_result rc=-1 msg=key_not_found value=unknown")
            case "finalize":
                self._finalized.add(rank)
                _send(writer, "cmd=finalize_ack rc=0")
            case other:
                _send(writer, f"cmd={other.removesuffix('_name')}_result rc=-1 msg=not_supported")

    def _fail(self, reason: str, seconds: float) -> None:
        """Kill all ranks after ``seconds``."""
        if self._alive and not self._is_failing:
            self._is_failing = True
            asyncio.get_running_loop().call_later(seconds, self._kill)
            _report(reason)

    def _kill(self) -> None:
        """End the server; this closes the connections, which kills the processes."""
        if self._over.is_set():
            return
        self._over.set()
        _report(f"killing {ranks_of(sorted(self._alive))}")


def _send(writer: asyncio.StreamWriter, text: str) -> None:
    """Send a line; a closed connection is noticed when it is read."""
    writer.write(f"{text}\n".encode())


def _report(text: str) -> None:
    with suppress(OSError):  # nobody reads it any more
        print(f"compcoll: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Serve a job in the background."""
    parameters = json.load(sys.stdin)
    listener = socket.socket(fileno=parameters.pop("listener"))
    if os.fork():
        os._exit(0)  # so that the server is nobody's child
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Server(listener, **parameters).run()


if __name__ == "__main__":
    main()
