"""Kernels whose blocks wait for each other are right in every order of blocks, and mistakes show."""

import ctypes
import subprocess

import numpy as np
import pytest
from executor import NATIVE, PLAIN, compiler
from gpu_arrays import check

from compcoll.devices.nvrtc import csrc_dir

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")
#: Kernel with tiles of index + 1 elements, whose results are the tiles' first elements.
KERNEL = r"""
using namespace compcoll::CC_LEVEL::cuda;
struct Slot { uint64_t drawn; };
CC_HD void begins(const Job& job) {
  CC_SHARED(Slot, slot);
  for (uint64_t t; (t = draw_tile(job, slot.drawn)) < job.n;)
    if (threadIdx.x < 32) {
      const uint64_t begin = look_back(tile_words(job), t, t + 1);
      if (threadIdx.x == 0) reinterpret_cast<uint64_t*>(job.dst)[t] = begin;
    }
}
extern "C" __attribute__((visibility("default"))) const char* run(
    unsigned grid, uint64_t tiles, void* scratch, void* dst, uint64_t seed, int resident) {
  Job job = {};
  job.n = tiles, job.dst = static_cast<uint8_t*>(dst), job.scratch = static_cast<uint32_t*>(scratch);
  executor::kernel = [](const void* p) { begins(*static_cast<const Job*>(p)); };
  executor::argument = &job;
  executor::n_threads = 64;
  executor::grid_size = {grid, 1};
  return executor::run(seed, resident);
}
extern "C" __attribute__((visibility("default"))) unsigned windows_behind_the_first() {
  const unsigned n = compcoll::CC_LEVEL::cuda::further;
  compcoll::CC_LEVEL::cuda::further = 0;
  return n;
}
"""
#: Patches that count the windows of 32 tiles that a block visits beyond the nearest.
COUNTED = (
    (
        "constexpr uint64_t own_size = 1ull << 62,",
        "inline unsigned further;\nconstexpr uint64_t own_size = 1ull << 62,",
    ),
    ("end -= 32) {", "end -= 32) {\n      further += lane == 0 && end != tile;"),
)
#: Right and wrong text of each mistake.
MISTAKES = {
    "a tile by a block's number": (
        "slot = count_up(reinterpret_cast<uint64_t*>(job.scratch))",
        "slot = slot >> 32 == blockIdx.x + 1 ? job.n : blockIdx.x | uint64_t(0)",
    ),
    "sums beyond the nearest": ("done ? __ffs(int(done)) - 1 : 31", "31"),
    "no wait": ("while (!(*word & ~size_mask)) executor::waits();", ""),
    "a size that passes for a sum": (
        "publish(words + tile, own_size | size)",
        "publish(words + tile, sum_to_end | size)",
    ),
    "an end that is never told": (
        "publish(words + tile, sum_to_end | (before + size))",
        "publish(words + 0, sum_to_end | size)",
    ),
    "threads that run ahead": ("__syncthreads();  // all have read the previous one", ""),
}


def compiled(folder, mistake=None):
    """Compile the kernel, with a mistake or without; return its function."""
    text = (csrc_dir() / "cuda" / "scan.cuh").read_text()
    if mistake:
        right, wrong = MISTAKES[mistake]
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    for right, counted in COUNTED:
        assert text.count(right) == 1
        text = text.replace(right, counted)
    source = folder / "look_back.cpp"
    text = text.replace('"job.cuh"', f'"{csrc_dir()}/cuda/job.cuh"').replace("#pragma once", "")
    source.write_text(f'#include "{NATIVE}/executor.h"\n{text}\n{KERNEL}')
    library = folder / "look_back.so"
    command = [
        "g++",
        *(flag for flag in PLAIN if flag not in ("-Werror", "-Wall")),
        "-shared",
        str(source),
        "-o",
        str(library),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = ctypes.CDLL(str(library)).run
    run.restype, run.library = ctypes.c_char_p, ctypes.CDLL(str(library))
    return run


def sound(run, grid, tiles, seed, resident=6):
    """True if the first elements of all tiles are right."""
    scratch, found = np.zeros(1 + tiles, np.uint64), np.full(tiles, 77, np.uint64)
    addresses = ctypes.c_void_p(scratch.ctypes.data), ctypes.c_void_p(found.ctypes.data)
    problem = run(grid, ctypes.c_uint64(tiles), *addresses, ctypes.c_uint64(seed), resident)
    sizes = np.arange(1, tiles + 1, dtype=np.uint64)
    return problem is None and np.array_equal(found, np.cumsum(sizes) - sizes)


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """The kernel without a mistake."""
    return compiled(tmp_path_factory.mktemp("right"))


def test_places_are_right_in_any_order(right):
    for seed in range(60):
        assert sound(right, 1 + seed % 9, (1, 7, 33, 70)[seed % 4], seed), seed


def test_places_are_right_where_more_blocks_wait_than_a_window_has_tiles(right):
    """Results are right if more blocks wait than a window has tiles, as on a GPU."""
    right.library.windows_behind_the_first()
    for seed in range(1, 41):
        assert sound(right, 48 + seed % 9, 150, seed, resident=48), seed
    assert right.library.windows_behind_the_first() > 40


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.exhaustive(but=2)
def test_an_order_shows_each_mistake(tmp_path, mistake):
    run = compiled(tmp_path, mistake)
    assert not all(sound(run, 8, 8 if "number" in mistake else 70, seed) for seed in range(1, 40))


@pytest.mark.parametrize("spec", ["mpc", "mpc:dim=3", "szp:abs=0.5", "szp:rel=1e-3", "float"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_codecs_in_several_tiles(cupy, spec, dtype):
    """Codecs over several tiles equal the host, with another order of blocks for each launch."""
    for n in (9999, 20001):
        found = check(cupy, spec, (100 * np.sin(np.arange(n) / 400)).round().astype(dtype))
        assert found == spec.partition(":")[0]
