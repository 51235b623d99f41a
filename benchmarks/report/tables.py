"""Tables of the report, as lines of Markdown."""

from __future__ import annotations

from ..osu.timing import CONTROL

__all__ = ["CODECS", "FEW", "gains", "link", "speedups", "steps"]

#: Operations of the benchmarks that tables of pages show, and MPI's names for them.
OPERATIONS = {
    "alltoall": "Alltoall",
    "allgather": "Allgather",
    "bcast": "Bcast",
    "reduce_scatter": "Reduce_scatter_block",
    "allreduce": "Allreduce",
}
#: Rows of tables in their order, and those of a small table.
CODECS = ("lossless", "int8", "zfp:rate=8", "bfp:bits=7", "gloo")
FEW = ("lossless", "bfp:bits=7")


def link(run: dict) -> str:
    """Hosts and link of a run, such as ``2 hosts, 1 Gb/s``, from its command."""
    words = run["command"].split()
    hosts, gbit = (words[words.index(name) + 1] for name in ("--hosts", "--gbit"))
    ranks = f" of {words[words.index('--ppn') + 1]} ranks" if "--ppn" in words else ""
    cores = ", shared cores" if "--shared-cores" in words else ""
    return f"one host{ranks}" if gbit == "0" else f"{hosts} hosts{ranks}, {gbit} Gb/s{cores}"


def speedups(runs: list[dict]) -> list[str]:
    """Lines of a table with a row for each codec and size."""
    lines = [
        "| hosts and link | operation | message | codec | plain MPI, ms | of a processor | ms "
        "| of a processor | speed-up | ratio | error | bound |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for run in runs:
        plain = {row["nbytes"]: times(row) for row in run["rows"] if row["name"] == "mpi"}
        for row in run["rows"]:
            if row["name"] == "mpi":
                continue
            error, bound = ("-" if row[key] is None else f"{row[key]:.2g}" for key in ("error", "bound"))
            spread = f" +- {row['spread']:.2f}" if row.get("spread") is not None else ""
            unchanged = not row["accelerated"] and row["name"] not in (CONTROL, "gloo")
            name = f"{row['name']}: plain MPI" if unchanged else row["name"]
            lines.append(
                f"| {link(run)} | {run['operation']} | {size(row['nbytes'])} | {name} "
                f"| {plain[row['nbytes']]} | {times(row)} "
                f"| {row['speedup']:.2f}{spread} | {row['ratio']:.2f} | {error} | {bound} |"
            )
    return lines


def gains(runs: list[dict], links: tuple[str, ...] = (), names: tuple[str, ...] = CODECS) -> list[str]:
    """Lines of a table with a row for each link and codec, and a column for each operation."""
    lines = [
        f"| link | codec | {' | '.join(OPERATIONS.values())} |",
        "| --- | --- |" + " ---: |" * len(OPERATIONS),
    ]
    found = {(gbit(run), run["operation"], row["name"]): row for run in runs for row in run["rows"]}
    for rate in links or dict.fromkeys(map(gbit, runs)):
        plain = [f"{1e3 * found[rate, op, 'mpi']['seconds']['median']:.1f}" for op in OPERATIONS]
        lines.append(f"| {rate} Gb/s | plain MPI, ms | {' | '.join(plain)} |")
        for name in names:
            cells = [found.get((rate, op, name)) for op in OPERATIONS]
            if all(cells):
                label = "none, gloo" if name == "gloo" else f"`{name}`"
                text = " | ".join(f"{cell['speedup']:.2f}" for cell in cells if cell)
                lines.append(f"| {rate} Gb/s | {label} | {text} |")
    return lines


def gbit(run: dict) -> str:
    """Gb/s of the link, as the command has it."""
    words = run["command"].split()
    return words[words.index("--gbit") + 1]


def times(row: dict) -> str:
    """Two cells: milliseconds of a call, and its processor milliseconds."""
    busy = row.get("processor_seconds")
    return f"{1e3 * row['seconds']['median']:.2f} | {'-' if busy is None else f'{1e3 * busy:.2f}'}"


def steps(runs: list[dict]) -> list[str]:
    """Lines of a table of training steps."""
    lines = [
        "| training | travels as | codec | ms | of a processor | speed-up over gloo |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for run in runs:
        for row in run["rows"]:
            lines.append(
                f"| {run['way']} | {run['travels']} | {row['name']} | {1e3 * row['seconds']:.0f} "
                f"| {1e3 * row['processor_seconds']:.0f} | {row['speedup']:.2f} |"
            )
    return lines


def size(nbytes: float) -> str:
    """A number of bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024 or unit == "MiB":
            break
        nbytes /= 1024
    return f"{nbytes:g} {unit}"
