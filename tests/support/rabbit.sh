#!/usr/bin/env bash
# Becomes a private RabbitMQ, or a tool that talks to it: rabbit.sh DATA PORT COMMAND [ARGUMENT...]
# The two ports after PORT are taken too. Settings, if any, are in DATA/rabbitmq.conf.
set -euo pipefail
data=$1 port=$2 command=$3
shift 3

# Nothing is shared with a broker of the system: name, ports, port mapper, cookie (in HOME),
# configuration, folders.
export HOME=$data
export ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$((port + 2))
export RABBITMQ_NODENAME=toa$port@localhost
export RABBITMQ_NODE_IP_ADDRESS=127.0.0.1
export RABBITMQ_NODE_PORT=$port RABBITMQ_DIST_PORT=$((port + 1))
export RABBITMQ_MNESIA_BASE=$data/mnesia RABBITMQ_LOG_BASE=$data/log
export RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_CONFIG_FILE=$data/rabbitmq.conf
export RABBITMQ_ADVANCED_CONFIG_FILE=$data/advanced.config
export RABBITMQ_GENERATED_CONFIG_DIR=$data/config
export RABBITMQ_ENABLED_PLUGINS_FILE=$data/plugins
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}'
export ERL_CRASH_DUMP=$data/erl_crash.dump # not in the folder one happens to be in
export RABBITMQ_CTL_DIST_PORT_MAX=35871 # many tools at a time

if [[ $command == rabbitmq-server ]]; then
    touch "$RABBITMQ_CONFIG_FILE"
    echo '[].' >"$RABBITMQ_ENABLED_PLUGINS_FILE"
    # The server would start a port mapper that outlives it, in a session of its own; this one stays
    # in our process group.
    epmd -address "$ERL_EPMD_ADDRESS" -port "$ERL_EPMD_PORT" &
    # Makes the start script become the server instead of waiting for it: signals reach the server.
    export RUNNING_UNDER_SYSTEMD=true
fi
exec "/usr/lib/rabbitmq/bin/$command" "$@"
