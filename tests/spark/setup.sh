#!/usr/bin/env bash
# Brings the Pythons with PySpark that tests/spark runs its drivers and workers with: one venv for each
# requirements/spark-VERSION.txt, in .cache/spark/VERSION of the project, which git ignores. They hold
# what an executor needs and not Aerobee itself, which the tests bring from the working tree or as a
# wheel. Takes a minute and 850 MB for each version once; does nothing when the file is the same.
#
#   tests/spark/setup.sh [4.3|4.0 ...]      all versions when none is named
#
# Without Java the tests skip with one line; under CI=true that is an error.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$root/.venv/bin/python
if [ $# = 0 ]; then
  set -- 4.3 4.0
fi
if ! command -v java >/dev/null; then
  echo "spark: no java on this machine (17 or later is needed)" >&2
  [ "${CI:-}" = true ] && exit 1
  exit 0
fi
for version in "$@"; do
  wanted=$root/requirements/spark-$version.txt
  venv=$root/.cache/spark/$version
  sum=$(cat "$wanted" "$root/tests/spark/setup.sh" "$root/tests/spark/train.py" | cksum)
  [ "$(cat "$venv/.made-from" 2>/dev/null)" = "$sum" ] && continue
  echo "spark: PySpark $version into $venv"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$wanted"
  # Spark has its Pythons import PySpark from archives of sources, half a second each to compile, and
  # where they are not, from the package beside them, which pip has compiled.
  rm -f "$venv"/lib/python*/site-packages/pyspark/python/lib/*.zip
  # Spark's classes, loaded and checked once for all the drivers of the tests.
  scratch=$(mktemp -d)
  rm -f "$venv"/spark.jsa*
  SPARK_LOCAL_IP=127.0.0.1 PYSPARK_PYTHON=$venv/bin/python "$venv/bin/python" "$root/tests/spark/train.py" \
    "$venv/spark.jsa.new" "$scratch" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
  # Java writes it when Python has gone. One that does not come costs the tests time, nothing else.
  before=-1
  for _ in $(seq 60); do
    size=$(stat -c %s "$venv/spark.jsa.new" 2>/dev/null || echo 0)
    if [ "$size" -gt 0 ] && [ "$size" = "$before" ]; then
      mv "$venv/spark.jsa.new" "$venv/spark.jsa"
      break
    fi
    before=$size
    sleep 2
  done
  rm -rf "$scratch"
  echo "$sum" >"$venv/.made-from"
done
