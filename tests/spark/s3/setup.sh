#!/usr/bin/env bash
# Brings a server of S3 (server.xml) and what Spark needs to speak with one (client.xml), as jars in
# .cache/s3 of the project, which git ignores: 75 MB, half a minute. Does nothing when they are made
# from the same files.
#
# Without Java or Maven the tests skip with one line; under CI=true that is an error.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../../.." && pwd)/.cache/s3
for tool in java mvn; do
  if ! command -v "$tool" >/dev/null; then
    echo "s3: no $tool on this machine" >&2
    [ "${CI:-}" = true ] && exit 1
    exit 0
  fi
done

sum=$(cat "$here/setup.sh" "$here/server.xml" "$here/client.xml" | cksum)
[ "$(cat "$cache/.made-from" 2>/dev/null)" = "$sum" ] && exit 0
rm -rf "$cache"
mkdir -p "$cache"
for name in server client; do
  echo "s3: jars of the $name"
  mvn --quiet --batch-mode -Dstyle.color=never --file "$here/$name.xml" \
    dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$cache/$name"
done
echo "$sum" >"$cache/.made-from"
