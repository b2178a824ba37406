# What up.sh and down.sh agree on; read by both, in the project's folder.
# shellcheck shell=bash disable=SC2034

run=${UP_FOLDER:-$PWD/.servers/run}
mongod_port=${UP_MONGODB_PORT:-27117}
rabbit_port=${UP_RABBITMQ_PORT:-5772}

# Whether the process with the noted pid is the one that was started, not a stranger that has been
# given its pid since.
ours() {
    [[ -f $run/$1.pid ]] && [[ /proc/$(<"$run/$1.pid")/cwd -ef $run/$1 ]]
}

# Kills a server and its helpers, which are in its process group and may have outlived it.
stop() {
    [[ -f $run/$1.pid ]] || return 0
    local process group
    for process in /proc/[0-9]*; do
        [[ $process/cwd -ef $run/$1 ]] || continue
        { read -r _ _ _ _ group _ <"$process/stat"; } 2>/dev/null || continue
        [[ $group != "$(<"$run/$1.pid")" ]] || kill -KILL "${process#/proc/}" 2>/dev/null || true
    done
    while ours "$1"; do sleep 0.05; done
    rm "$run/$1.pid"
}
