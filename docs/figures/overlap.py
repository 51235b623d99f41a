"""Chunks of one message in time, encoded, sent and decoded; writes ``overlap.svg`` beside this file."""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
#: Row from the top, name, and how long a chunk takes there.
STAGES = [("encode, sender", 0.7, "#7fb2e5"), ("wire", 1.0, "#b59fd0"), ("decode, receiver", 0.6, "#8fc98a")]
CHUNKS, PLAIN = 5, 2.2


def main():
    figure, axes = plt.subplots(figsize=(8, 2.3))
    free = [0.0] * len(STAGES)
    for chunk in range(CHUNKS):
        ready = 0.0
        for row, (_, seconds, color) in enumerate(STAGES):
            begin = max(ready, free[row])
            ready = free[row] = begin + seconds
            axes.barh(row, seconds, left=begin, height=0.6, color=color, edgecolor="white")
            axes.text(begin + seconds / 2, row, chunk + 1, ha="center", va="center", fontsize=8)
    plain = len(STAGES) + 0.3
    axes.barh(plain, CHUNKS * PLAIN, height=0.6, color="#d5d8db", edgecolor="white")
    axes.text(CHUNKS * PLAIN / 2, plain, "plain MPI, the same message", ha="center", va="center", fontsize=8)
    axes.set_yticks([*range(len(STAGES)), plain], [*(name for name, *_ in STAGES), "wire"], fontsize=8)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_xlabel("time", fontsize=8, loc="right")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    mpl.rcParams["svg.hashsalt"] = "compcoll"
    figure.savefig(HERE / "overlap.svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    plt.close(figure)


main()
