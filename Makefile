# `make demo` shows what the library does, `make test` tests it. Both need Python 3.11 or later and GCC 11 or
# later, and install everything else into $(VENV).

PYTHON ?= python3
VENV ?= .venv
RANKS ?= 4
TEST_RANKS ?= 2 3
NODE_TESTS ?= tests/mpi/test_collectives.py tests/mpi/test_nonblocking.py tests/mpi/test_persistent.py
OPENMPI_EXEC ?= mpiexec.openmpi
OPENMPI_LIB ?= libmpi.so.40
TORCH_RANKS ?= 2 3
NEWEST ?= .venv-newest
CUPY ?= cuda13
WHEEL_PYTHONS ?= $(PYTHON)
PROGRAMS := $(VENV)/programs
ZARR := $(VENV)/zarr
ABI := $(VENV)/abi
ABI_TESTS ?= tests/mpi/test_collectives.py tests/mpi/test_pointtopoint.py tests/mpi/test_nonblocking.py tests/mpi/test_layer.py
CARRY_PYTHON ?= 3.12
CARRY_ARCH ?= sm_90
FIGURE ?= out/taylor_green.png

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CSRC := $(wildcard csrc/*.h csrc/cpu/*.h csrc/cpu/*.cpp csrc/cpu/zfp/*.h csrc/cpu/zfp/*.cpp csrc/engine/*.h csrc/engine/*.cpp csrc/layer/*.h csrc/layer/*.cpp csrc/preload/*.cpp)
NATIVE := $(wildcard compcoll/*/*.pyx compcoll/*/*.pxd compcoll/*/*.pxi) csrc/exports.map compcoll/operations.py setup.py $(CSRC)
# Stands before a command that starts ranks; if a rank fails, prints its traceback last.
ENDED := python tests/run_ranks.py
# Compilers run through ccache if Debian's package is installed.
export PATH := $(abspath $(BIN)):$(addsuffix :,$(wildcard /usr/lib/ccache))$(PATH)
# Compiled modules are kept, even if the environment says otherwise: tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help demo test test-serial test-mpi test-nodes test-mpi4py test-openmpi test-abi test-torch test-frameworks test-torch-suite test-torch-newest test-programs test-zarr test-arm64 wheel sanitize sanitize-mpi internals docs lint format bench bench-codecs report fuzz fuzz-smoke kernels carry gpu-check clean

help:  ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1 \t\2/p' $(MAKEFILE_LIST) | expand -t 26

demo: $(VENV)/.bench  ## Simulate a flow over plain MPI and over compcoll, on 4 ranks and between hosts at 1 Gb/s
	@mkdir -p $(dir $(FIGURE))
	@$(BIN)/python -m benchmarks.demo --ranks $(RANKS) --out $(FIGURE)
	@echo "The figure is $(abspath $(FIGURE))"

# conftest.py chooses the sample of the tests; .ci/run runs the rest of them, too.
test: test-serial test-mpi  ## Run a sample of the tests, those of MPI on 2 and 3 ranks; all: EXHAUSTIVE=1 TEST_RANKS='1 2 3 4'

test-serial: $(VENV)/.test  ## Run the tests that need one process
	@echo "== tests/serial"
	@python -m pytest tests/serial --numprocesses auto --maxprocesses 8 --dist worksteal

test-mpi: $(VENV)/.test  ## Run the tests that need MPI
	@for n in $(TEST_RANKS); do \
	  echo "== tests/mpi on $$n ranks"; \
	  $(ENDED) mpiexec -n $$n python -m pytest tests/mpi || exit 1; \
	done

test-nodes: $(VENV)/.test  ## Run tests of collectives on 2 hosts of 2 ranks, as root
	@echo "== tests/mpi on 2 hosts of 2 ranks"
	@$(ENDED) python -m benchmarks.netlab --hosts 2 --ranks-per-host 2 --gbit 0 -- python -m pytest $(NODE_TESTS); \
	  status=$$?; [ $$status != 69 ] || { echo "== skipped: no hosts on this machine"; exit 0; }; exit $$status

