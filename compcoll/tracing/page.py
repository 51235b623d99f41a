"""The report as one self-contained HTML file: ``compcoll report`` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from string import Template

from compcoll.tracing import findings, prediction
from compcoll.tracing.reader import Program
from compcoll.tracing.rows import Row, grouped, kind_of
from compcoll.tracing.tables import Table
from compcoll.tracing.words import nbytes_text, seconds_text

__all__ = ["write"]

#: A name, the parts of a bar, and the words after it.
_Bar = tuple[str, Mapping[str, float], str]
#: Bars of a figure.
_MOST = 32
#: Parts of bars: a colour that red-green colour-blind readers can distinguish, and the words of the legend.
_PARTS = {
    "encode": ("#0072b2", "encode"),
    "decode": ("#009e73", "decode"),
    "wait": ("#e69f00", "wait"),
    "other": ("#b8b8b8", "the rest of accelerated calls"),
    "MPI": ("#cc79a7", "calls that MPI served"),
    "before": ("#b8b8b8", "without compression"),
    "sent": ("#0072b2", "sent"),
}
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>compcoll report: $title</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 1.5em;
  color: #222; }
h1 { font-size: 1.5em; margin-bottom: .2em; overflow-wrap: anywhere; }
h2 { font-size: 1.15em; margin-top: 2.2em; }
.said { font-size: 1.1em; max-width: 60em; } .said p { margin: .4em 0; overflow-wrap: anywhere; }
.notes, .vain { background: #fff4e0; border-left: 4px solid #e69f00; padding: .5em 1em; margin: 1.2em 0; }
.vain h2 { margin-top: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1em 1em; color: #555; font-size: .9em; }
dd { margin: 0; overflow-wrap: anywhere; }
.totals { display: flex; flex-wrap: wrap; gap: 1em 2.5em; } .totals b { display: block; font-size: 1.5em; }
ul { padding-left: 1.2em; overflow-wrap: anywhere; }
.bar { display: flex; align-items: center; gap: .6em; margin: .25em 0; line-height: 1.2; }
.bar b { flex: 0 0 16em; text-align: right; font-weight: normal; overflow-wrap: anywhere; }
.bar div { flex: 1; display: flex; }
.bar i { height: 1em; } .bar span { white-space: nowrap; margin-left: .5em; line-height: 1; }
.legend span { display: inline-block; margin-right: 1em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .87em; font-variant-numeric: tabular-nums; }
td, th { padding: .22em .7em; text-align: right; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
td { white-space: nowrap; } td.l:nth-child(4) { white-space: normal; min-width: 12em; }
th { border-bottom: 2px solid #999; vertical-align: bottom; } td.l, th.l { text-align: left; }
tbody tr:hover { background: #f5f8fb; }
@media (max-width: 700px) {
  body { padding: 0 1em; } dl { display: block; } dt { font-weight: bold; }
  .bar { display: block; line-height: 1.5; } .bar b { display: block; text-align: left; }
}
</style>
</head>
<body>
<h1>$title</h1>
<div class="said">$said</div>
$notes
$vain
<div class="totals">$totals</div>
<dl>$facts</dl>
$reasons
<h2>Share of the run with such a call in flight</h2>
<p>Mean of ranks, of $run from the first call to the end of the last. Calls that overlap count once, so no bar
exceeds 100 %. Its parts are those of the calls' own times.</p>
$times
<h2>Bytes by operation and type</h2>
<p>Sums over all ranks.</p>
$bytes
<h2>Share of the run by rank</h2>
<p>In collective calls a rank that comes late waits least, and the others wait for it. perfetto.json has the
calls along the time.</p>
$ranks
$tables
</body>
</html>
""")


