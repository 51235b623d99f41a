#!/bin/sh
# run.sh LOG COMMAND...: runs a harness, whose output goes to LOG. Prints how far it is every PROGRESS_SECONDS,
# and what it did; where it fails, the end of its output.
log=$1
shift

last() { sed -n "s/^stat::$1: *//p" "$log"; }

"$@" >"$log" 2>&1 &
harness=$!
trap 'kill $harness' INT TERM
while sleep "${PROGRESS_SECONDS:-30}" >/dev/null 2>&1; do
  # "#1048576 pulse cov: 2 ft: 900 corp: 200/9Kb lim: 256 exec/s: 50000 rss: 99Mb"
  grep '^#' "$log" | tail -n 1 | sed -n 's/^#\([0-9]*\).* ft: \([0-9]*\).*exec\/s: \([0-9]*\).*/   ... \1 executions, \3 a second, \2 features/p'
done &
progress=$!
wait $harness
status=$?
kill $progress
if [ $status -ne 0 ]; then
  grep -v '^#' "$log" | tail -n 60
  exit $status
fi
echo "   $(last number_of_executed_units) executions, $(last average_exec_per_sec) a second;" \
  "$(last encoded) encoded or added, $(last decoded) decoded"
