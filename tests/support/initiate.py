#!/usr/bin/env python3
"""Makes a mongod on 127.0.0.1 a replica set of one and waits until it takes writes: initiate.py PORT

The shell that could do this is not installed with it, and two commands need no driver."""

import socket
import struct
import sys
import time

DEADLINE = 60


def bson(document):
    def element(name, value):
        key = name.encode() + b"\0"
        if isinstance(value, dict):
            return b"\x03" + key + bson(value)
        if isinstance(value, list):
            return b"\x04" + key + bson({str(index): item for index, item in enumerate(value)})
        if isinstance(value, int):
            return b"\x10" + key + struct.pack("<i", value)
        text = value.encode() + b"\0"
        return b"\x02" + key + struct.pack("<i", len(text)) + text

    body = b"".join(element(name, value) for name, value in document.items()) + b"\0"
    return struct.pack("<i", len(body) + 4) + body


def run(port, command):
    """The answer's raw bytes; a field is found by its name."""
    body = struct.pack("<iB", 0, 0) + bson({**command, "$db": "admin"})
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
        stream.sendall(struct.pack("<iiii", len(body) + 16, 1, 0, 2013) + body)
        answer = b""
        while len(answer) < 4 or len(answer) < struct.unpack_from("<i", answer)[0]:
            received = stream.recv(65536)
            if not received:
                raise ConnectionError("mongod hung up")
            answer += received
        return answer


def main(port):
    end = time.monotonic() + DEADLINE
    while True:
        try:
            hello = run(port, {"hello": 1})
            if b"\x08isWritablePrimary\0\x01" in hello:
                return
            if b"\x08isreplicaset\0\x01" in hello:  # started with a set's name, not yet initiated
                host = {"_id": 0, "host": f"127.0.0.1:{port}"}
                run(port, {"replSetInitiate": {"_id": "rs0", "members": [host]}})
        except OSError:
            pass  # not up yet
        if time.monotonic() > end:
            sys.exit(f"mongod on port {port} takes no writes within {DEADLINE} s")
        time.sleep(0.1)


main(int(sys.argv[1]))
