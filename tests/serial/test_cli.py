"""The command line: its output and its errors."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from terminal import words

import compcoll
from compcoll.cli import COMMANDS, launch
from compcoll.cli.measure import Measurement, Subject
from compcoll.cli.spec import Link
from compcoll.codecs.specs import default_specs
from compcoll.engine.cores import Cores


@pytest.fixture
def ramp(tmp_path):
    path = tmp_path / "ramp.npy"
    np.save(path, np.linspace(0, 1, 600, dtype=np.float32).reshape(10, 3, 4, 5))
    return path


class Halved(compcoll.Codec):
    """A lossy codec with a predictable error: it sends float16 values."""

    name = "halved"
    lossless = False
    dtypes = frozenset({np.dtype(np.float32)})

    def encode_payload(self, src, dst):
        payload = src.reshape(-1).astype(np.float16).view(np.uint8)
        dst[: payload.size] = payload
        return payload.size, 2.0**-11, (0, 0)

    def decode_payload(self, info, payload, dst):
        dst.reshape(-1)[:] = payload.view(np.float16)
        return 0


@pytest.fixture
def halved(monkeypatch):
    from compcoll.codecs import registry, specs

    monkeypatch.setitem(registry._known, "halved", Halved)
    yield Halved
    specs.codec.cache_clear()
    registry.of_frame.cache_clear()


def test_help_names_every_command(run):
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    for name in COMMANDS:
        said = run(name, "--help")
        assert said.exit_code == 0
        assert ("-n, --ranks INTEGER" in said.output) == (name in ("bench", "run", "tune"))
        assert ("-c, --codec SPEC" in said.output) == (name in ("codec", "run", "tune"))


def test_module_is_the_command_and_imports_nothing_heavy():
    code = (
        "import runpy, sys; sys.argv = ['compcoll', '--version']\n"
        "try:\n    runpy.run_module('compcoll', run_name='__main__')\n"
        "except SystemExit:\n"
        "    print([m for m in ('mpi4py.MPI', 'matplotlib', 'scipy', 'rich', 'cupy') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == [f"compcoll, version {compcoll.__version__}", "[]"]


def test_info_tells_versions_codecs_and_levels(run):
    facts = json.loads(run("info", "--json").output)
    assert facts["versions"]["compcoll"] == compcoll.__version__
    assert set(facts["codecs"]) == set(compcoll.codecs())
    assert (facts["codecs"]["raw"], facts["codecs"]["zfp"]) == ("lossless", "lossy")
    assert facts["processor"]["worker threads"].startswith(("none: ", "up to "))
    printed = run("info").output
    assert all(section in printed for section in facts)


@pytest.mark.parametrize(
    ("cores", "quota", "threads", "said"),
    [
        ({0, 1, 2, 3}, math.inf, None, "up to 3 with one rank"),
        ({0, 1, 2, 3}, 2.5, None, "up to 1 with one rank"),
        ({0, 1, 2, 3}, 1.5, None, "none: this process has a CPU quota of 1.5 cores"),
        ({2}, math.inf, None, "none: this process has one core"),
        ({2}, math.inf, "5", "5 on each rank (COMPCOLL_THREADS)"),
        ({0, 1}, math.inf, "0", "none (COMPCOLL_THREADS)"),
        ({0, 1}, math.inf, "x", "COMPCOLL_THREADS = 'x': not a whole number"),
    ],
)
def test_info_says_why_there_are_so_many_workers(run, monkeypatch, cores, quota, threads, said):
    monkeypatch.setattr("compcoll.engine.cores.cores_of_process", lambda: Cores(frozenset(cores), quota, 1))
    monkeypatch.setenv("COMPCOLL_THREADS", threads or "")
    assert json.loads(run("info", "--json").output)["processor"]["worker threads"].startswith(said)


def test_info_names_what_pip_installs_for_a_missing_package(run, monkeypatch):
    """The hint names the package itself: an extra of compcoll needs an index that has compcoll."""
    from compcoll.cli import info

    def version(package):
        raise info.PackageNotFoundError

    monkeypatch.setattr(info, "version", version)
    monkeypatch.setattr(info, "find_spec", lambda name: None)
    facts = json.loads(run("info", "--json").output)
    assert facts["versions"]["scipy"] == "missing: pip install scipy"
    assert facts["GPU"] == {"devices": "unknown without CuPy"}


@pytest.mark.parametrize(
    ("version", "of"), [("HYDRA build details:", "MPICH"), ("mpirun (Open MPI) 4.1.4", "Open MPI")]
)
def test_info_names_an_mpiexec_of_another_library(run, monkeypatch, tmp_path, version, of):
    from mpi4py import MPI

    from compcoll.cli import info

    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpiexec.chmod(0o755)
    monkeypatch.setattr(info, "find_mpiexec", lambda: str(mpiexec))
    told = json.loads(run("info", "--json").output)["MPI"]["mpiexec"]
    assert (f"({of}'s: " in told) == (of not in MPI.Get_library_version())


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (None, "compcoll/table-1, not there yet"),
        ("off", "none (COMPCOLL_TABLE=off)"),
        ("read", "compcoll/table-1, not there yet (COMPCOLL_TABLE=read)"),
        ("mine", "mine"),
        (
            "/proc/compcoll",
            "/proc/compcoll, not there yet, which cannot be written (/proc: No such file or directory)"
            ": set COMPCOLL_TABLE to another folder, or to off",
        ),
    ],
)
def test_info_names_the_tables_of_trials(run, tmp_path, monkeypatch, setting, says):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("COMPCOLL_TABLE", raising=False)
    (tmp_path / "mine").mkdir()
    if setting:
        monkeypatch.setenv("COMPCOLL_TABLE", str(tmp_path / "mine") if setting == "mine" else setting)
    facts = json.loads(run("info", "--json").output)
    assert facts["files"]["tables of trials"].removeprefix(f"{tmp_path}/") == says


def test_info_without_an_mpi_library(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    monkeypatch.delattr(sys.modules["mpi4py"], "MPI", raising=False)
    assert "pip install mpich" in json.loads(run("info", "--json").output)["MPI"]["library"]


def test_codec_measures_every_codec_by_default(run, ramp):
    about = json.loads(run("codec", ramp, "--json", "--seconds", "0.001").output)
    assert (about["dtype"], about["shape"], about["nbytes"]) == ("float32", [30, 4, 5], 2400)
    rows = {r["codec"]: r for r in about["results"]}
    assert list(rows) == default_specs(np.dtype(np.float32))
    assert rows["raw"]["lossless"]
    assert rows["raw"]["psnr"] is None
    assert rows["raw"]["max_error"] == 0
    assert rows["raw"]["ratio"] == pytest.approx(2400 / 2480)


def test_codec_prints_a_table_and_draws(run, ramp, tmp_path):
    """A figure with more codecs than markers is drawn."""
    plot = tmp_path / "out.png"
    result = run("codec", ramp, *["-c", "raw"] * 20, "--out", plot, "--seconds", "0.001")
    assert result.exit_code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "ramp.npy" in result.output
    assert "0, exact" in result.output


def test_lossy_codec_is_measured_as_it_is(halved):
    array = np.linspace(0, 1, 1001, dtype=np.float32)
    result = Subject(array).measure("halved", 0.001)
    error = array.astype(np.float64) - array.astype(np.float16)
    assert result.max_error == np.abs(error).max()
    assert result.psnr == pytest.approx(-10 * np.log10(np.mean(error**2)))
    assert result.ratio == pytest.approx(4004 / 2082)
    assert result.coded_as == "halved"
    assert not result.lossless
    assert min(result.encode_gbs, result.decode_gbs) > 0


@pytest.mark.parametrize(("sent", "error"), [(1e9, np.nan), (np.nan, np.nan), (np.inf, 0.0)])
def test_harm_to_what_is_not_finite_shows(halved, monkeypatch, sent, error):
    monkeypatch.setattr(Halved, "encode_payload", lambda self, src, dst: (0, 0.0, (0, 0)))
    monkeypatch.setattr(Halved, "decode_payload", lambda self, info, payload, dst: dst.fill(sent) or 0)
    result = Subject(np.full(8, np.inf, np.float32)).measure("halved")
    assert np.array_equal(result.max_error, error, equal_nan=True)


def test_dtype_and_shape_of_a_raw_file(run, tmp_path):
    path = tmp_path / "raw.bin"
    path.write_bytes(bytes(4 * 24))
    for text, dtype, shape in (
        ("bf16", "bfloat16", [48]),
        ("c8", "complex64", [12]),
        (">f4", "float32", [24]),
    ):
        about = json.loads(run("codec", path, "--dtype", text, "-c", "raw", "--json").output)
        assert (about["dtype"], about["shape"], about["nbytes"]) == (dtype, shape, 96)
    for text, shape in (("2x3x4", [2, 3, 4]), ("6,4", [6, 4]), ("24", [24])):
        result = run("codec", path, "--dtype", "f4", "--shape", text, "-c", "raw", "--json")
        assert json.loads(result.output)["shape"] == shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.bin"], "'missing.bin' does not exist"),
        (["seven.bin"], "give the type of its elements with --dtype"),
        (["seven.bin", "--dtype", "f4"], "7 bytes, which is not a multiple of the 4 bytes of float32"),
        (["seven.bin", "--dtype", "f3"], "'f3' is not a dtype"),
        (["seven.bin", "--dtype", "U1"], "'U1' is not supported"),
        (["seven.bin", "--dtype", "u1", "--shape", "2x4"], "7 elements, and the shape 2x4 8"),
        (["seven.bin", "--dtype", "u1", "--shape", "2x"], "'2x' is not a shape"),
        (["seven.bin", "--dtype", "u1", "--shape", "7x1x1x1"], "is not 1 to 3 positive dimensions"),
        (["seven.bin", "--dtype", "u1", "-c", "zap"], "unknown codec 'zap'"),
        (["seven.bin", "--dtype", "u1", "-c", "raw:rate=8"], "has no option 'rate'"),
        (["empty.bin", "--dtype", "u1"], "has no elements"),
        (["empty.npy", "--snr", "20"], "has no elements"),
        (["broken.npy"], "cannot be read as .npy"),
        (["broken.npz"], "cannot be read as .npz"),
        (["two.npz"], "holds 2 arrays, not one: a, b"),
        (["ramp.npy", "-c", "zfp:rate=40"], "zfp:rate=40: rate = 40 bits per value is more than the 32"),
        (["ramp.npy", "--error", "0"], "0.0 is not in the range 0<x<="),
        (["ramp.npy", "--snr", "inf"], "inf is not in the range 0<x<="),
        (["ramp.npy", "--error", "small"], "'small' is not a valid float"),
        (["ramp.npy", "--link", "10gib"], "'10gib' is not a bandwidth such as 10gbe"),
        (["ramp.npy", "--link", "10"], "a capital B counts bytes, a small one bits"),
        (["ramp.npy", "--link", "0GB/s"], "'0GB/s' is not a bandwidth"),
        (["text.npy"], "holds <U1, which is not supported; supported are int8, uint8"),
        (["ramp.npy", "--dtype", "f8"], "holds float32, not float64"),
    ],
)
def test_codec_says_what_is_wrong(run, ramp, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seven.bin").write_bytes(bytes(7))
    (tmp_path / "empty.bin").write_bytes(b"")
    for name in ("broken.npy", "broken.npz"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    np.save(tmp_path / "empty.npy", np.zeros((3, 0)))
    np.savez(tmp_path / "two.npz", a=np.arange(3), b=np.arange(3))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    result = run("codec", *arguments, "--seconds", "0.001")
    assert result.exit_code in (1, 2)
    assert message in words(result.output)
    assert isinstance(result.exception, SystemExit)


def test_speed_up_on_a_link():
    """The longer of coding and link counts in full, and a quarter of the other; memory is part of coding."""
    x = Measurement("codec", "codec", (9,), False, 4.0, 8, encode_gbs=10.0, decode_gbs=5.0)
    coding = 0.1 + 0.2 + 2 * 0.1
    assert x.speedup(1e9) == pytest.approx(1 / (coding + 0.25 / 4))
    assert x.speedup(1e8) == pytest.approx(10 / (2.5 + coding / 4))


@pytest.mark.parametrize(
    ("spellings", "gigabits"),
    [
        ("10GbE 10gbe 10GBE 10GigE 10Gbps 10gbit 10Gbit/s 10g 10G 10gb 10Gb/s 10gb/s 10 Gb/s 1.25GB/s", 10),
        ("1gb/s 1Gb/s 1000Mb/s 125MB/s 0.125GBps", 1),
        ("ndr200 NDR200 hdr 25GB/s 0.2Tb/s", 200),
    ],
)
def test_spellings_of_a_bandwidth(spellings, gigabits):
    for text in spellings.replace("10 Gb", "10_Gb").split():
        text = text.replace("_", " ")
        assert Link().convert(text, None, None) == (text, pytest.approx(1e9 * gigabits / 8)), text


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [("1gbe", 1.25e8), ("2.5gbe", 3.125e8), ("hdr", 25e9), ("1.25 GB/s", 1.25e9), ("400Mb/s", 5e7)],
)
def test_codec_predicts_for_a_link(run, ramp, text, bandwidth):
    arguments = ("codec", ramp, "-c", "raw", "--seconds", "0.001", "--link", text)
    (row,) = json.loads(run(*arguments, "--json").output)["results"]
    coding = bandwidth / 1e9 * sum(1 / row[f"{way}_gbs"] + 0.1 for way in ("encode", "decode"))
    wire = 1 / row["ratio"]
    assert row["speedup"] == {text: pytest.approx(1 / (max(coding, wire) + min(coding, wire) / 4))}
    assert f"At {text}: no codec of these pays." in run(*arguments).output
    slow = run("codec", ramp, "-c", "int8", "-c", "raw", "--seconds", "0.001", "--link", "10Mb/s").output
    assert re.search(r"At 10Mb/s: int8 makes .* about 3\.\d times as fast. Do not use: raw\.", words(slow))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ["codec", "NPY", "--error", "1e-3", "--out", "FILE"],
            "the figure cannot be written to .* Not a directory",
        ),
        (["codec", "NPY", "--out", "NPY"], "the figure cannot be written: .npy is none of"),
        (["run", "--trace", "FILE", "-n", "2", "NPY"], "the trace cannot be written to .* Not a directory"),
        (["report", "FOLDER", "--out", "FILE"], "the report cannot be written to .* Not a directory"),
    ],
)
def test_outputs_are_looked_at_first(run, ramp, tmp_path, monkeypatch, outside, command, says):
    """An output that cannot be written is refused before a measurement or a rank starts."""
    (tmp_path / "plain").write_text("no folder")
    monkeypatch.setattr(launch, "find_mpiexec", lambda: pytest.fail("ranks are started"))
    monkeypatch.setattr("compcoll.cli.measure.Subject", lambda *_: pytest.fail("it is measured"))
    places = {"FILE": tmp_path / "plain" / "file.png", "NPY": ramp, "FOLDER": tmp_path}
    result = run(*(places.get(word, word) for word in command))
    assert result.exit_code == 1
    assert re.search(says, words(result.output))


def test_bench_looks_at_its_outputs_first(ramp):
    done = bench("Alltoall", "--plot", ramp / "file.png", "-n", 2)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("cannot be written to") == 1
    assert "Traceback" not in done.stderr


def bench(*options, **more):
    """Run `compcoll bench` on ranks that it starts."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}
    command = [sys.executable, "-m", "compcoll", "bench", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=outside, **more)


