"""The comparison of codecs: its figures, tables and picture, on small data."""

import json
import math
import re

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.codecs.__main__ import main
from benchmarks.codecs.baselines import Contestant, contestants
from benchmarks.codecs.data import Data, synthetic
from benchmarks.codecs.measure import errors, measure
from benchmarks.codecs.output import BEGIN, END, _speed, about, markdown, replace_section


def test_errors_are_those_of_finite_values():
    array = np.array([0, 1, 2, np.nan, np.inf], "f4")
    assert errors(array, array) == (0.0, math.inf)
    error, psnr = errors(array, np.array([0, 1, 2.5, 7, 7], "f4"))
    assert error == 0.5
    assert psnr == pytest.approx(20 * math.log10(2 / math.sqrt(0.25 / 3)))
    assert errors(array[3:], array[3:]) == (0.0, math.inf)


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
    copy, wrong = measure(Data("numbers", array, True), [liar], repeats=1)
    assert (wrong.sound, wrong.error) == (False, 1.0)
    assert "Wrong results: liar on numbers, float64." in markdown([copy, wrong], about(1))


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


def test_the_command_writes_what_it_is_asked_for(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}{END}")
    options = ["--quick", "--values", "1000", "--data", str(tmp_path / "none"), "--readme", str(readme)]
    options += ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert "no real data" in done.stderr
    assert "smooth + noise, float64" in done.stdout
    text = readme.read_text()
    assert "| codec | smooth + noise, float32 |" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    result = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert result["versions"]["numpy"] == np.__version__
    assert len(result["rows"]) > 30
    for row in result["rows"]:
        assert row["sound"], row
        assert min(row["encode"], row["decode"]) > 0
        assert (row["error"] == 0) == (row["family"] in ("lossless", "copy")), row
    for name in ("zfp:rate=8, 1-D", "int8", "mpc"):
        row = next(row for row in result["rows"] if row["codec"] == name)
        assert f"{_speed(row['encode'])} / {_speed(row['decode'])}" in re.search(rf"\*\*{name}.*", text)[0]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
