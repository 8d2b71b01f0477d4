#!/usr/bin/env bash
# Brings the Pythons with PySpark that tests/spark runs its drivers and workers with: one venv for each
# requirements/spark-VERSION.txt, in .cache/spark/VERSION of the project, which git ignores. They hold
# what an executor needs and not Aerobee itself, which the tests bring from the working tree or as a
# wheel. Takes a minute and 850 MB for each version once; does nothing when the file is the same.
#
#   tests/spark/setup.sh [4.3|4.0 ...]      all versions when none is named
#
# The newest version also gets an archive of Spark's classes, loaded and checked once for all the
# drivers of the tests. The others start too few drivers for that, but in a campaign.
#
# Without Java the tests skip with one line; under CI=true that is an error.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source-path=SCRIPTDIR source=pyspark.sh
. "$root/tests/spark/pyspark.sh"
versions=$(ls "$root"/requirements/spark-*.txt | sed 's/.*spark-\(.*\)\.txt/\1/' | sort -rV)
newest=$(head -n 1 <<<"$versions")
if [ $# = 0 ]; then
  # shellcheck disable=SC2086 # a list of versions
  set -- $versions
fi
if ! command -v java >/dev/null; then
  echo "spark: no java on this machine (17 or later is needed)" >&2
  [ "${CI:-}" = true ] && exit 1
  exit 0
fi

archive() { # archive VERSION
  local venv=$root/.cache/spark/$1 scratch sum
  sum=$(cat "$venv/.made-from" "$root/tests/spark/train.py" | cksum)
  [ "$(cat "$venv/.archived-from" 2>/dev/null)" = "$sum" ] && return
  echo "spark: classes of PySpark $1"
  scratch=$(mktemp -d)
  rm -f "$venv"/spark.jsa*
  SPARK_LOCAL_IP=127.0.0.1 PYSPARK_PYTHON=$venv/bin/python "$venv/bin/python" "$root/tests/spark/train.py" \
    "$venv/spark.jsa.new" "$scratch" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
  # One that Java did not write costs the tests time, nothing else.
  [ -s "$venv/spark.jsa.new" ] && mv "$venv/spark.jsa.new" "$venv/spark.jsa"
  rm -rf "$scratch"
  echo "$sum" >"$venv/.archived-from"
}

for version in "$@"; do
  install_pyspark "spark-$version"
  if [ "$version" = "$newest" ] || [ "${AEROBEE_CAMPAIGN:-}" = full ]; then
    archive "$version"
  fi
done
