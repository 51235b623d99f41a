"""The way of a call, from the program to the wire and back; writes ``one_call.svg`` beside this file."""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INK, GREY = "#22303c", "#66727d"
#: From top to bottom: label, color, upper and lower edge.
BANDS = [
    ("the program", "#f4f1ea", 11.15, 10.15),
    ("layer\nC++", "#e3eef8", 10.0, 6.55),
    ("decision\nPython,\nonce", "#e9f3e4", 6.4, 4.1),
    ("engine\nC++, no GIL", "#fbeadd", 3.95, 1.15),
    ("MPI", "#ece6f2", 1.0, 0.0),
]
#: Left, lower edge, width, height; title, and the files that do it.
BOXES = {
    "mpi4py": (2.0, 10.35, 2.4, 0.6, "mpi4py's methods", ""),
    "others": (4.8, 10.35, 2.6, 0.6, "C, Fortran, other libraries", ""),
    "slots": (2.0, 9.0, 2.4, 0.8, "its slots, rewritten", "csrc/layer/hook.cpp"),
    "names": (4.8, 9.0, 2.6, 0.8, "MPI's names, preloaded", "csrc/preload/preload.cpp"),
    "entry": (
        *(2.0, 7.85, 4.4, 0.8, "1 entry: small, or not marked?"),
        "csrc/layer/entry.cpp, csrc/layer/message_entry.cpp",
    ),
    "plain": (7.05, 7.85, 1.5, 0.8, "MPI, or a tool", ""),
    "arguments": (2.0, 6.7, 2.0, 0.8, "2 arguments: blocks", "csrc/layer/arguments.cpp"),
    "plan": (4.2, 6.7, 1.8, 0.8, "3 plan: looked up", "csrc/layer/plan.cpp"),
    "start": (6.6, 6.7, 1.95, 0.8, "4 start: by the engine", "csrc/layer/start.cpp"),
    "trials": (2.0, 5.4, 2.0, 0.8, "auto: trials, table", "compcoll/policy/"),
    "policy": (4.2, 5.4, 2.2, 0.8, "codec and algorithm", "compcoll/comm/prepare.py"),
    "trace": (2.0, 4.25, 2.0, 0.8, "algorithm, traced once", "compcoll/algorithms/"),
    "cache": (4.2, 4.25, 2.2, 0.8, "schedule", "compcoll/schedule/cache.py"),
    "run": (2.0, 2.75, 6.55, 0.9, "runs what is ready, chunk by chunk", "csrc/engine/run.cpp"),
    "encode": (2.0, 1.35, 2.6, 0.9, "encode, header, checksum", "csrc/engine/coding.cpp"),
    "send": (5.4, 1.35, 2.6, 0.9, "MPI_Isend of frames", "csrc/engine/mpi.cpp"),
    "recv": (8.75, 1.35, 2.55, 0.9, "MPI_Irecv, MPI_Test", "csrc/engine/mpi.cpp"),
    "decode": (8.75, 2.75, 2.55, 0.9, "verify, decode into the buffer", "csrc/engine/coding.cpp"),
    "completion": (8.75, 6.7, 2.55, 0.8, "5 completion, comm.report", "csrc/layer/pending_operation.cpp"),
    "waits": (8.75, 7.85, 2.55, 0.8, "waits, tests, statuses", "csrc/layer/wait.cpp"),
    "done": (8.75, 10.35, 2.55, 0.6, "the call is complete", ""),
}
ARROWS = [
    ("mpi4py", "slots", ""),
    ("others", "names", ""),
    ("slots", "entry", ""),
    ("names", "entry", ""),
    ("entry", "plain", "yes"),
    ("entry", "arguments", "no"),
    ("arguments", "plan", ""),
    ("plan", "start", "known"),
    ("plan", "policy", "new"),
    ("trials", "policy", ""),
    ("policy", "cache", ""),
    ("trace", "cache", ""),
    ("start", "run", ""),
    ("run", "encode", ""),
    ("encode", "send", ""),
    ("recv", "decode", ""),
    ("decode", "completion", ""),
    ("completion", "waits", ""),
    ("waits", "done", ""),
]


def draw_box(axes, left, bottom, width, height, title, file):
    shape = "round,pad=0,rounding_size=0.07"
    axes.add_patch(FancyBboxPatch((left, bottom), width, height, shape, fc="white", ec=INK, lw=1))
    middle = left + width / 2, bottom + height / 2
    axes.text(
        middle[0], middle[1] + (0.15 if file else 0), title, ha="center", va="center", fontsize=8.5, color=INK
    )
    axes.text(
        middle[0],
        middle[1] - 0.2,
        file,
        ha="center",
        va="center",
        fontsize=6.6,
        color=GREY,
        family="monospace",
    )


def ends(first, second):
    """Both ends of an arrow between two boxes: the middles of the edges that face each other."""
    (x, y, w, h), (u, v, p, q) = BOXES[first][:4], BOXES[second][:4]
    if v + q <= y or y + h <= v:
        middle = (max(x, u) + min(x + w, u + p)) / 2
        return ((middle, y), (middle, v + q)) if v < y else ((middle, y + h), (middle, v))
    return (x + w, y + h / 2), (u, v + q / 2)


def draw_arrow(axes, start, stop, label=""):
    axes.add_patch(
        FancyArrowPatch(
            start, stop, arrowstyle="-|>", mutation_scale=9, lw=1, color=INK, shrinkA=0, shrinkB=0
        )
    )
    x, y = (start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2
    beside = {"ha": "left", "va": "center"} if start[0] == stop[0] else {"ha": "center", "va": "bottom"}
    axes.text(
        x + 0.06 * (start[0] == stop[0]),
        y + 0.03,
        label,
        fontsize=6.6,
        color=GREY,
        **beside,
    )


def main():
    for *_, file in BOXES.values():
        for path in filter(None, file.split(", ")):
            if not (ROOT / path).exists():
                raise FileNotFoundError(f"{path}, which one_call.py names, is not in the repository")
    figure, axes = plt.subplots(figsize=(10.4, 9))
    axes.set(xlim=(0, 11.5), ylim=(0, 11.5))
    axes.axis("off")
    for label, color, top, bottom in BANDS:
        axes.add_patch(Rectangle((0, bottom), 11.5, top - bottom, fc=color, ec="none"))
        axes.text(0.15, (top + bottom) / 2, label, va="center", fontsize=9, color=INK, weight="bold")
    for box in BOXES.values():
        draw_box(axes, *box)
    for first, second, label in ARROWS:
        draw_arrow(axes, *ends(first, second), label)
    for x, text in ((5.05, "a rank as sender"), (10.0, "its peer as receiver")):
        axes.text(x, 11.33, text, ha="center", va="center", fontsize=9, color=INK, weight="bold")
    draw_arrow(axes, (6.4, 4.65), (7.1, 6.7))
    draw_arrow(axes, (6.7, 1.35), (6.7, 0.62))
    draw_arrow(axes, (10.0, 0.62), (10.0, 1.35))
    axes.plot([2.1, 11.3], [0.56, 0.56], color=INK, lw=3, solid_capstyle="round")
    axes.text(6.7, 0.2, "the wire: frames on a private communicator", ha="center", fontsize=8, color=INK)
    mpl.rcParams["svg.hashsalt"] = "compcoll"
    figure.savefig(HERE / "one_call.svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    plt.close(figure)


main()
