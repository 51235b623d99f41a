"""The comparison of codecs: its figures, tables and picture, on small data."""

import json
import math
import re

import numpy as np
import pytest
from click.testing import CliRunner

import compcoll
from benchmarks.codecs.__main__ import main
from benchmarks.codecs.baselines import Contestant, contestants
from benchmarks.codecs.data import Data, synthetic
from benchmarks.codecs.measure import errors, measure
from benchmarks.codecs.output import _speed, about, markdown
from benchmarks.codecs.page import coded, ring, snr
from benchmarks.codecs.psnr import points
from benchmarks.report import psnr, workloads
from compcoll.frame import HEADER_NBYTES


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


def test_the_command_writes_what_it_is_asked_for(tmp_path):
    options = ["--quick", "--values", "1000", "--data", str(tmp_path / "none")]
    options += ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    assert "no real data" in done.stderr
    assert "smooth + noise, float64" in done.stdout
    result = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    text = "\n".join(workloads.codecs([result]))
    assert "| codec | smooth + noise, float32 |" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
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


def rough_field():
    x = np.random.default_rng(0).standard_normal((16, 24, 40)).cumsum(0).cumsum(1).cumsum(2)
    return Data("rough", x.astype("f4"), True)


def test_bits_and_psnr_of_zfp_are_those_of_zfpy():
    zfpy = pytest.importorskip("zfpy")
    array = rough_field().array
    rows = {row["codec"]: row["points"] for row in points(rough_field())}
    for codec, given in (("zfp", array.reshape(-1)), ("zfp, 3-d", array)):
        assert len(rows[codec]) > 8
        assert rows[codec][0]["psnr"] < 60
        assert rows[codec][-1]["psnr"] > 95
        for point in rows[codec]:
            rate = float(point["spec"].removeprefix("zfp:rate="))
            stream = zfpy.compress_numpy(given, rate=rate, write_header=False)
            kind = zfpy.dtype_to_ztype(given.dtype)
            error = given - zfpy._decompress(stream, kind, given.shape, rate=rate).astype("f8")
            expected = 20 * np.log10(np.ptp(given.astype("f8")) / np.sqrt(np.mean(error**2)))
            assert point["psnr"] == pytest.approx(expected, abs=1e-6), point
            assert point["bits"] == 8 * (HEADER_NBYTES + len(stream)) / array.size, point


def test_bits_at_a_psnr_lie_between_two_specs(tmp_path):
    runs = [{"rows": points(rough_field())}]
    line = next(line for line in psnr.table(runs) if line.startswith("| rough, float32 | 75 |"))
    cells = [float(cell.strip(" *")) for cell in line.split("|")[3:-1]]
    for codec, bits in zip(("zfp", "zfp, 3-d", "bfp", "szp"), cells, strict=True):
        pairs = [(p["psnr"], p["bits"]) for r in runs[0]["rows"] if r["codec"] == codec for p in r["points"]]
        low, high = max(p for p in pairs if p[0] <= 75), min(p for p in pairs if p[0] >= 75)
        assert low[1] - 0.05 <= bits <= high[1] + 0.05
    psnr.figure(runs, tmp_path / "psnr.png")
    assert (tmp_path / "psnr.png").read_bytes().startswith(b"\x89PNG")


def test_errors_of_a_ring_add_up():
    codec, array = compcoll.codec("int8"), np.random.default_rng(0).standard_normal(1 << 14).astype("f4")
    exact, computed = ring(codec, array, 4)
    assert np.allclose(exact, sum(np.roll(array, r * array.size // 4).astype("f8") for r in range(4)))
    assert 30 < snr(exact, computed) < snr(array, coded(codec, array)) - 1
