"""Tables of the report on what uses the codecs: checkpoints, differences, transforms, hooks of torch."""

from __future__ import annotations

import numpy as np

__all__ = ["checkpoints", "differences", "hooks", "losses", "transforms", "weight_sync"]

#: Names of the studies of `benchmarks.training.study`.
_STUDIES = {
    "fsdp": "FSDP2",
    "ddp": "DDP, parameters coded as gradients",
    "dp x pp": "data and pipeline parallel",
}


def checkpoints(runs: list[dict]) -> list[str]:
    """Lines of a table: seconds of saving and loading, and the ratio of sizes."""
    lines = ["| | save, s | load, s | ratio |", "| --- | ---: | ---: | ---: |"]
    for row in runs[0]["rows"]:
        lines.append(f"| {row['name']} | {row['save']:.2f} | {row['load']:.2f} | {row['ratio']:.2f} |")
    return lines


def differences(runs: list[dict]) -> list[str]:
    """Lines of a table: share of words that differ; ratio, and GB/s of encoding / decoding of each coder."""
    rows = runs[0]["rows"]
    coders = [name for name, value in rows[0].items() if isinstance(value, dict)]
    lines = [f"| from, to | differ | {' | '.join(coders)} |", f"| --- {'| ---: ' * (1 + len(coders))}|"]
    for row in rows:
        cells = (
            f"{one['ratio']:.1f}x, {one['encode_gbs']:.1f} / {one['decode_gbs']:.1f}"
            for one in (row[name] for name in coders)
        )
        lines.append(f"| {row['name']} | {row['differ']:.1%} | {' | '.join(cells)} |")
    return lines


def transforms(runs: list[dict]) -> list[str]:
    """Lines of a table: error of a transform there and back, and its milliseconds on each link."""
    commands = (run["command"].split() for run in runs)
    gbits = [words[words.index("--gbit") + 1] for words in commands]
    lines = [
        f"| | error | {' | '.join(f'{gbit} Gb/s, ms' for gbit in gbits)} |",
        f"| --- {'| ---: ' * (1 + len(gbits))}|",
    ]
    for rows in zip(*(run["rows"] for run in runs), strict=True):
        name = "plain" if rows[0]["name"] == "mpi" else f"`{rows[0]['name']}`"
        times = " | ".join(f"{1e3 * row['seconds']:.1f}" for row in rows)
        lines.append(f"| {name} | {rows[0]['error']:.1e} | {times} |")
    return lines


def hooks(runs: list[dict]) -> list[str]:
    """Lines of a table of training steps beside gloo: megabytes through a host's port, and seconds."""
    lines = [
        "| training | gradients, parameters | MB through a port | s | speed-up over gloo |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for run in runs:
        for name, row in run["rows"].items():
            way, variant = name.split(" ", 1)
            plain = run["rows"][f"{way} gloo"]["seconds"]
            lines.append(
                f"| {way.upper()} | {_variant(variant)} | {row['port_mb']:.1f} | {row['seconds']:.2f} "
                f"| {plain / row['seconds']:.2f} |"
            )
    return lines


def _variant(text: str) -> str:
    """A variant of `benchmarks.training.hooks` in words, such as ``bfp:bits=8, raw, two levels``."""
    if text == "gloo":
        return "gloo"
    if text.startswith("backend:"):
        return f"backend `compcoll`, `{text.removeprefix('backend:')}`"
    codecs, _, levels = text.partition("@")
    words = [f"`{codec}`" for codec in codecs.split("+")]
    return ", ".join([*words, *([{"1": "one level", "2": "two levels"}[levels]] if levels else [])])


def losses(runs: list[dict]) -> list[str]:
    """Lines of a table: validation losses above those of ``lossless``, and their spread over seeds."""
    runs = [row for run in runs for row in run["rows"]]
    studies = list(dict.fromkeys(run["study"] for run in runs))
    lines = [
        f"| codec | ratio | {' | '.join(_STUDIES.get(study, study) for study in studies)} |",
        f"| --- {'| ---: ' * (1 + len(studies))}|",
    ]
    final = {(run["study"], run["policy"], run["seed"]): run["curve"][-1][1] for run in runs}
    for policy in dict.fromkeys(run["policy"] for run in runs):
        if policy in ("gloo", "lossless"):
            continue
        own = [run for run in runs if run["policy"] == policy]
        cells = [_gap(final, study, policy) for study in studies]
        ratio = own[0]["raw_nbytes"] / own[0]["wire_nbytes"]
        lines.append(f"| `{policy}` | {ratio:.2f} | {' | '.join(cells)} |")
    return lines


def _gap(final: dict[tuple[str, str, int], float], study: str, policy: str) -> str:
    """Mean and standard deviation over seeds of the loss above that of ``lossless``."""
    seeds = [seed for one, other, seed in final if (one, other) == (study, policy)]
    gaps = [final[study, policy, seed] - final[study, "lossless", seed] for seed in seeds]
    spread = f" ± {np.std(gaps, ddof=1):.2f}" if len(gaps) > 1 else ""
    return f"{np.mean(gaps):.2f}{spread}" if gaps else ""


def weight_sync(runs: list[dict]) -> list[str]:
    """Lines of a table: seconds and ratio of ways to send a model's weights to another host."""
    lines = ["| | s | ratio |", "| --- | ---: | ---: |"]
    return [*lines, *(f"| {r['name']} | {r['seconds']:.2f} | {r['ratio']:.2f} |" for r in runs[0]["rows"])]
