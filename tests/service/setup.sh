#!/bin/sh
# Brings what tests/service needs and a plain machine lacks: Prometheus with promtool, from Debian.
# Does nothing when they are there. Without root it says so, and those tests skip with one line.
#
# The Debian package starts a server of its own when it is installed. A policy-rc.d that answers 101
# ("not allowed") prevents that for the length of the installation; one that was there before is put
# back.
set -eu

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "tests/service: prometheus is missing; as root: apt-get install prometheus" >&2
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

export DEBIAN_FRONTEND=noninteractive
# Debian 12 has 2.42, Debian 13 has 2.53; anything from 2.40 speaks what the tests ask.
install="apt-get install -qq -y --no-install-recommends prometheus"
if ! $install >/dev/null 2>&1; then
    apt-get update -qq
    $install >/dev/null
fi
# A machine with systemd would start it at the next boot.
if [ -d /run/systemd/system ]; then
    systemctl disable --quiet prometheus prometheus-node-exporter 2>/dev/null || true
fi
