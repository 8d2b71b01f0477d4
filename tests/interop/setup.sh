#!/usr/bin/env bash
# Brings what the interop tests need: real clients and the real Java broker, versions pinned here and
# in the files beside this one. Everything lands in .cache/interop/ of the project, which git ignores.
#
#   tests/interop/setup.sh [java|java5|go|node|cpp|rust ...]     all six when none is named
#
# Safe to run again: each part leaves a stamp with the checksum of what it was made from, and is done
# anew only when that changed. A part whose tools are missing is left out with one line, and its tests
# skip; under CI=true that is an error.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/interop
brokers="broker-4.9.7"
clients="4.9.8 4.4.0 5.5.0"
mkdir -p "$cache/stamps"

# fresh NAME FILE...: true when NAME was made from these files, as they are now, by this script
fresh() {
  local name=$1 sum
  shift
  sum=$(cat "$here/setup.sh" "$@" | sha256sum)
  [ "$(cat "$cache/stamps/$name" 2>/dev/null)" = "$sum" ]
}
stamp() {
  local name=$1
  shift
  cat "$here/setup.sh" "$@" | sha256sum >"$cache/stamps/$name"
}

have() {
  local part=$1 tool missing=""
  shift
  for tool in "$@"; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
  done
  [ -z "$missing" ] && return 0
  echo "interop: no $part peers, missing:$missing" >&2
  [ "${CI:-}" = true ] && exit 1
  return 1
}

jars() { # jars NAME: the runtime jars of java/poms/NAME.xml, in a folder of their own
  local pom="$here/java/poms/$1.xml"
  fresh "jars-$1" "$pom" && return 0
  echo "interop: jars of $1"
  rm -rf "$cache/java/$1"
  mvn --quiet --batch-mode -Dstyle.color=never --file "$pom" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$cache/java/$1"
  stamp "jars-$1" "$pom"
}

java_peer() { # java_peer VERSION: the one source, compiled against that client
  local classes="$cache/java/peer-$1"
  local sources=("$here"/java/peer/*.java)
  [ "$1" = 4.4.0 ] || sources+=("$here"/java/lite/*.java)
  fresh "peer-$1" "${sources[@]}" "$here/java/poms/client-$1.xml" && return 0
  echo "interop: Java peer $1"
  rm -rf "$classes"
  mkdir -p "$classes"
  javac -nowarn -Xlint:-options -Xlint:-deprecation -encoding UTF-8 -cp "$cache/java/client-$1/*" \
    -d "$classes" "${sources[@]}" 2> >(grep -v '^Note: ' >&2)
  stamp "peer-$1" "${sources[@]}" "$here/java/poms/client-$1.xml"
}

java_features() { # java_features VERSION: the clients of the feature tests, compiled against that client
  local classes="$cache/java/features-$1"
  local sources=("$here"/java/features/*.java "$here"/java/peer/{Lines,Options}.java)
  fresh "features-$1" "${sources[@]}" "$here/java/poms/client-$1.xml" && return 0
  echo "interop: Java features $1"
  rm -rf "$classes"
  mkdir -p "$classes"
  javac -nowarn -Xlint:-options -Xlint:-deprecation -encoding UTF-8 -cp "$cache/java/client-$1/*" \
    -d "$classes" "${sources[@]}" 2> >(grep -v '^Note: ' >&2)
  stamp "features-$1" "${sources[@]}" "$here/java/poms/client-$1.xml"
}

setup_java() {
  have Java java javac mvn || return 0
  local name
  for name in $brokers; do jars "$name"; done
  for name in $clients; do
    jars "client-$name"
    java_peer "$name"
    [ "$name" = 4.4.0 ] || java_features "$name" # 4.4.0 has no requests and no namespaces
  done
}

setup_java5() { # a slave of RocketMQ 5, which few tests want
  have Java java mvn || return 0
  jars broker-5.3.3
}

setup_go() {
  have Go go || return 0
  fresh go "$here"/go/* && return 0
  echo "interop: Go peer"
  (cd "$here/go" && GOTOOLCHAIN=local go build -trimpath -o "$cache/go-peer" .)
  stamp go "$here"/go/*
}

setup_node() {
  have Node node npm || return 0
  fresh node "$here/node/package.json" "$here/node/package-lock.json" && return 0
  echo "interop: Node modules"
  rm -rf "$cache/node"
  mkdir -p "$cache/node"
  cp "$here/node/package.json" "$here/node/package-lock.json" "$cache/node/"
  (cd "$cache/node" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null)
  stamp node "$here/node/package.json" "$here/node/package-lock.json"
}

setup_cpp() {
  have C++ python3 || return 0
  fresh cpp "$here/cpp/requirements.txt" && return 0
  echo "interop: C++ client"
  rm -rf "$cache/cpp"
  python3 -m venv "$cache/cpp"
  "$cache/cpp/bin/pip" install --quiet --requirement "$here/cpp/requirements.txt"
  stamp cpp "$here/cpp/requirements.txt"
}

setup_rust() {
  have Rust cargo || return 0
  fresh rust "$here"/rust/Cargo.* "$here"/rust/src/* && return 0
  echo "interop: Rust peer"
  # What was compiled is not kept: 300 MB, for half a minute.
  # Nobody looks into it with a debugger.
  (cd "$here/rust" && CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
    cargo build --quiet --locked --target-dir "$cache/rust")
  mv "$cache/rust/debug/rust-peer" "$cache/rust-peer"
  rm -rf "$cache/rust"
  stamp rust "$here"/rust/Cargo.* "$here"/rust/src/*
}

for part in "${@:-java java5 go node cpp rust}"; do
  for one in $part; do "setup_$one"; done
done
