"""Backward passes, and the times when their messages are in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Pass", "draw", "share_inside"]


@dataclass
class Pass:
    """One backward pass.

    Attributes
    ----------
    start, gradients, end : float
        Times of its start, of the last gradient, and of the completion of all buckets.
    buckets : list
        For each bucket its bytes, and the times at which its allreduce started and completed.
    """

    start: float = 0.0
    gradients: float = 0.0
    end: float = 0.0
    buckets: list[list[float]] = field(default_factory=list)

    def relative(self) -> Pass:
        """Copy with all times relative to the start."""
        buckets = [[nbytes, begin - self.start, end - self.start] for nbytes, begin, end in self.buckets]
        return Pass(0.0, self.gradients - self.start, self.end - self.start, buckets)


def share_inside(one: Pass) -> float:
    """Share of the time with an allreduce in flight that was before the last gradient."""
    whole = inside = 0.0
    until = one.start
    for _, begin, end in sorted(one.buckets, key=lambda bucket: bucket[1]):
        begin = max(begin, until)
        if end > begin:
            whole += end - begin
            inside += max(0.0, min(end, one.gradients) - begin)
            until = end
    return inside / whole if whole else 0.0


def draw(passes: dict[str, Pass], path: str) -> None:
    """Draw a bar for each variant's backward pass, and below it a bar for each bucket."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(passes), 1, figsize=(8, 1.5 * len(passes) + 0.6), layout="constrained", sharex=True, squeeze=False
    )
    for panel, (name, one) in zip(panels[:, 0], passes.items(), strict=True):
        panel.barh(0, 1e3 * one.gradients, color="0.6")
        panel.axvline(1e3 * one.gradients, color="black", linewidth=0.8, linestyle="--")
        for i, (nbytes, begin, end) in enumerate(one.buckets):
            panel.barh(i + 1, 1e3 * (end - begin), left=1e3 * begin, color=f"C{i % 10}")
            panel.text(1e3 * begin, i + 1, f" {nbytes / 2**20:.0f} MiB", va="center", fontsize=6)
        names = ["backward", *(f"bucket {i}" for i in range(len(one.buckets)))]
        panel.set_yticks(range(len(names)), names, fontsize=7)
        panel.set_title(f"{name}: {share_inside(one):.0%} inside the backward pass", fontsize=9)
        panel.invert_yaxis()
    panels[-1, 0].set_xlabel("ms since the backward pass began")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
