#!/usr/bin/env bash
# Brings what only the benchmark of Spark needs: a Kafka broker and Spark's Kafka source, as jars at
# the versions of poms/, into .cache/bench/jars of the project, which git ignores. No test uses them.
# Does nothing when they were brought from the same files before.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/bench/jars
for tool in java mvn; do
  command -v "$tool" >/dev/null || { echo "bench-spark: no $tool on this machine" >&2; exit 1; }
done

jars() { # jars NAME GROUPS: the runtime jars of poms/NAME.xml of those groups ("" = all)
  local pom="$here/poms/$1.xml" sum
  sum=$(cat "$here/setup.sh" "$pom" | cksum)
  [ "$(cat "$cache/$1/.made-from" 2>/dev/null)" = "$sum" ] && return 0
  echo "bench-spark: jars of $1"
  rm -rf "${cache:?}/$1"
  mvn --quiet --batch-mode -Dstyle.color=never --file "$pom" dependency:copy-dependencies \
    -DincludeScope=runtime -DincludeGroupIds="$2" -DoutputDirectory="$cache/$1"
  echo "$sum" >"$cache/$1/.made-from"
}

jars kafka-4.3.1 ""
# The others of its dependencies are part of PySpark.
jars spark-kafka-4.2.0 org.apache.spark,org.apache.kafka,org.apache.commons
rm -f "$cache"/spark-kafka-4.2.0/spark-tags_*.jar