def write(program: Program, shown: Iterable[Table], path: Path) -> None:
    """Write the page of a program with calls; ``shown`` are the tables."""
    rows = grouped(program, lambda _, call: kind_of(call).name)
    longest = dict(sorted(rows.items(), key=lambda pair: -pair[1].mean))
    sent = {name: row for name, row in longest.items() if row.raw}
    ranks = grouped(program, lambda rank, _: f"rank {rank}")
    for name, row in ranks.items():
        row.ranks = [int(name.split()[1])]
    pairs: list[_Bar] = []
    for name, row in sent.items():
        pairs.append((name, {"before": row.raw}, nbytes_text(row.raw)))
        pairs.append(("", {"sent": row.wire}, f"{nbytes_text(row.wire)}, {row.ratio:.2f}x"))
    vain = _list(findings.VAIN, findings.in_vain(program))
    text = _PAGE.substitute(
        title=escape(program.title),
        said="".join(
            f"<p>{escape(one)}</p>" for one in (*findings.conclusion(program), *prediction.advice(program))
        ),
        notes=f'<div class="notes">{_list("", program.notes)}</div>' if program.notes else "",
        vain=f'<div class="vain">{vain}</div>' if vain else "",
        totals="".join(f"<div><b>{value}</b>{name}</div>" for name, value in _totals(program).items()),
        facts="".join(
            f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in findings.facts_of(program)
        ),
        reasons=_list(findings.REASONS, findings.reasons_of(program)),
        run=seconds_text(program.seconds),
        times=_bars(_times(longest, program.seconds), 1.0),
        bytes=_bars(pairs, max((max(row.raw, row.wire) for row in sent.values()), default=0)),
        ranks=_bars(_times(ranks, program.seconds), 1.0),
        tables="".join(map(_table, shown)),
    )
    path.write_text(text, encoding="utf-8")


def _totals(program: Program) -> dict[str, str]:
    (row,) = grouped(program, lambda *_: "all").values()
    return {
        "calls per rank": row.per_rank(),
        "accelerated": row.per_rank(accelerated=True),
        "bytes uncompressed, all ranks": nbytes_text(row.raw),
        "bytes sent, all ranks": nbytes_text(row.wire),
        "ratio": f"{row.ratio:.2f}",
        "from first to last call": seconds_text(program.seconds),
        "with calls in flight, slowest rank": seconds_text(row.slowest),
        "the same, mean of ranks": seconds_text(row.mean),
    }


def _times(rows: Mapping[str, Row], run: float) -> list[_Bar]:
    """Bars of shares of a run."""
    bars: list[_Bar] = []
    for name, row in rows.items():
        shares = row.shares(run)
        slowest = f", {seconds_text(row.slowest)} on the slowest rank" if len(row.ranks) > 1 else ""
        bars.append((name, shares, f"{sum(shares.values()):.0%}{slowest}"))
    return bars


def _bars(rows: list[_Bar], largest: float) -> str:
    """Horizontal bars, one in each row: its name, the parts side by side, and the words after them."""
    used = [name for name in _PARTS if any(name in parts for _, parts, _ in rows)]
    legend = "".join(
        f'<span><i style="background:{_PARTS[name][0]}"></i>{_PARTS[name][1]}</span>' for name in used
    )
    bars = "".join(
        f'<div class="bar"><b>{escape(name)}</b><div>{_parts(parts, largest)}<span>{words}</span></div></div>'
        for name, parts, words in rows[:_MOST]
    )
    more = f"<p>The first {_MOST} of {len(rows)}.</p>" if len(rows) > _MOST else ""
    return f'<p class="legend">{legend}</p>{bars}{more}'


def _parts(parts: Mapping[str, float], largest: float) -> str:
    # The longest bar leaves room for the words after it.
    return "".join(
        f'<i style="width:{65 * parts[name] / largest:.2f}%;background:{colour}"></i>'
        for name, (colour, _) in _PARTS.items()
        if parts.get(name)
    )


def _list(title: str, lines: list[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    heading = f"<h2>{title}</h2>" if title else ""
    return f"{heading}<ul>{items}</ul>" if lines else ""


def _table(table: Table) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{' class=l' * (i < table.left)}>{escape(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table><thead><tr>{cells("th", table.headings)}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )
