#!/usr/bin/env bash
# Tests the codecs on arm64 without such a machine: a cross compiler builds them, and qemu runs them on Debian's Python
# with published wheels. Every codec's results for some thousands of arrays are compared with this machine's, byte for
# byte; then the codecs' tests run, including those with streams of other libraries.
#
#   run.sh [TEST FILE]...
#
# PYTHON needs Cython, NumPy, setuptools and compcoll. The script writes only to BUILD.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
build=$(mkdir -p "${BUILD:-build/arm64}" && cd "${BUILD:-build/arm64}" && pwd)
root=$build/root
tests=("$@")
[ $# -gt 0 ] || tests=(tests/serial/test_{zfp,mpc,float,int8,szp}.py)

missing() {
  echo "test-arm64 needs $1, which is not here; Debian has it in $2" >&2
  exit 1
}
command -v apt-get >/dev/null || missing apt-get apt
command -v aarch64-linux-gnu-g++ >/dev/null || missing aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
qemu=$(command -v qemu-aarch64-static qemu-aarch64 | head -n 1) || missing qemu-aarch64 qemu-user-static

if [ ! -e "$root/usr/bin/python3" ]; then
  echo "== a Python for arm64"
  mkdir -p "$build"/apt/{state,cache}/{lists,archives}/partial
  : >"$build/apt/status"
  # apt sees an arm64 machine without any packages, so that it downloads all dependencies, too.
  apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$build/apt/state"
    -o Dir::State::status="$build/apt/status" -o Dir::Cache="$build/apt/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends --download-only python3-dev libstdc++6
  mkdir -p "$root"
  for package in "$build"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
fi
version=$(cd "$root/usr/bin" && readlink python3)
arm=("$qemu" -L "$root" "$root/usr/bin/$version")

if [ ! -e "$build/wheels.done" ]; then
  echo "== wheels for arm64"
  platforms=(manylinux_2_{28,27,17}_aarch64 manylinux2014_aarch64 any)
  "$python" -m pip --disable-pip-version-check download -q --only-binary=:all: --dest "$build/wheels" \
    "${platforms[@]/#/--platform=}" --python-version "${version#python}" \
    numpy ml_dtypes zfpy hypothesis pytest pytest-timeout
  for wheel in "$build"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$build/site"; done
  touch "$build/wheels.done"
fi

echo "== compiling for arm64"
# The build configuration of the Python to build for, and nothing else of its library.
mkdir -p "$build/sysconfig"
cp "$root/usr/lib/$version/_sysconfigdata__aarch64-linux-gnu.py" "$build/sysconfig"
# A copy of the sources, so that Cython generates code for this NumPy, and other builds' files are not used.
mkdir -p "$build/source"
git ls-files -z setup.py pyproject.toml README.md LICENSE compcoll csrc benchmarks |
  xargs -0 cp --parents --update --preserve=timestamps -t "$build/source"
headers="-I$root/usr/include/$version -idirafter $root/usr/include"
(cd "$build/source" && env PYTHONPATH="$build/sysconfig" _PYTHON_SYSCONFIGDATA_NAME=_sysconfigdata__aarch64-linux-gnu \
  _PYTHON_HOST_PLATFORM=linux-aarch64 CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ CFLAGS="$headers" \
  CXXFLAGS="$headers" LDSHARED="aarch64-linux-gnu-gcc -shared" LDCXXSHARED="aarch64-linux-gnu-g++ -shared" \
  "$python" setup.py -q build --build-base "$build/base" --build-lib "$build/lib")
built=$(find "$build/lib" -name "_cpu*aarch64*.so" | wc -l)
[ "$built" -eq 1 ] || { echo "$built codecs were built for arm64, and not 1" >&2; exit 1; }

echo "== frames of arm64 and of this machine"
"$python" tests/arm64/frames.py >"$build/frames.here"
PYTHONPATH=$build/lib:$build/site "${arm[@]}" -P tests/arm64/frames.py >"$build/frames.arm64"
diff "$build/frames.here" "$build/frames.arm64" >"$build/frames.diff" || { head -n 20 "$build/frames.diff"; exit 1; }
echo "$(wc -l <"$build/frames.arm64") lines are the same"

# Tests one file; as many files are tested at once as there are cores.
on_arm64() {
  PYTHONPATH=$build/lib:$build/site "${arm[@]}" -P -m pytest -p no:cacheprovider "$1" >"$build/$(basename "$1").log" 2>&1
  local status=$?
  [ "$status" -eq 0 ] || cat "$build/$(basename "$1").log"
  echo "== $1 on arm64: $(tail -n 1 "$build/$(basename "$1").log")"
  return "$status"
}
export -f on_arm64
printf '%s\n' "${tests[@]}" | build=$build arm="${arm[*]}" xargs -P "$(nproc)" -I{} bash -c 'arm=($arm); on_arm64 {}'
