#!/usr/bin/env bash
# Brings the neighbours of `make bench-neighbours` into .cache/bench of the project, which git ignores:
# Redis as Debian packages it, unpacked and not installed, and the NATS server, built by Go from its
# module. Does nothing when they were brought by this script before.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/bench/neighbours
redis=7.0.15 # any of Debian's revisions of it
nats=2.15.2
for tool in apt-get dpkg-deb go; do
  command -v "$tool" >/dev/null || { echo "bench-neighbours: no $tool on this machine" >&2; exit 1; }
done

sum=$(cksum <"$here/neighbours.sh")
[ "$(cat "$cache/.made-from" 2>/dev/null)" = "$sum" ] && exit 0
rm -rf "$cache"
mkdir -p "$cache/packages" "$cache/redis"
echo "bench-neighbours: Redis $redis"
# redis-server is a link to a program of redis-tools; the others are its libraries.
(cd "$cache/packages" &&
  apt-get -qq -o APT::Sandbox::User=root download "redis-server=5:$redis*" "redis-tools=5:$redis*" \
    libatomic1 libjemalloc2 liblzf1)
for package in "$cache"/packages/*.deb; do dpkg-deb -x "$package" "$cache/redis"; done
rm -r "$cache/packages"
libraries=$(dirname "$(find "$cache/redis" -name 'libjemalloc.so.2' | head -1)")
ln -s "$libraries" "$cache/redis/libraries"
LD_LIBRARY_PATH=$cache/redis/libraries "$cache/redis/usr/bin/redis-server" --version | grep -q "v=$redis "

echo "bench-neighbours: NATS $nats"
GOTOOLCHAIN=local GOBIN="$cache" go install "github.com/nats-io/nats-server/v2@v$nats"
echo "$sum" >"$cache/.made-from"