@pytest.mark.exhaustive
def test_bench_takes_its_options_anywhere_and_arrays_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000, dtype=">i2"))
    data = ("--data", tmp_path / "x.npy", "--sizes", "4K", "--iters", 3, "--min-nbytes", "1K")
    done = bench("Allgather", "--codec", "none,lossless", "-n", 3, *data)
    assert done.returncode == 0, done.stderr
    assert "# allgather, 3 ranks on 1 nodes, int16 of " in done.stdout
    *_, plain, coded, remark = done.stdout.splitlines()
    assert [row.split()[:2] for row in (plain, coded)] == [["4096", "mpi"], ["4096", "lossless"]]
    assert remark == (
        "# All 3 ranks share this node, where no codec pays. Start it on two nodes: "
        "mpiexec -n 3 -hosts A,B compcoll bench allgather"
    )
    other = bench("allgather", *data, "--dtype", "f4")
    assert other.returncode == 1
    assert "holds >i2, not float32" in other.stderr
    wrong = bench("alltoall", "--rank", 4)
    assert wrong.returncode == 2
    assert "Usage: compcoll bench alltoall" in wrong.stderr


@pytest.mark.exhaustive
def test_sizes_are_those_of_a_ranks_buffer():
    """A size is one rank's whole buffer, for Alltoall and for Allreduce."""
    for op in ("alltoall", "allreduce"):
        row = (
            bench(op, "--codec", "none", "--sizes", "96K", "--iters", 3, "-n", 3)
            .stdout.splitlines()[-2]
            .split()
        )
        moved = float(row[6]) * float(row[3]) * 1e3  # GB/s times us
        rounding = 0.0005 * float(row[3]) * 1e3
        assert row[0] == str(96 << 10)
        assert moved == pytest.approx(
            (96 << 10) * (2 / 3 if op == "alltoall" else 4 / 3), abs=rounding + 1000
        )


