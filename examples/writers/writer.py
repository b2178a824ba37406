#!/usr/bin/env python3
"""A service whose changes reach AMQP by way of toa-outbox: writer.py URI COUNT [RATE]

Makes COUNT tea pots, RATE of them a second if given, then boils the first. The database is the one that the
URI names, as in mongodb://localhost/tea?replicaSet=rs0."""

import os
import random
import sys
import time
import uuid

from bson import Binary, Int64
from pymongo import MongoClient, WriteConcern
from pymongo.errors import OperationFailure

NAMESPACE_EXISTS = 48


def row(origin, state, given):
    """What toa-outbox publishes: the record before the change, none for a new one, and after it."""
    return {
        "_id": Binary.from_uuid(uuid7()),  # subtype 4; becomes the message's id
        "lane": random.randrange(128),  # which replica of toa-outbox looks after it, and nothing else
        "published": False,
        "pending": Int64(time.time() * 1000),  # due now, since nobody but toa-outbox is going to publish it
        "event": {"origin": origin, "state": state, "trailers": {}, "input": given},
    }


def uuid7():
    """Milliseconds first, then chance: ids in the order of time keep the index on them small and warm."""
    bits = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    bits = bits & ~(0xF << 76) | 7 << 76  # the version
    return uuid.UUID(int=bits & ~(3 << 62) | 2 << 62)  # the variant


def create(session, pots, rows, pot):
    pots.insert_one(pot, session=session)  # gives it its _id
    rows.insert_one(row(None, pot, {"temperature": pot["temperature"]}), session=session)


def boil(session, pots, rows, pot):
    # Whoever changes the pot in the meantime makes the transaction fail, and it is run again.
    origin = pots.find_one({"_id": pot["_id"]}, session=session)
    state = {**origin, "temperature": 100, "_version": origin["_version"] + 1}
    pots.replace_one({"_id": pot["_id"]}, state, session=session)
    rows.insert_one(row(origin, state, "boil"), session=session)


def ensure(database, name):
    """Before the first transaction: within one, others that create it too would make it fail."""
    try:
        database.create_collection(name, check_exists=False)
    except OperationFailure as error:
        if error.code != NAMESPACE_EXISTS:
            raise
    return database[name]


def main(uri, count, rate=0):
    client = MongoClient(uri)
    database = client.get_default_database()
    pots, rows = ensure(database, "tea_pots"), ensure(database, "tea_pots_outbox")

    def commit(change, pot):
        with client.start_session() as session:
            # toa-outbox is shown a row once a majority has it: at once when the commit waits for that, else
            # some 50 ms later.
            majority = WriteConcern("majority")
            session.with_transaction(lambda session: change(session, pots, rows, pot), write_concern=majority)

    first, start = None, time.monotonic()
    for number in range(count):
        if rate:
            time.sleep(max(0, start + number / rate - time.monotonic()))
        pot = {"number": number, "temperature": 20, "_version": 1}
        commit(create, pot)
        first = first or pot
    if first:
        commit(boil, first)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
