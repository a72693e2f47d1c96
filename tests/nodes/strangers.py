#!/usr/bin/env python3
"""What strangers may do to the port of a run. Started in a node by node_faults.py; ends by a signal.

  strangers.py idle HOST PORT COUNT   opens COUNT connections, says nothing, and replaces those that are closed
  strangers.py noise HOST PORT SEED   sends damaged, oversized and unexpected messages
  strangers.py silent PORT            accepts connections and never answers
  strangers.py proxy HOST PORT        connects one rank with rank 0, and repeats what that rank has said

The messages are those of core/control/message.hpp. `proxy` prints one line for each repetition."""
import os
import random
import resource
import socket
import struct
import sys
import threading
import time

HELLO, CHALLENGE, PROOF, JOIN, DECLINE, WELCOME, REFUSED = 1, 2, 3, 4, 5, 6, 7
LAST_TYPE = 35
PROTOCOL = b"yoke control 3"


def frame(kind, *fields):
    body = bytes([kind]) + b"".join(struct.pack("<I", len(f)) + f for f in fields)
    return struct.pack("<I", len(body)) + body


def connect(at):
    return socket.create_connection(at, timeout=5)


def idle(at, count):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, count + 100), limit))
    held = []
    while True:
        alive = []
        for s in held:
            try:
                s.setblocking(False)
                if s.recv(1000) != b"":
                    alive.append(s)
            except BlockingIOError:
                alive.append(s)
            except OSError:
                pass
        held = alive
        try:
            while len(held) < count:
                held.append(connect(at))
        except OSError:
            pass
        print(len(held), flush=True)
        time.sleep(0.2)


def noise_message(rng):
    nonce = os.urandom(32)
    join = frame(JOIN, b"", b"1", b"2", b"stranger", b"1", b"10.77.0.99", b"")
    return rng.choice([
        lambda: rng.randbytes(rng.randrange(1, 5000)),
        lambda: struct.pack("<I", rng.choice([0, 0xffffffff, 0x80000000, (64 << 20) + 1, 1025])) + rng.randbytes(900),
        lambda: struct.pack("<IB", 1000, HELLO),                                      # a part of a frame
        lambda: struct.pack("<IBI", 9, HELLO, 0xffffffff) + b"abcd",                  # a field that is too long
        lambda: frame(rng.randrange(0, 256), *[rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(5))]),
        lambda: frame(rng.randrange(1, LAST_TYPE + 1), b"1", b"key", b"value"),
        lambda: frame(HELLO, PROTOCOL, nonce),
        lambda: frame(HELLO, b"yoke control 999", nonce),
        lambda: frame(HELLO, PROTOCOL, nonce) + frame(PROOF, rng.randbytes(32)) + join,
        lambda: frame(HELLO, PROTOCOL, nonce) + join,
        lambda: frame(HELLO, PROTOCOL, nonce) + frame(DECLINE, b"1", b"stranger", b"1", b"the run must end"),
        lambda: b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n",
    ])()


def noise(at, seed):
    rng = random.Random(seed)
    while True:
        try:
            with connect(at) as s:
                s.sendall(noise_message(rng))
                if rng.random() < 0.5:
                    s.settimeout(0.05)
                    s.recv(4096)
        except OSError:
            pass
        time.sleep(0.01)  # this process shares its processors with the run


def silent(port):
    held = []
    with socket.create_server(("", port)) as server:
        print("ready", flush=True)
        while True:
            held.append(server.accept())


def copy(source, target, record=None):
    try:
        while data := source.recv(65536):
            if record is not None and len(record) < 100_000:
                record.extend(data)
            target.sendall(data)
    except OSError:
        pass
    for s in (source, target):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def frames(data):
    """Returns the complete frames at the beginning of the data."""
    found, at = [], 0
    while len(data) >= at + 4 and len(data) >= at + 4 + (size := struct.unpack_from("<I", data, at)[0]):
        found.append(bytes(data[at:at + 4 + size]))
        at += 4 + size
    return found


def receive(s, seconds):
    """Returns the types of the messages that come until the connection is closed or the time is over."""
    data, state, deadline = b"", "open", time.monotonic() + seconds
    try:
        while state == "open" and (left := deadline - time.monotonic()) > 0:
            s.settimeout(left)
            part = s.recv(65536)
            data += part
            state = "open" if part else "closed"
    except TimeoutError:
        pass
    except OSError:
        state = "closed"
    return [frame[4] for frame in frames(data)], state


def repeat(at, record):
    """Says what the member has said, one message at a time."""
    types, state = [], "open"
    with connect(at) as s:
        for part in frames(record)[:3]:  # kHello, kProof, kJoin
            try:
                s.sendall(part)
            except OSError:
                break
            more, state = receive(s, 0.5)
            types += more
    print(f"repeated: answers {types}, {state}", flush=True)


def proxy(at):
    record = bytearray()
    with socket.create_server(("", at[1])) as server:
        print("ready", flush=True)
        member, _ = server.accept()
        hub = connect(at)
        hub.settimeout(None)
        threading.Thread(target=copy, args=(member, hub, record), daemon=True).start()
        threading.Thread(target=copy, args=(hub, member), daemon=True).start()
        time.sleep(3)
        while True:
            repeat(at, record)


def main():
    mode, arguments = sys.argv[1], sys.argv[2:]
    if mode == "silent":
        silent(int(arguments[0]))
    at = (arguments[0], int(arguments[1]))
    if mode == "idle":
        idle(at, int(arguments[2]))
    elif mode == "noise":
        noise(at, int(arguments[2]))
    else:
        proxy(at)


if __name__ == "__main__":
    main()
