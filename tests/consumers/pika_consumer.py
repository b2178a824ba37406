#!/usr/bin/env python3
"""The usual Python client: pika_consumer.py URI EXCHANGE QUEUE COUNT [SECONDS]

Says `ready` once messages cannot be missed, then {id, type, body} a line; ends once COUNT different ones have
come."""

import json
import sys
import time

import pika


def tell(line):
    print(line, flush=True)


def main(uri, exchange, queue, count, seconds=60):
    end, seen = time.monotonic() + int(seconds), set()
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    channel = connection.channel()
    channel.exchange_declare(exchange, "fanout", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange)
    tell("ready")

    for method, properties, body in channel.consume(queue, inactivity_timeout=0.1):
        if method:
            tell(json.dumps({"id": properties.message_id, "type": properties.type, "body": json.loads(body)}))
            channel.basic_ack(method.delivery_tag)
            seen.add(properties.message_id)
        if len(seen) >= int(count):
            break
        if time.monotonic() > end:
            sys.exit(f"{len(seen)} of {count} messages from {exchange} within {seconds} s")
    connection.close()


main(*sys.argv[1:])
