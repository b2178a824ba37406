#!/usr/bin/env bash
# Brings the clients of other languages, for the writers in examples/writers and the consumers in tests/consumers,
# into .servers/node and .servers/python: NODE_PATH=.servers/node/node_modules PYTHONPATH=.servers/python. Does
# nothing when they are there. For `install.sh foreign`, which has brought node, npm and pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

node=.servers/node python=.servers/python
packages=(examples/writers/package.json tests/consumers/package.json)
requirements=(examples/writers/requirements.txt tests/consumers/requirements.txt)

fail() {
    echo "foreign.sh: $*" >&2
    exit 1
}

# Has a folder filled by the rest, unless it was, for the same files and the same version of the language:
# compiled parts fit no other. One that is half filled is begun anew.
fill() {
    local folder=$1 contents=$2
    shift 2
    [[ ! -f $folder/contents || $(<"$folder/contents") != "$contents" ]] || return 0
    echo "foreign.sh: $folder" >&2
    rm -rf "$folder"
    mkdir -p "$folder"
    "$@"
    echo "$contents" >"$folder/contents"
}

# All into one folder, where each client is found from any script; none of them needs to run code to be installed.
install_node() {
    local pairs='Object.entries(require(path.resolve(file)).dependencies).map((pair) => pair.join("@"))' clients
    clients=$(node -p "process.argv.slice(1).flatMap((file) => $pairs).join(' ')" "${packages[@]}")
    read -ra clients <<<"$clients"
    npm install --prefix "$node" --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel error \
        "${clients[@]}" >/dev/null
}

install_python() {
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check \
        --target "$python" "${requirements[@]/#/--requirement=}" >&2
}

version=$(node --version)
[[ $version =~ ^v([0-9]+) && ${BASH_REMATCH[1]} -ge 18 ]] ||
    fail "node $version is too old for the clients; put 18 or later in PATH"

fill "$node" "$version $(cat "${packages[@]}")" install_node
fill "$python" "$(python3 --version) $(cat "${requirements[@]}")" install_python
