"""Starts processes with managed networking as some deployed clients do, and responds to policy requests.

Usage: network_client.py SOCKET. The hosts are those of `tests/network/world.py`.
"""

import base64
import contextlib
import json
import re
import sys

from websockets.sync.client import unix_connect

FIELDS = {
    "processId",
    "timestamp",
    "scope",
    "decision",
    "source",
    "reason",
    "protocol",
    "host",
    "port",
    "policyOverride",
}
PROXY = "http://127.0.0.1:43128"
NEVER = object()


class Refused(Exception):
    def __init__(self, error):
        super().__init__(error)
        self.code = error["code"]


class Client:
    def __init__(self, connection):
        self.connection = connection
        self.last_id = 0
        self.asked = []
        self.decided = []
        self.output = {}
        self.ended = {}
        # The response to each policy request. With `NEVER`, none is sent.
        self.answer = NEVER
        self.call("initialize", {"clientName": "foreign"})
        self.send({"method": "initialized"})

    def send(self, message):
        self.connection.send(json.dumps(message))

    def call(self, method, params):
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        while True:
            message = self.receive()
            if "method" not in message and message["id"] == self.last_id:
                if "error" in message:
                    raise Refused(message["error"])
                return message["result"]

    def receive(self):
        message = json.loads(self.connection.recv())
        method, params = message.get("method"), message.get("params", {})
        if method == "network/policyRequest":
            self.question(message)
        elif method == "network/policyDecision":
            self.decided.append(params)
        elif method == "process/output":
            self.output[params["processId"]] += base64.b64decode(params["chunk"]).decode()
        elif method == "process/exited":
            self.ended[params["processId"]] = None
        elif method == "process/closed":
            self.ended[params["processId"]] = True
        return message

    def question(self, message):
        assert isinstance(message["id"], int) and message["id"] >= 1, message
        assert set(message["params"]) == {"processId", "request"}, message
        assert set(message["params"]["request"]) == {"protocol", "host", "port"}, message
        self.asked.append(message["params"])
        if self.answer is not NEVER:
            self.send({"id": message["id"], **self.answer})

    def run(self, process, script, env=None, **fields):
        """Runs a process and returns its output. Records the policy requests and decisions."""
        self.asked, self.decided, self.output[process] = [], [], ""
        params = {
            "processId": process,
            "argv": ["/bin/bash", "-c", script],
            "cwd": "file:///tmp",
            "env": {"PATH": "/usr/bin:/bin", **(env or {})},
            "tty": False,
            "pipeStdin": False,
            "arg0": None,
        }
        started = self.call("process/start", {**params, **fields})
        assert started["processId"] == process and started["sandboxType"] == "linuxSeccomp", started
        while not self.ended.get(process):
            self.receive()
        for decision in self.decided:
            assert FIELDS <= set(decision) <= FIELDS | {"method", "client"}, decision
            assert decision["processId"] == process, decision
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", decision["timestamp"]), decision
        return self.output[process]

    def refused(self, code, **fields):
        try:
            self.run(f"refused-{self.last_id}", "true", **fields)
        except Refused as refused:
            assert refused.code == code, (refused, fields)
        else:
            raise AssertionError(f"not refused: {fields}")


def network(domains, timeout=None, **changed):
    """Returns all fields of a start that concern the network, as some deployed clients send them."""
    proxy = {
        "enabled": True,
        "enableSocks5": True,
        "enableSocks5Udp": False,
        "allowUpstreamProxy": False,
        "dangerouslyAllowAllUnixSockets": False,
        "mode": "full",
        "domains": domains,
        "unixSockets": None,
        "allowLocalBinding": False,
    }
    return {
        "enforceManagedNetwork": True,
        "managedNetwork": None,
        "networkProxy": {
            "proxy": {**proxy, **changed},
            "auditMetadata": {"conversationId": "c", "userEmail": None},
            "environmentId": "local",
            "executionId": "e",
            "policyDecisionTimeoutMs": timeout,
        },
    }


def head(url, *options):
    return f"curl -s -D - {' '.join(options)} {url}"


def facts(decision, *names):
    return tuple(decision[name] for name in names)


def rules(client):
    domains = {"allowed.test": "allow", "*.allowed.test": "allow", "sub.allowed.test": "deny", "other.test": "none"}
    output = client.run("allowed", head("http://allowed.test/"), **network(domains))
    assert "reached" in output, output
    (decision,) = client.decided
    wanted = ("domain", "allow", "baseline_policy", "http", "allowed.test", 80, "GET", False)
    names = ("scope", "decision", "source", "protocol", "host", "port", "method", "policyOverride")
    assert facts(decision, *names) == wanted, decision
    assert re.fullmatch(r"127\.0\.0\.1:\d+", decision["client"]), decision
    assert not client.asked
    for process, url, error in [
        ("unnamed", "http://other.test/", "blocked-by-allowlist"),
        ("denied", "http://sub.allowed.test/", "blocked-by-denylist"),
        ("private", "http://10.0.0.5/", "blocked-by-policy"),
    ]:
        output = client.run(process, head(url), **network(domains))
        assert output.startswith("HTTP/1.1 403") and f"x-proxy-error: {error}\r\n" in output, output
        assert facts(client.decided[0], "decision", "source") == ("deny", "baseline_policy"), client.decided
    limited = network(domains, mode="limited")
    output = client.run("post", head("http://allowed.test/", "-d", "x"), **limited)
    assert "x-proxy-error: blocked-by-method-policy\r\n" in output, output
    assert facts(client.decided[0], "scope", "source", "method") == ("non_domain", "mode_guard", "POST"), client.decided
    assert "reached" in client.run("get", head("http://allowed.test/"), **limited)


