#!/usr/bin/env bash
# Holds a server on a leash: leash.sh COMMAND [ARGUMENT...]
#
# The command runs until the leash's standard input ends or the leash is told to TERM; then the
# server and whatever it started are killed and its folder is removed. The test process holds the
# other end of that pipe, so however it ends, kill -9 included, nothing stays behind. A line `start`
# starts the command again once the server has ended.
#
#   LEASH_PID    the file that tells the pid of the server
#   LEASH_DATA   the folder to remove at the end, if any
set -euo pipefail

# A session of its own: Ctrl-C in the terminal must not reach the server before the test has ended.
read -r _ _ _ _ group _ </proc/$$/stat
[[ $group == "$$" ]] || exec setsid "$0" "$@"

server=none

# Whether the pid is still our server's, not one given away again.
runs() {
    local parent
    { read -r _ _ _ parent _ <"/proc/$server/stat"; } 2>/dev/null && [[ $parent == "$$" ]]
}

start() {
    ! runs || return 0
    # Should the leash itself be killed, the kernel ends the server.
    setpriv --pdeathsig KILL -- "$@" </dev/null &
    server=$!
    echo "$server" >"$LEASH_PID.new"
    mv "$LEASH_PID.new" "$LEASH_PID"
}

end() {
    trap '' TERM INT HUP
    ! runs || kill -KILL "$server"
    wait
    [[ -z ${LEASH_DATA:-} ]] || rm -rf -- "$LEASH_DATA"
    kill -KILL -- "-$$" # helpers of the server, and this shell
}

trap end TERM INT HUP
start "$@"
while read -r order; do
    [[ $order != start ]] || start "$@"
done
end
