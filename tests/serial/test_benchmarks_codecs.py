"""The comparison of codecs: its figures, tables and picture, on little data."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.codecs import baselines
from benchmarks.codecs.__main__ import main
from benchmarks.codecs.baselines import Contestant, contestants
from benchmarks.codecs.data import Data, real, synthetic
from benchmarks.codecs.measure import Row, errors, measure
from benchmarks.codecs.output import BEGIN, END, about, markdown, replace_section, write_json
from benchmarks.codecs.plot import draw


def row(codec="mpc", data="waves, float32", **changes):
    fields = {
        "data": data,
        "codec": codec,
        "family": "lossless",
        "ours": True,
        "smooth": True,
        "nbytes": 1000,
        "encoded_nbytes": 400,
        "error": 0.0,
        "psnr": math.inf,
        "sound": True,
        "encode": 2.5,
        "decode": 0.0625,
    }
    return Row(**(fields | changes))


COPY = row("numpy copy", family="copy", encoded_nbytes=1000, encode=12.0, decode=11.0)
LOSSY = {"family": "fixed rate", "error": 0.5, "psnr": 61.25}
ROWS = [
    COPY,
    row("zfpy rate=8, 1-D", ours=False, **LOSSY),
    row("zfp:rate=8, 1-D", encode_gain=12.5, decode_gain=8.0, **LOSSY),
    row("int8", family="bounded", error=0.1, psnr=50.0),
    row(),
    row("lz4", ours=False, encoded_nbytes=1000),
    row("mpc", "weights, bfloat16", smooth=False),
]


def test_errors_are_those_of_finite_values():
    array = np.array([0, 1, 2, np.nan, np.inf], "f4")
    assert errors(array, array) == (0.0, math.inf)
    error, psnr = errors(array, np.array([0, 1, 2.5, 7, 7], "f4"))
    assert error == 0.5
    assert psnr == pytest.approx(20 * math.log10(2 / math.sqrt(0.25 / 3)))
    assert errors(array[3:], array[3:]) == (0.0, math.inf)


def test_every_row_is_measured_and_sound():
    waves = next(synthetic(4096))
    rows = measure(waves, contestants(1), repeats=1)
    names = [r.codec for r in rows]
    assert names[0] == "numpy copy"
    assert {"zfp:rate=8, 1-D", "mpc", "lossless", "szp:abs=1e-3", "szp:rel=1e-3", "int4"} <= set(names)
    assert len(names) == len(set(names))
    for r in rows:
        assert r.sound, r
        assert r.nbytes == 16384
        assert r.encoded_nbytes > 0
        assert min(r.encode, r.decode) > 0
        assert (r.error == 0) == (r.family in ("lossless", "copy"))
    zfp = next(r for r in rows if r.codec == "zfp:rate=8, 1-D")
    assert zfp.ratio == pytest.approx(4, rel=0.1)
    assert 0 < zfp.error < 1e-2


def test_speeds_are_compared_with_the_rival():
    pytest.importorskip("zfpy")
    rows = {r.codec: r for r in measure(next(synthetic(4096)), contestants(1), repeats=1)}
    own, theirs = rows["zfp:rate=16, 1-D"], rows["zfpy rate=16, 1-D"]
    assert own.encode_gain == own.encode / theirs.encode
    assert own.decode_gain == own.decode / theirs.decode
    assert theirs.encode_gain is None
    assert own.psnr == pytest.approx(theirs.psnr)


def test_a_lossless_codec_that_changes_a_bit_is_wrong():
    array = np.arange(100.0)
    liar = Contestant("liar", "lossless", False, lambda a: (a.tobytes, lambda stream: array + 1))
    _, wrong = measure(Data("numbers", array, True), [liar], repeats=1)
    assert (wrong.sound, wrong.error) == (False, 1.0)
    assert "Wrong results: liar on numbers, float64." in markdown([COPY, wrong], about(1))


def test_absent_packages_are_left_out(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(baselines, "importlib", SimpleNamespace(import_module=absent))
    assert set(baselines.missing()) >= {"zfpy", "blosc2", "lz4"}
    assert all(c.ours for c in contestants(3))


def test_blocks_have_the_dimensions_of_the_array():
    names = {ndim: [c.name for c in contestants(ndim) if c.name.startswith("zfp:")] for ndim in (1, 3)}
    assert names[1] == ["zfp:rate=8, 1-D", "zfp:rate=16, 1-D"]
    assert len(names[3]) == 4
    assert "zfp:rate=8, n-D" in names[3]


def test_real_data_are_read_where_they_are(tmp_path):
    assert list(real(tmp_path)) == []
    np.arange(512 * 512, dtype="f4").tofile(tmp_path / "vorticity.512_512")
    (data,) = real(tmp_path, most_nbytes=20_000)
    assert (data.label, data.array.shape, data.smooth) == ("vorticity 2-D, float32", (9, 512), True)


def test_markdown_has_a_table_for_each_family():
    text = markdown(ROWS, about(1))
    assert "copy by NumPy runs at 12.0 to 12.0 GB/s" in text
    assert "| codec | waves, float32 | weights, bfloat16 |" in text
    assert "| **mpc** | 2.50, 2.50 / 0.062 | 2.50, 2.50 / 0.062 |" in text
    assert "| lz4 | 1.00, 2.50 / 0.062 | - |" in text
    assert "| **zfp:rate=8, 1-D** | 61.2, 2.50 / 0.062 (12.5x / 8.0x) |" in text
    assert "| **int8** | 2.5, 50.0, 2.50 / 0.062 |" in text
    for part in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in part.splitlines()}) == 1


def test_a_section_of_a_readme_is_replaced(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for text in ("new\n", "newer\n"):
        replace_section(readme, text)
        assert readme.read_text() == f"before\n{BEGIN}\n{text}{END}\nafter\n"
    readme.write_text(BEGIN)
    with pytest.raises(ValueError, match="has no lines"):
        replace_section(readme, "new")
    assert readme.read_text() == BEGIN


def test_json_is_json(tmp_path):
    write_json(ROWS, about(3), tmp_path / "out.json")
    result = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert result["versions"]["numpy"] == np.__version__
    assert [r["ratio"] for r in result["rows"]] == [r.ratio for r in ROWS]
    assert result["rows"][0]["psnr"] is None


def test_the_picture_names_every_codec(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    draw(ROWS, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000
    encode, legend = figures[0].axes[0], figures[0].axes[6].get_legend()
    assert (encode.get_title(), encode.get_ylabel()) == ("encode: lossless, fields", "ratio")
    assert [text.get_text() for text in legend.get_texts()] == ["mpc", "lz4"]


@pytest.mark.exhaustive
def test_the_command_writes_what_it_is_asked_for(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}{END}")
    options = ["--quick", "--values", "1000", "--data", str(tmp_path / "none"), "--readme", str(readme)]
    options += ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert "no real data" in done.stderr
    assert "smooth + noise, float64" in done.stdout
    assert "| codec | smooth + noise, float32 |" in readme.read_text()
    assert len(json.loads((tmp_path / "out.json").read_text())["rows"]) > 30
    assert (tmp_path / "out.png").exists()
