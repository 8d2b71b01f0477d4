#!/bin/sh
# Brings what tests/service needs and a plain machine lacks, as Debian packages: Prometheus with
# promtool, systemd-analyze, strace. Does nothing when they are there. Without root it says what is
# missing, and those tests skip with one line.
#
# The Prometheus package starts a server of its own when it is installed. A policy-rc.d that answers
# 101 ("not allowed") prevents that for the length of the installation; one that was there before is
# put back.
set -eu

packages=""
need() {
    command -v "$1" >/dev/null || packages="$packages $2"
}
need prometheus prometheus
need systemd-analyze systemd
need strace strace
# Debian 12 has Prometheus 2.42, Debian 13 has 2.53; the tests ask nothing newer of either.
if [ -z "$packages" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "tests/service: missing; as root: apt-get install$packages" >&2
    exit 0
fi

policy=/usr/sbin/policy-rc.d
kept=$(mktemp -d)
put_back() {
    rm -f "$policy"
    if [ -e "$kept/policy-rc.d" ]; then
        mv "$kept/policy-rc.d" "$policy"
    fi
    rmdir "$kept"
}
trap put_back EXIT
trap 'exit 1' HUP INT TERM
if [ -e "$policy" ]; then
    mv "$policy" "$kept/policy-rc.d"
fi
printf '#!/bin/sh\nexit 101\n' > "$policy"
chmod 755 "$policy"

install() {
    # One word each: the list is ours.
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages \
        >/dev/null
}
install 2>/dev/null || { apt-get update -qq && install; }
# A machine with systemd would start it at the next boot.
if [ -d /run/systemd/system ]; then
    systemctl disable --quiet prometheus prometheus-node-exporter 2>/dev/null || true
fi
