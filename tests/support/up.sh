#!/usr/bin/env bash
# Starts a MongoDB and a RabbitMQ to play with, and prints how to reach them. Containers where a
# Docker engine answers, else private processes in .servers/run. They run until down.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
# shellcheck source=tests/support/run.sh
. "$here/run.sh"

containers() {
    if docker compose version >/dev/null 2>&1; then
        docker compose up -d --wait >&2
    else
        docker-compose up -d >&2
        # This one cannot wait.
        until [[ $(docker-compose ps -q | xargs docker inspect -f '{{.State.Health.Status}}' |
            sort -u) == healthy ]]; do sleep 1; done
    fi
}

processes() {
    "$here/install.sh"
    start mongod "$mongod_port" "$here/mongod.sh" "$run/mongod" "$mongod_port" --replSet rs0
    start rabbit "$rabbit_port" "$here/rabbit.sh" "$run/rabbit" "$rabbit_port" rabbitmq-server
    python3 "$here/initiate.py" "$mongod_port" || ended mongod
    for ((end = SECONDS + 60; SECONDS < end; )); do
        ! greets || return 0
        ours rabbit || ended rabbit
        sleep 0.1
    done
    ended rabbit
}

# Runs a server in a folder and a session of its own, unless it runs already.
start() {
    local name=$1 port=$2
    shift 2
    ! ours "$name" || return 0
    stop "$name"
    if { : <>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null; then
        echo "up.sh: port $port is taken by a server that is not ours" >&2
        exit 1
    fi
    mkdir -p "$run/$name"
    (cd "$run/$name" && exec setsid "$@" </dev/null >"../$name.log" 2>&1) &
    echo $! >"$run/$name.pid"
}

# Whether the broker answers to the protocol's first bytes.
greets() {
    {
        printf 'AMQP\0\0\11\1' >&3
        [[ $(head -c 1 <&3 | od -An -tu1) -eq 1 ]]
    } 2>/dev/null 3<>"/dev/tcp/127.0.0.1/$rabbit_port"
}

ended() {
    tail -n 20 "$run/$1.log" >&2
    echo "up.sh: $1 does not serve; its log is $run/$1.log" >&2
    exit 1
}

if [[ -z ${UP_FOLDER-} ]] && docker info >/dev/null 2>&1; then
    containers
    mongod_port=27017 rabbit_port=5672
else
    processes
fi
echo "export TOA_OUTBOX_MONGODB='mongodb://127.0.0.1:$mongod_port/tea?replicaSet=rs0'"
echo "export TOA_OUTBOX_AMQP='amqp://guest:guest@127.0.0.1:$rabbit_port/%2f'"
