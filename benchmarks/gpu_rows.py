"""Rows of `gpu_check`, each saved at once, and the processes that print them within a time limit."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Sequence
from datetime import date
from glob import glob
from pathlib import Path
from typing import Any

__all__ = ["FAKE", "STATUSES", "Check", "execute", "find_tool", "python"]

ROOT = Path(__file__).resolve().parents[1]
STATUSES = {"ok": 0, "refused": 0, "skipped": 0, "failed": 1, "timeout": 4, "missing": 8}
FAKE = "--fake"
NO_LAB, TIMED_OUT = 69, 124  # exit statuses of `netlab`: no lab on this machine; ranks were killed


class Check:
    """The rows so far, and the time that is left."""

    def __init__(self, path: Path | None, seconds: float, limit: float, fake: bool):
        self.path, self.seconds, self.limit, self.start = path, seconds, limit, time.monotonic()
        self.fake = [FAKE] if fake else []
        self.rows: list[dict[str, Any]] = []
        self.saved = 0
        self.gpus = max(len(glob("/dev/nvidia[0-9]*")), 1)
        self.hung: set[str] = set()  # "codec type"
        self.pairs: list[tuple[str, str]] = []  # (codec, type)
        self.end = seconds
        self._lock = threading.Lock()

    @property
    def passed(self) -> float:
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        """Seconds that the current part has left."""
        return min(self.end, self.seconds) - self.passed

    def add(self, part: str, row: dict[str, Any]) -> None:
        """Print and save a row; ``gpu_shared`` is added if its ranks share a GPU."""
        row = {"part": part, "at": round(self.passed, 1), **row}
        if row.get("ranks", 1) > self.gpus:
            row.setdefault("gpu_shared", True)
        frames = row.pop("frames", None)
        with self._lock:
            self.rows.append(row)
            if part == "device" and self.path is None and "gpu" in row:
                self.path = default_path(row["gpu"])
            more = {k: v for k, v in row.items() if k not in ("part", "at", "what", "status")}
            more["tail"] = more.get("tail", "").strip().rpartition("\n")[2]  # the file keeps the whole tail
            text = "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in more.items() if v != ""
            )
            print(f"{row['at']:6.1f} s  {row['status']:8} {part:12} {row['what']:34} {text}", flush=True)
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.writelines(json.dumps(one) + "\n" for one in self.rows[self.saved :])
                self.saved = len(self.rows)
                if frames:
                    self._save(re.sub(r"[^\w.=]+", "-", row["what"]), frames)

    def _save(self, name: str, frames: dict[str, str]) -> None:
        """Add frames, given in base 64, to the archive of differing frames."""
        assert self.path is not None
        with zipfile.ZipFile(
            self.path.with_name(f"{self.path.stem}-frames.zip"), "a", zipfile.ZIP_DEFLATED
        ) as file:
            for key, data in frames.items():
                file.writestr(f"{len(file.namelist()) // 2}-{name}.{key}", base64.b64decode(data))

    def run(
        self, part: str, what: str, command: Sequence[str], limit: float | None = None, note: str = ""
    ) -> list[str]:
        """Run a process and add the rows that it prints; add a row if it fails or prints none.

        Returns the status of each row.
        """
        limit = min(limit or self.limit, self.left - 3)  # 3 s to kill a process that ignores SIGTERM
        if limit < 1:
            self.add(part, {"what": what + note, "status": "timeout", "why": "no time left"})
            return ["timeout"]
        found: list[str] = []

        def line(text: str) -> None:
            if text.startswith('{"what"'):
                row = json.loads(text)
                found.append(row["status"])
                self.add(part, {**row, "what": row["what"] + note})

        status, tail = execute(command, limit, line)
        why = {None: f"not done after {limit:.0f} s", 0: "no row"}.get(status, f"exit status {status}")
        if status != 0 or not found:
            of_lab = {None: "timeout", TIMED_OUT: "timeout", NO_LAB: "missing"}
            found.append(of_lab.get(status, "failed"))
            self.add(
                part,
                {
                    "what": what + note,
                    "status": found[-1],
                    "why": why if status != 0 else "no row",
                    "tail": tail,
                },
            )
        return found

    @property
    def status(self) -> int:
        """The exit status."""
        return sum({STATUSES[row["status"]] for row in self.rows})


def execute(command: Sequence[str], limit: float, line: Any = lambda text: None) -> tuple[int | None, str]:
    """Run a command; return its status (None if it took too long) and the end of its output.

    At the limit, the command and all processes that it started are killed.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            errors="replace",
        )
    except OSError as error:
        return 127, str(error)
    late = threading.Event()

    def stop() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGTERM)  # on SIGTERM mpiexec ends its ranks; SIGKILL would leave them
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, stop)
    timer.start()
    tail: list[str] = []
    assert process.stdout is not None
    with process.stdout:
        for text in process.stdout:
            line(text.strip())
            tail = [*tail[-39:], text.rstrip()]
    process.wait()
    timer.cancel()
    return None if late.is_set() else process.returncode, "\n".join(tail)[-2000:]


def python(module: str, *arguments: str) -> list[str]:
    """Command that runs a module."""
    return [sys.executable, "-m", module, *arguments]


def default_path(gpu: str) -> Path:
    """Path of the results of this GPU and day."""
    name = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return ROOT / "benchmarks" / "results" / f"{name}-{date.today()}.jsonl"


def find_tool(name: str) -> str | None:
    """Path of a program of the CUDA toolkit; None if it is not found."""
    place = Path("/usr/local/cuda/bin") / name
    return shutil.which(name) or (str(place) if place.is_file() else None)