test-mpi4py: $(VENV)/.test  ## Run mpi4py's own tests on wrapped and on traced communicators, and compare with plain ones
	@timeout 1500 python tests/mpi4py_suite.py $(TEST_RANKS:%=-n %)
	@timeout 400 python tests/mpi4py_suite.py -n 2 --trace

test-openmpi: $(VENV)/.test  ## Run the tests that need MPI on a system's Open MPI, on 3 ranks
	@command -v $(OPENMPI_EXEC) >/dev/null || { echo "$(OPENMPI_EXEC) is not found; Debian's openmpi-bin has it"; exit 1; }
	@echo "== tests/mpi on 3 ranks of Open MPI"
	@MPI4PY_MPIABI=openmpi MPI4PY_LIBMPI=$(OPENMPI_LIB) \
	  $(ENDED) timeout 1200 $(OPENMPI_EXEC) --allow-run-as-root --oversubscribe -n 3 python -m pytest tests/mpi

test-abi: $(VENV)/.abi  ## Run tests of C programs and of MPI on MPICH under the standard ABI of MPI 5, on 2 ranks; builds mpi4py
	@echo "== tests of preloading, standard ABI"
	@PYTHONPATH=$(abspath $(ABI)) python -m pytest tests/serial/test_preload.py
	@echo "== tests/mpi on 2 ranks, standard ABI"
	@PYTHONPATH=$(abspath $(ABI)) $(ENDED) timeout 600 mpiexec -n 2 python -m pytest $(ABI_TESTS)

test-torch: $(VENV)/.test-torch  ## Run the tests of the torch.distributed backend, on 2 and 3 ranks; installs torch
	@for n in $(TORCH_RANKS); do \
	  echo "== tests/torch on $$n ranks"; \
	  $(ENDED) mpiexec -n $$n python -m pytest tests/torch || exit 1; \
	  echo "== tests/torch_bases on $$n ranks"; \
	  $(ENDED) mpiexec -n $$n python -m pytest tests/torch_bases || exit 1; \
	done
	@echo "== tests of torchrun, of ranks that fail, and of examples with torch"
	@python -m pytest $(filter-out %_frameworks.py,$(wildcard tests/serial/test_torch_*.py)) --numprocesses 2 --dist worksteal
	@python -m pytest tests/serial/test_examples.py -k 'ddp or fsdp2' --numprocesses 2

test-frameworks: $(VENV)/.test-frameworks  ## Run Lightning, Accelerate and DeepSpeed with the torch.distributed backend and with gloo
	@echo "== tests of frameworks that use torch"
	@python -m pytest tests/serial/test_torch_frameworks.py --numprocesses 2

test-programs: $(VENV)/.programs  ## Run mpi4py-fft, shenfun, Heat, pylops-mpi and, where they are, programs of Debian, Dedalus and OSU's benchmarks
	@PATH="$(abspath $(PROGRAMS))/bin:$$PATH" python -m pytest tests/programs -rs
	@PATH="$(abspath $(PROGRAMS))/bin:$$PATH" timeout 400 python tests/mpi4py_suite.py -n 2 --codec preload

test-zarr: $(VENV)/.zarr  ## Run the tests of the codec for Zarr and of the serializer for Dask, in an environment of its own
	@echo "== tests of the codec for Zarr and of the serializer for Dask"
	@$(ZARR)/bin/python -m pytest tests/serial/test_zarr.py tests/serial/test_dask.py

test-arm64: $(VENV)/.cross  ## Run cross-compiled codecs for arm64 by qemu, and compare their bytes with this machine's
	@PYTHON=$(abspath $(BIN)/python) tests/arm64/run.sh $(ARM64_TESTS)

wheel:  ## Build a wheel for each of WHEEL_PYTHONS into dist/, check it by auditwheel, and test it
	@tests/wheels.sh $(WHEEL_PYTHONS)

