#!/usr/bin/env bash
# Brings what the tests of `aerobee pipeline stream` need beside the Pythons of setup.sh: for each lake a
# PySpark that its package supports, since none supports the newest, and the package's jars. Pinned in
# requirements/lake-NAME.txt and java/lake-NAME.xml; all lands in .cache/spark, which git ignores. Takes a
# minute and 900 MB for each lake once.
#
#   tests/spark/lake.sh [delta|iceberg ...]     both when none is named
#
# Without Java or Maven the tests skip with one line; under CI=true that is an error.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=$root/.cache/spark
# shellcheck source-path=SCRIPTDIR source=pyspark.sh
. "$root/tests/spark/pyspark.sh"
# Spark has these itself: with `--packages` they would come along, and be passed over.
of_spark=org.apache.hadoop,org.scala-lang,org.apache.logging.log4j,org.slf4j,org.apache.parquet
of_spark=$of_spark,com.fasterxml.jackson.core,com.fasterxml.jackson.datatype,org.xerial.snappy
for tool in java mvn; do
  command -v $tool >/dev/null && continue
  echo "spark: no $tool on this machine, which the lakes' tests need" >&2
  [ "${CI:-}" = true ] && exit 1
  exit 0
done

jars() { # jars NAME: those of java/lake-NAME.xml, in .cache/spark/jars-NAME
  local pom=$root/tests/spark/java/lake-$1.xml folder=$cache/jars-$1 sum
  sum=$(cat "$pom" "$root/tests/spark/lake.sh" | cksum)
  [ "$(cat "$folder/.made-from" 2>/dev/null)" = "$sum" ] && return
  echo "spark: jars of $1 into $folder"
  rm -rf "$folder"
  mvn --quiet --batch-mode -Dstyle.color=never --file "$pom" dependency:copy-dependencies \
    -DincludeScope=runtime -DexcludeGroupIds="$of_spark" -DoutputDirectory="$folder"
  echo "$sum" >"$folder/.made-from"
}

[ $# = 0 ] && set -- delta iceberg
mkdir -p "$cache"
for name in "$@"; do
  jars "$name"
  install_pyspark "lake-$name"
done