@pytest.mark.exhaustive
def test_bench_that_is_interrupted_says_so_in_a_line():
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}
    command = [
        sys.executable,
        "-m",
        "compcoll",
        "bench",
        "alltoall",
        "--sizes",
        "1M",
        "--iters",
        "100000",
        "--max-seconds",
        "100",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=outside, start_new_session=True, **pipes) as process:
        while "bytes codec" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said


def test_help_behind_an_operation_is_its_own(run, monkeypatch):
    asked = []
    monkeypatch.setattr("compcoll.cli.bench.need_mpi", lambda: None)
    monkeypatch.setattr("compcoll.benchmarks.osu.command.main", lambda *given: asked.append(given))
    assert "OP is a collective" in words(run("bench", "--help").output)
    for option in ("--help", "-h"):
        run("bench", "alltoall", option)
    assert asked == [("alltoall", [option], "compcoll bench alltoall") for option in ("--help", "-h")]


def test_bench_ends_at_a_wrong_option_without_lines_of_mpi():
    assert "Codecs, separated by commas" in bench("ialltoall", "-h").stdout
    done = bench("alltoall", "--size", "1M")
    assert done.returncode == 2
    assert done.stderr.rstrip().split("\n")[-1].startswith("Error: No such option")


def test_misspelt_commands_and_operations_get_a_suggestion(run):
    for arguments, says in ((["tunee"], "did you mean 'tune'?"), (["bench", "Allreduc"], "'allreduce'?")):
        result = run(*arguments)
        assert result.exit_code == 2
        assert words(result.output).endswith(says)