test-torch-suite: $(VENV)/.test-torch  ## Run torch's own tests of a backend with this one and with gloo, on 2 and 3 ranks
	@for n in $(TORCH_RANKS); do \
	  echo "== torch's tests on $$n ranks"; \
	  timeout 600 mpiexec -n $$n python tests/torch/distributed_suite.py --gate mpi || exit 1; \
	done

test-torch-newest: $(VENV)/.package  ## Run tests/torch with the newest torch, in $(NEWEST), on 2 ranks; installs 6 GB
	@test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	@$(NEWEST)/bin/python -m pip --disable-pip-version-check install -q --upgrade torch expecttest -e '.[mpich,test]'
	@echo "== tests/torch on 2 ranks, torch $$($(NEWEST)/bin/python -c 'import torch; print(torch.__version__)')"
	@PATH=$(abspath $(NEWEST)/bin):$$PATH $(ENDED) mpiexec -n 2 python -m pytest tests/torch

docs: $(VENV)/.docs  ## Build the documentation into docs/_build/html, run its examples, and check its links
	@python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@python -m sphinx -W --keep-going -q -b doctest -d docs/_build/doctrees docs docs/_build/doctest
	@echo "The documentation is $(abspath docs/_build/html/index.html)"

lint: $(VENV)/.lint  ## Check style and types
	ruff check
	ruff format --check
	cython-lint --max-line-length 110 compcoll tests/native
	mypy
	@echo "clang-format: $$(clang-format --dry-run $(CSRC) 2>&1 | grep -c warning:) places differ; make format"

format: $(VENV)/.lint  ## Format everything
	ruff check --fix
	ruff format
	clang-format -i $(CSRC)

bench: $(VENV)/.bench  ## Time Alltoall with and without compression, on 4 ranks, and as root between hosts with and without spare cores
	@mkdir -p out
	mpiexec -n $(RANKS) python -m compcoll bench alltoall --codec lossless,bfp:bits=7 --json out/alltoall.json
	@for cores in own shared; do \
	  echo "== 2 hosts at 1 Gb/s, $$cores cores; not to be compared with the other"; \
	  python -m benchmarks.netlab --hosts 2 --gbit 1 $$(test $$cores = own || echo --shared-cores) -- \
	    python -m compcoll bench alltoall --codec lossless,bfp:bits=7 --sizes 4K:1M:4 --json out/alltoall-$$cores-cores.json; \
	  status=$$?; [ $$status != 69 ] || { echo "== skipped: no hosts on this machine"; exit 0; }; \
	  [ $$status = 0 ] || exit $$status; \
	done

report: $(VENV)/.bench $(VENV)/.compare internals  ## Measure and write all tables, as root; QUICK=1: those of README and docs/benchmarks.md; ONLY=NAME: one
	python -m benchmarks.report $(if $(QUICK),--quick) $(addprefix --only ,$(ONLY))

bench-codecs: $(VENV)/.bench $(VENV)/.compare  ## Compare the codecs with those of others, one thread
	@mkdir -p out
	python -m benchmarks.codecs --json out/codecs.json --plot out/codecs.png $(CODECS_OPTIONS)

sanitize: $(VENV)/.test  ## Run the engine under ThreadSanitizer, AddressSanitizer and UBSan, with threads as ranks
	@$(MAKE) --no-print-directory -C tests/native thread address PYTHON=$(abspath $(BIN)/python)

sanitize-mpi: $(VENV)/.cross  ## Run the tests of MPI with an engine under AddressSanitizer and UBSan
	@PYTHON=$(abspath $(BIN)/python) tests/native/mpi.sh

internals: $(VENV)/.package  ## Rebuild the extension of tests and benchmarks (tests/native), if it is older than the library
	@python -c 'import Cython' 2>/dev/null || $(PIP) install -q 'Cython>=3.1'
	@$(MAKE) -s -C tests/native internals PYTHON=$(abspath $(BIN)/python)

fuzz:  ## Fuzz the codecs: FUZZ_SECONDS (60) or FUZZ_RUNS for each of FAMILIES and HARNESSES; needs clang
	@$(MAKE) --no-print-directory -C fuzz

