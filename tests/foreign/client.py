"""Uses a server as some deployed clients do, with only the websockets package.

It never confirms output: after a cut it resumes its session and reads the missed events once.
"""

import base64
import contextlib
import json
import socket
import struct
import sys

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

LINES = 500_000
SESSION_STILL_ATTACHED = -32010


class Refused(Exception):
    def __init__(self, error):
        super().__init__(error)
        self.code = error["code"]


class Client:
    """One session over successive connections."""

    def __init__(self, url, connections):
        self.url = url
        self.connections = connections
        self.session = None
        self.last_id = 0
        self.events = {}
        self.dial()

    def dial(self):
        while True:
            self.socket = self.connections.enter_context(connect(self.url, max_size=64 << 20))
            params = {"clientName": "foreign"}
            if self.session:
                params["resumeSessionId"] = self.session
            try:
                self.session = self.call("initialize", params)["sessionId"]
            except Refused as refused:
                # The server may not have noticed the end of the old connection yet.
                if refused.code != SESSION_STILL_ATTACHED:
                    raise
                self.socket.close()
                continue
            self.socket.send(json.dumps({"method": "initialized"}))
            return

    def cut(self):
        """Resets the connection, with all data in flight."""
        raw = self.socket.socket
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Ends the library's reading thread, which then closes the socket.
        raw.shutdown(socket.SHUT_RD)
        # Data that the library has already read counts as received: the library answers pings while
        # it reads.
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.receive()

    def call(self, method, params):
        self.last_id += 1
        request = {"id": self.last_id, "method": method, "params": params}
        self.socket.send(json.dumps(request))
        while True:
            message = self.receive()
            if message.get("id") == self.last_id:
                if "error" in message:
                    raise Refused(message["error"])
                return message["result"]

    def receive(self):
        message = json.loads(self.socket.recv())
        if "method" in message:
            params = message["params"]
            assert "droppedBytes" not in params, "output was lost"
            self.events.setdefault(params["processId"], {}).setdefault(params["seq"], message)
        return message

    def take(self, process, seq):
        """Returns the event with this number."""
        events = self.events.setdefault(process, {})
        while seq not in events:
            self.receive()
        return events[seq]

    def catch_up(self, process):
        """Reads the missed events once; a remaining hole would be a loss."""
        events = self.events[process]
        after = max(events)
        read = self.call("process/read", {"processId": process, "afterSeq": after})
        for chunk in read["chunks"]:
            params = dict(chunk, processId=process)
            events.setdefault(chunk["seq"], {"method": "process/output", "params": params})
        # Exit and close have numbers too; a response reports them as `exited` and `closed`.
        known = {event["method"] for event in events.values()}
        happened = [("process/exited", read["exited"]), ("process/closed", read["closed"])]
        ends = [method for method, is_over in happened if is_over and method not in known]
        missing = [seq for seq in range(1, read["nextSeq"]) if seq not in events]
        assert len(missing) == len(ends), f"holes: {missing}"
        for seq, method in zip(missing, ends):
            params = {"processId": process, "seq": seq, "exitCode": read["exitCode"]}
            events[seq] = {"method": method, "params": params}


def start(client, process, *argv, **options):
    params = {
        "processId": process,
        "argv": argv,
        "cwd": "file:///tmp",
        "env": {"PATH": "/usr/bin:/bin"},
        "tty": False,
        "pipeStdin": False,
        "arg0": None,
    }
    answer = client.call("process/start", {**params, **options})
    assert answer == {"processId": process, "sandboxType": "none"}, answer


def write(client, process, text):
    chunk = base64.b64encode(text.encode()).decode()
    return client.call("process/write", {"processId": process, "chunk": chunk})


def text_of(event):
    return base64.b64decode(event["params"]["chunk"]).decode()


def echo_and_terminate(client):
    start(client, "cat", "cat", pipeStdin=True)
    assert write(client, "cat", "hello\n") == {"status": "accepted"}
    assert text_of(client.take("cat", 1)) == "hello\n"
    read = client.call("process/read", {"processId": "cat", "afterSeq": None, "maxBytes": 65536, "waitMs": 1000})
    assert [chunk["seq"] for chunk in read["chunks"]] == [1] and not read["exited"], read
    assert client.call("process/terminate", {"processId": "cat"}) == {"running": True}
    assert client.take("cat", 2)["params"]["exitCode"] == 137
    assert client.take("cat", 3)["method"] == "process/closed"


def cut_and_resume(client):
    """Loses the connection repeatedly while numbers stream, and misses none of them."""
    start(client, "seq", "/bin/sh", "-c", f"seq 1 {LINES}; exit 3")
    pieces = []
    seq = 0
    while True:
        seq += 1
        event = client.take("seq", seq)
        if seq % 5 == 0:
            client.cut()
            client.dial()
            client.catch_up("seq")
        if event["method"] == "process/exited":
            assert event["params"]["exitCode"] == 3, event
        elif event["method"] == "process/closed":
            break
        else:
            pieces.append(text_of(event))
    assert "".join(pieces) == "".join(f"{n}\n" for n in range(1, LINES + 1)), "output was lost"


def refusals(client):
    for method, params, code in [
        ("process/start", {"processId": "x"}, -32602),
        ("process/nonsense", {}, -32601),
        ("process/read", {"processId": "nobody"}, -32600),
    ]:
        try:
            client.call(method, params)
        except Refused as refused:
            assert refused.code == code, (method, refused)
        else:
            raise AssertionError(f"{method} was not refused")


def main():
    with contextlib.ExitStack() as connections:
        client = Client(sys.argv[1], connections)
        echo_and_terminate(client)
        cut_and_resume(client)
        refusals(client)
    print("ok")


if __name__ == "__main__":
    main()
