#!/usr/bin/env bash
# Runs tests/mpi with the engine and the layer under AddressSanitizer and UndefinedBehaviorSanitizer: mpi.sh [RANKS]...
# A copy of the sources is built and run, so that the build in this clone stays as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
copy=${BUILD:-tests/native/build}/sanitized
mkdir -p "$copy"
git ls-files -z | xargs -0 cp --parents -t "$copy"
cd "$copy"
# The engine, the layer and their bindings are sanitized here; fuzz/ sanitizes the codecs.
flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 -O1"
echo "== compiling with $flags"
export COMPCOLL_ENGINE_FLAGS=$flags
"$python" setup.py -q build_ext --inplace
make --no-print-directory -C tests/native internals PYTHON="$python" BUILD=build

# The interpreter is not sanitized: its leaks are ignored, and the sanitizer's library has to be loaded first. One
# test ends a process by SIGSEGV.
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:handle_segv=0 UBSAN_OPTIONS=print_stacktrace=1
[ $# -gt 0 ] || set -- 2 3
for ranks; do
  echo "== tests/mpi on $ranks ranks, sanitized"
  # Output is not captured, so that a sanitizer's report comes last.
  "$python" tests/run_ranks.py mpiexec -n "$ranks" "$python" -m pytest tests/mpi -p no:cacheprovider --capture no
done