def variables(client):
    env = {"HTTPS_PROXY": "http://mine:1", "no_proxy": "mine"}
    output = client.run("variables", "env", env=env, **network({"allowed.test": "allow"}))
    found = dict(line.split("=", 1) for line in output.splitlines())
    for name in ["HTTP_PROXY", "WS_PROXY", "WSS_PROXY", "http_proxy", "https_proxy", "ws_proxy", "wss_proxy"]:
        assert found[name] == PROXY, (name, found)
    for name in ["ALL_PROXY", "all_proxy"]:
        assert found[name] == "socks5h://127.0.0.1:41080", found
    assert found["HTTPS_PROXY"] == "http://mine:1" and found["no_proxy"] == "mine", found
    assert "localhost" in found["NO_PROXY"], found


def questions(client):
    # The timeout does not expire: each of these policy requests gets a response.
    asking = network({"allowed.test": "allow"}, timeout=600_000)
    decision = lambda kind, **more: {"result": {"decision": {"type": kind, **more}}}
    client.answer = decision("allow")
    assert "reached" in client.run("allow", head("http://asked.test/"), **asking)
    request = {"protocol": "http", "host": "asked.test", "port": 80}
    assert client.asked == [{"processId": "allow", "request": request}], client.asked
    names = ("decision", "source", "policyOverride", "scope")
    assert facts(client.decided[0], *names) == ("allow", "decider", True, "domain"), client.decided

    client.run("tunnel", "curl -sk https://asked.test/", **asking)
    assert client.asked[0]["request"] == {**request, "protocol": "https_connect", "port": 443}, client.asked
    client.run("socks", "curl -s --proxy $ALL_PROXY http://asked.test:8080/", **asking)
    assert client.asked[0]["request"] == {**request, "protocol": "socks5_tcp", "port": 8080}, client.asked

    for process, answer, verdict in [
        ("deny", decision("deny", reason="not today"), "deny"),
        ("ask", decision("ask", reason="not today"), "ask"),
    ]:
        client.answer = answer
        output = client.run(process, head("http://asked.test/"), **asking)
        assert "x-proxy-error: blocked-by-policy\r\n" in output, output
        assert facts(client.decided[0], "decision", "source", "reason") == (verdict, "decider", "not today")
    for number, answer in enumerate([
        {"error": {"code": -32603, "message": "no idea"}},
        {"result": {"decision": "allow"}},
        {"result": {"type": "allow"}},
        {"result": {}},
        {"result": None},
        {"result": {"decision": {"type": "Allow"}}},
        {"result": {"decision": {"type": "allow"}}, "error": {"code": 1, "message": "both"}},
        decision("deny", reason="x" * 1025),
        decision("deny", reason="a\nb"),
        decision("perhaps"),
    ]):
        client.answer = answer
        output = client.run(f"garbage-{number}", head("http://asked.test/"), **asking)
        assert "x-proxy-error: blocked-by-policy\r\n" in output, (answer, output)
        assert client.decided[0]["decision"] == "deny", (answer, client.decided)
        assert len(client.asked) == 1, client.asked
    client.answer = NEVER
    impatient = network({"allowed.test": "allow"}, timeout=1)
    output = client.run("never", head("http://asked.test/"), **impatient)
    assert "x-proxy-error: blocked-by-policy\r\n" in output, output
    assert len(client.asked) == 1 and client.decided[0]["decision"] == "deny", client.decided
    # A rule decides without a policy request.
    client.run("named", head("http://allowed.test/"), **asking)
    assert not client.asked


def refusals(client):
    client.refused(-32602, **network({"allowed.test": "allow"}, timeout=0))
    client.refused(-32602, **network({"*": "allow"}))
    client.refused(-32602, **network({"allowed.test": "maybe"}))
    client.refused(-32600, enforceManagedNetwork=True)
    client.refused(-32600, enforceManagedNetwork=True, managedNetwork=None, networkProxy=None)
    disabled = network({"allowed.test": "allow"}, enabled=False)
    client.refused(-32600, **disabled)
    try:
        client.run("x" * 257, "true", **network({}, timeout=1000))
    except Refused as refused:
        assert refused.code == -32602, refused
    else:
        raise AssertionError("a long id was not refused")


def own_proxy(client):
    """A proxy that the client runs on loopback, here a web server."""
    managed = {
        "enforceManagedNetwork": True,
        "managedNetwork": {"loopbackPorts": [8000], "allowLocalBinding": False},
        "networkProxy": None,
    }
    assert "reached" in client.run("own", head("http://127.0.0.1:8000/"), **managed)
    for number, url in enumerate(["http://127.0.0.1:8080/", "http://93.184.216.34:8000/", "http://allowed.test/"]):
        assert client.run(f"not-own-{number}", head(url), **managed) == "", url


def main():
    with contextlib.closing(unix_connect(sys.argv[1], max_size=64 << 20)) as connection:
        client = Client(connection)
        capabilities = client.call("environment/info", {})["capabilities"]
        assert capabilities["networkProxyLaunch"] is True, capabilities
        rules(client)
        variables(client)
        questions(client)
        refusals(client)
        own_proxy(client)
    print("ok")


if __name__ == "__main__":
    main()
