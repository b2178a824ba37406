#!/usr/bin/env bash
# Becomes a private MongoDB: mongod.sh DATA PORT [ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
data=$1 port=$2
shift 2

# Small, since tests have many at a time.
[[ $* == *wiredTigerCacheSizeGB* ]] || set -- --wiredTigerCacheSizeGB 0.5 "$@"

# Test commands for fail points; a TTL monitor and a shutdown that do not keep a test waiting;
# nothing written outside the folder.
exec "$here/../../.servers/bin/mongod" \
    --dbpath "$data" --port "$port" --bind_ip 127.0.0.1 --nounixsocket \
    --setParameter enableTestCommands=1 \
    --setParameter ttlMonitorSleepSecs=1 \
    --setParameter shutdownTimeoutMillisForSignaledShutdown=100 \
    --setParameter diagnosticDataCollectionEnabled=false \
    "$@"