def test_run_looks_at_its_options_first(run, ramp, monkeypatch, outside):
    monkeypatch.setattr(launch, "find_mpiexec", lambda: pytest.fail("ranks are started"))
    for words_, says in (
        (["-n", 0, ramp], "0 is not in the range"),
        (["-n", 2, "--codec", "zfp:rate=99", ramp], "99"),
        (["-n", 2, "--min-nbytes", -1, ramp], "-1"),
        (["-n", 2, "none.py"], "none.py does not exist"),
    ):
        result = run("run", *words_)
        assert result.exit_code == 2, words_
        assert says in words(result.output)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "heat.c",
            b"int main;",
            "heat.c is a source file: compile it (mpicc -o heat heat.c), and run ./heat",
        ),
        ("heat.F90", b"end", "compile it (mpifort -o heat heat.F90)"),
        ("heat", b"\x7fELF\0", "heat is not executable: chmod +x heat"),
        ("job.sh", b"#!/bin/sh\n", "job.sh is not executable: chmod +x job.sh"),
    ],
)
def test_run_takes_no_sources_and_no_files_without_permission(
    run, tmp_path, monkeypatch, outside, name, content, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    result = run("run", name)
    assert result.exit_code == 2
    assert says in words(result.output)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("COMPCOLL_NODES", "0", "not 2 whole numbers"),
        ("COMPCOLL_NODES", "a,b", "not 2 whole numbers"),
        ("COMPCOLL_NODES", "0,1,2", "not 2 whole numbers"),
        ("COMPCOLL_TRACE", "/proc/nothing", "No such file or directory"),
        ("COMPCOLL_THREADS", "many", "not a whole number"),
        ("COMPCOLL_TIMEOUT", "-1", "not a number of seconds"),
    ],
)
def test_run_looks_at_the_environment_first(run, ramp, monkeypatch, outside, variable, value, says):
    monkeypatch.setattr(launch, "find_mpiexec", lambda: pytest.fail("ranks are started"))
    monkeypatch.setenv(variable, value)
    result = run("run", "-n", 2, ramp)
    assert result.exit_code == 2
    assert f"{variable} = {value!r}: {says}" in words(result.output)


def test_sizes_of_run_are_written_as_elsewhere(run, ramp, monkeypatch, outside):
    started = []

    def keep(ranks, arguments, mpiexec):
        started.append((arguments, mpiexec))
        sys.exit()

    monkeypatch.setattr("compcoll.cli.run.become_ranks", keep)
    run("run", "-n", 2, "--min-nbytes", "1.5M", ramp)
    assert started == [(["run", "--min-nbytes", str(3 << 19), str(ramp)], None)]
    assert "'1X' is not a whole number of bytes" in words(run("run", "--min-nbytes", "1X", ramp).output)
