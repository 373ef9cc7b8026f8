"""An MCP server on standard input and output, with only the standard library.

Each tool takes a tag besides its arguments. The server writes the tags of all calls to the file named
by its argument, in order of arrival, to reveal lost and repeated calls.
"""

import itertools
import json
import sys
import threading

PROTOCOL_VERSION = "2025-06-18"
METHOD_NOT_FOUND = -32601

TOOLS = {
    "echo": {"text": "string"},
    "next": {},
    "slow": {"ms": "integer"},
    "large": {"bytes": "integer"},
}


class Server:
    def __init__(self, log):
        self.log = log
        self.calls_of_next = itertools.count(1)
        self.output = threading.Lock()

    def serve(self):
        for line in sys.stdin:
            message = json.loads(line)
            # Notifications get no response.
            if "id" in message:
                self.handle(message["id"], message["method"], message.get("params") or {})

    def handle(self, request, method, params):
        if method == "initialize":
            self.answer(
                request,
                {
                    "protocolVersion": PROTOCOL_VERSION,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "foreign", "version": "1"},
                },
            )
        elif method == "ping":
            self.answer(request, {})
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": schema(TOOLS[name])} for name in TOOLS]
            self.answer(request, {"tools": tools})
        elif method == "tools/call" and params["name"] in TOOLS:
            self.call(request, params["name"], params["arguments"])
        else:
            unknown = f"tool: {params['name']}" if method == "tools/call" else f"method: {method}"
            error = {"code": METHOD_NOT_FOUND, "message": f"unknown {unknown}"}
            self.send({"id": request, "error": error})

    def call(self, request, tool, arguments):
        tag = arguments["tag"]
        print(tag, file=self.log, flush=True)
        if tool == "echo":
            self.answer_text(request, arguments["text"])
        elif tool == "next":
            self.answer_text(request, str(next(self.calls_of_next)))
        elif tool == "slow":
            # Other calls overtake this one.
            ms = arguments["ms"]
            threading.Timer(ms / 1000, self.answer_text, (request, f"{ms} ms later")).start()
        elif tool == "large":
            count = arguments["bytes"]
            self.answer_text(request, (tag * (count // len(tag) + 1))[:count])

    def answer_text(self, request, text):
        self.answer(request, {"content": [{"type": "text", "text": text}]})

    def answer(self, request, result):
        self.send({"id": request, "result": result})

    def send(self, message):
        line = json.dumps({"jsonrpc": "2.0", **message})
        with self.output:
            print(line, flush=True)


def schema(arguments):
    names = {"tag": "string", **arguments}
    properties = {name: {"type": kind} for name, kind in names.items()}
    return {"type": "object", "properties": properties, "required": list(names)}


if __name__ == "__main__":
    with open(sys.argv[1], "x", encoding="utf-8") as log:
        Server(log).serve()
