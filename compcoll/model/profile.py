"""Machine profiles: what the network, the codecs and MPI do on a machine, measured or from data sheets."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from compcoll.schedule.virtual import Link

__all__ = ["FABRICS", "UNKNOWN", "CodecSpeed", "MachineProfile", "cache_path", "fingerprint", "load", "save"]

VERSION = 6
#: The links of a profile, between nodes and inside one.
LINKS = ("network", "node")
#: Dates of files are before the year 9000; units of ages, in seconds.
_LATEST = 2e11
_UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"))
#: Libraries with the collectives of MPICH.
MPICH = ("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2")


@dataclass(frozen=True)
class CodecSpeed:
    """One codec on one kind of data: bytes per second of uncompressed data, and its ratio there.

    ``reconstruct`` is the speed of encoding that gives the decoded values too: 0 where they have to be
    decoded, infinite where they are the same.
    """

    encode: float
    decode: float
    ratio: float
    reconstruct: float = inf


@dataclass(frozen=True)
class MachineProfile:
    """Figures of a machine, for the model.

    Attributes
    ----------
    name : str
    network, node : Link
        Between nodes and inside one: seconds of latency, bytes per second one way.
    measured : tuple of str
        Those of the links, ``"network"`` and ``"node"``, that were measured. The others are careful
        figures, and not part of the JSON document.
    memory : float
        Bytes per second at which one core copies what is not in its caches.
    call : float
        Seconds that one operation on a chunk costs besides its bytes.
    message : float
        Seconds that plain MPI's collectives cost per message besides.
    sharing : float
        How many times longer a processor's work takes while all ranks work: above 1 where ranks share cores.
    library : str
        The MPI that was measured, as `mpi4py.MPI.get_vendor` names it.
    plain : float
        The part of the network's bandwidth that MPI's own collectives get of it.
    codecs : dict of str to CodecSpeed
        By spec, or by spec and dtype as ``"lossless/bfloat16"``.
    source : str
        Where the figures come from.
    date : float
        When the oldest of them was measured, in seconds since 1970 began; 0 where that is not known.
    spread : float
        By how much repetitions of a measurement differed, at most: the median less the quickest, as a part of
        it. Infinite where that is not known.
    """

    name: str
    network: Link
    node: Link
    memory: float = 8e9
    call: float = 2e-6
    message: float = 5e-6
    sharing: float = 1.0
    library: str = ""
    plain: float = 1.0
    codecs: Mapping[str, CodecSpeed] = field(default_factory=dict)
    source: str = ""
    date: float = 0.0
    spread: float = inf
    measured: tuple[str, ...] = LINKS

    @property
    def is_mpich(self) -> bool:
        """Whether the library's algorithms are those that the model has a formula for."""
        return self.library in MPICH

    def codec(self, spec: str, dtype: str) -> CodecSpeed | None:
        """The figures of a codec for a type of data; None where it was never measured."""
        return self.codecs.get(f"{spec}/{dtype}") or self.codecs.get(spec)

    def similar(self, name: str, dtype: str) -> CodecSpeed | None:
        """The least figures of a codec for a type of data, with any parameters; None where it has none."""
        found = [
            astuple(speed)
            for key, speed in self.codecs.items()
            if key.partition("/")[2] in ("", dtype) and re.split("[:/]", key)[0] == name
        ]
        return CodecSpeed(*map(min, zip(*found, strict=True))) if found else None

    def with_network(self, network: Link, name: str) -> MachineProfile:
        """The same machine behind another network."""
        return replace(self, network=network, name=name, plain=1.0)

    def with_links(self, **links: Link | None) -> MachineProfile:
        """The same machine with links, by name, that were measured; None: was not."""
        found = {name: link for name, link in links.items() if link is not None}
        return replace(self, **found, measured=tuple(sorted({*self.measured, *found})))  # type: ignore[arg-type]

    def completed_by(self, older: MachineProfile | None) -> MachineProfile:
        """The same machine with an older profile's links where its own were not measured."""
        if older is None or older.library != self.library:
            return self
        missing = [name for name in older.measured if name not in self.measured]
        if not missing:
            return self
        return replace(
            self.with_links(**{name: getattr(older, name) for name in missing}),
            plain=older.plain if "network" in missing else self.plain,
            date=min(self.date, older.date),
            spread=max(self.spread, older.spread),
        )

    def provenance(self, now: float) -> str:
        """Age and spread of the figures in words; ``now`` as `date`."""
        when = "at a time that is not known"
        if self.date:
            age = max(now - self.date, 0.0)
            n, unit = next((int(age // s), unit) for s, unit in _UNITS if age >= 2 * s or s == 60)
            then = datetime.fromtimestamp(self.date, UTC)
            when = f"on {then:%Y-%m-%d at %H:%M} UTC, {n} {unit} ago"
        by = "an unknown part" if self.spread == inf else f"{self.spread:.0%}"
        return f"measured {when}; repetitions differed by {by} at most"

    def as_json(self) -> str:
        """The profile as a JSON document."""
        values = _without_infinity(asdict(self))
        measured = values.pop("measured")
        kept = {key: value for key, value in values.items() if key not in LINKS or key in measured}
        return json.dumps({"version": VERSION, **kept}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> MachineProfile:
        """A profile from its JSON document; ValueError where it is none, or of another version."""
        data = json.loads(text)
        if not isinstance(data, dict) or "version" not in data:
            raise ValueError("this is no profile of a machine")
        if (found := data.pop("version")) != VERSION:
            raise ValueError(f"the profile is of version {found}, not {VERSION}; run compcoll tune again")
        try:
            data["measured"] = tuple(name for name in LINKS if name in data)
            for key in LINKS:
                data[key] = _read(Link, data[key]) if key in data else getattr(UNKNOWN, key)
            for key, unknown in (("date", 0.0), ("spread", inf)):
                data[key] = unknown if data.get(key) is None else float(data[key])
            if not 0 <= data["date"] < _LATEST:
                raise ValueError(f"date = {data['date']}")
            data["codecs"] = {spec: _read(CodecSpeed, speed) for spec, speed in data["codecs"].items()}
            return _read(cls, data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the profile lacks something or has too much: {error}") from None


def _without_infinity(value: Any) -> Any:
    """JSON has no infinity: null stands for it."""
    if isinstance(value, dict):
        return {key: _without_infinity(entry) for key, entry in value.items()}
    return None if value == inf else value


def _read(kind: type, values: dict[str, Any]) -> Any:
    return kind(**{key: inf if value is None else value for key, value in values.items()})


#: Seconds of a processor that the kernel's TCP takes for a byte at either end, as measured on one machine.
TCP_CPU = 0.4e-9


def _gbit(rate: float) -> float:
    return rate * 1e9 / 8


#: Common fabrics: latency in seconds, bytes per second one way. Ethernet: line rates of IEEE 802.3 and
#: the latency of kernel TCP; InfiniBand: data rates of the IBTA roadmap for 4 lanes after encoding, MPI
#: latencies as published by MVAPICH; PCIe: PCI-SIG rates of 16 lanes after 128b/130b encoding.
FABRICS: dict[str, Link] = {
    "1gbe": Link(40e-6, _gbit(0.94), cpu=TCP_CPU),
    "2.5gbe": Link(30e-6, _gbit(2.35), cpu=TCP_CPU),
    "10gbe": Link(20e-6, _gbit(9.4), cpu=TCP_CPU),
    "25gbe": Link(15e-6, _gbit(23.5), cpu=TCP_CPU),
    "100gbe": Link(10e-6, _gbit(94), cpu=TCP_CPU),
    "edr": Link(1.0e-6, _gbit(96.97)),
    "hdr": Link(1.0e-6, _gbit(193.9)),
    "ndr": Link(1.0e-6, _gbit(387.9)),
    "pcie4": Link(1.0e-6, 31.5e9 * 0.85),
    "pcie5": Link(1.0e-6, 63.0e9 * 0.85),
}


#: A machine of which nothing is known: careful figures.
UNKNOWN = MachineProfile("unknown", FABRICS["10gbe"], FABRICS["pcie4"], measured=())


def fingerprint() -> str:
    """The key of a profile: the processor, its cores and the machine's name."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), cpu)
    except OSError:
        pass
    parts = (cpu, str(os.cpu_count()), platform.node().rstrip("0123456789"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def cache_path() -> Path:
    """The path of this machine's profile: ``COMPCOLL_PROFILE``, else in the user's cache."""
    if path := os.environ.get("COMPCOLL_PROFILE"):
        return Path(path)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "compcoll" / f"{fingerprint()}.json"


def _say(problem: str) -> None:
    print(f"compcoll: {problem}", file=sys.stderr, flush=True)


def load(report: Callable[[str], object] = _say, path: Path | None = None) -> MachineProfile | None:
    """The profile that ``compcoll tune`` left for this machine; None where there is none that can be read.

    ``report`` is told why a file was not taken that is there or that ``COMPCOLL_PROFILE`` names. Nothing is
    raised, since only one rank of a communicator may come here.
    """
    path = path or cache_path()
    try:
        return MachineProfile.from_json(path.read_text())
    except FileNotFoundError as error:
        if os.environ.get("COMPCOLL_PROFILE") and path == cache_path():
            report(f"COMPCOLL_PROFILE = {str(path)!r}: {error.strerror}")
        return None
    except (OSError, ValueError) as error:
        report(f"{path}: {error}")
        return None


def save(profile: MachineProfile, path: Path | None = None) -> Path:
    """Keep a profile, for this machine where no path is given; its path."""
    path = path or cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(profile.as_json())
    return path
