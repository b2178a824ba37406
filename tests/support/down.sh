#!/usr/bin/env bash
# Ends what up.sh started, and nothing else, and forgets its data.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
# shellcheck source=tests/support/run.sh
. "$here/run.sh"

stop mongod
stop rabbit
rm -rf "$run"

if [[ -z ${UP_FOLDER-} ]] && docker info >/dev/null 2>&1; then
    if docker compose version >/dev/null 2>&1; then docker compose down -v; else docker-compose down -v; fi
fi