fuzz-smoke:  ## Fuzz the codecs for 3 seconds each, if clang is installed
	@$(MAKE) --no-print-directory -C fuzz smoke

kernels: $(VENV)/.kernels  ## Compile the CUDA kernels for four architectures, or ARCH, and count registers, without a GPU
	python tests/gpu_inspection.py $(if $(ARCH),--arch $(ARCH))

carry: $(VENV)/.kernels  ## Build what a bare machine with a GPU needs for gpu-check: carry/, dist/gpu-check.tar.gz
	python benchmarks/offline_bundle.py --python $(CARRY_PYTHON) --arch $(CARRY_ARCH)

gpu-check: $(VENV)/.test $(VENV)/.kernels $(VENV)/.$(CUPY)  ## Check and time everything that needs a GPU; takes 200 s
	@python benchmarks/gpu_check.py

clean:  ## Remove what was built, and $(VENV)
	rm -rf build carry docs/_build fuzz/build dist out *.egg-info $(VENV) $(NEWEST) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f csrc/layer/operations.h compcoll/core/_cpu.cpp compcoll/core/_gpu.cpp compcoll/engine/_engine.cpp compcoll/_n*.so compcoll/*/_*.so
	$(MAKE) --no-print-directory -C tests/native clean
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.venv:
	@echo "== a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "compcoll needs Python 3.11 or later")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The compiled package. Other requirements of a target are installed on top, without compiling it again.
$(VENV)/.package: $(VENV)/.venv pyproject.toml $(NATIVE)
	@echo "== compiling compcoll; this takes some minutes"
	@$(PIP) install -q -e '.[mpich]'
	@touch $@

$(VENV)/.bench $(VENV)/.compare $(VENV)/.cross $(VENV)/.kernels $(VENV)/.test $(VENV)/.test-torch $(VENV)/.test-frameworks $(VENV)/.lint $(VENV)/.docs $(VENV)/.cuda12 $(VENV)/.cuda13: $(VENV)/.%: $(VENV)/.package
	@echo "== installing what 'make $*' needs"
	@$(PIP) install -q 'compcoll[$*]'
	@touch $@

$(VENV)/.test $(VENV)/.test-torch $(VENV)/.cross: | internals

# Third-party programs have an environment of their own, since their requirements would change the versions tested
# elsewhere. Heat requires an old torch with all of CUDA; the torch that the backend is tested with works as well.
$(VENV)/.programs: $(VENV)/.package
	@echo "== installing programs that use MPI"
	@$(PYTHON) -m venv $(PROGRAMS)
	@$(PROGRAMS)/bin/python -m pip --disable-pip-version-check install -q -e '.[mpich,test]'
	@for packages in mpi4py-fft 'shenfun numba pyyaml' pylops-mpi 'torch==2.13.0' '--no-deps heat'; do \
	  $(PROGRAMS)/bin/python -m pip --disable-pip-version-check install -q $$packages || \
	    echo "== $$packages cannot be installed here"; \
	done
	@touch $@

# mpi4py's wheel is for MPICH and Open MPI. For the standard ABI, mpi4py is built, and precedes the wheel on the path.
$(VENV)/.abi: $(VENV)/.test
	@echo "== building mpi4py for the standard ABI; this takes some minutes"
	@CFLAGS=-O0 MPI4PY_BUILD_MPIABI=1 MPICC=$(abspath $(BIN))/mpicc_abi $(PIP) install -q --no-cache-dir --no-deps --upgrade \
	  --no-binary mpi4py --target $(ABI) mpi4py
	@touch $@

# zfpy and numcodecs cannot share an environment; this one gets a copy of the compiled compcoll.
$(VENV)/.zarr: $(VENV)/.package
	@echo "== installing Zarr"
	@$(PYTHON) -m venv $(ZARR)
	@cp -r $(VENV)/lib/python3*/site-packages/*compcoll* $(ZARR)/lib/python3*/site-packages/
	@$(ZARR)/bin/python -m pip --disable-pip-version-check install -q 'compcoll[test-zarr]'
	@touch $@
