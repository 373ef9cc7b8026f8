"""The servers of the network tests, in their own network namespace. They record every contact.

Usage: world.py DIRECTORY, inside of new network and mount namespaces. DIRECTORY has `certificate.pem`, its key, and
`www`. Prints "ready"; then answers each line on standard input with a line of JSON: the new contacts.
"""

import json
import os
import selectors
import socket
import ssl
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from dns import Names
from proxies import http_proxy, socks_proxy

NAME_SERVER = "93.184.216.53"
ADDRESSES = [
    "93.184.216.34/32",
    "93.184.216.35/32",
    f"{NAME_SERVER}/32",
    "10.0.0.5/32",
    "169.254.169.254/32",
    "2606:2800:220:1::1/128",
    "fd00::5/128",
    "fe80::5/128",
    # 93.184.216.35 in the formats of NAT64, 6to4 and SIIT, and 10.0.0.5 in that of NAT64.
    "64:ff9b::5db8:d823/128",
    "2002:5db8:d823::1/128",
    "::ffff:0:5db8:d823/128",
    "64:ff9b::a00:5/128",
]
UDP_LITE = 136
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"


class Records:
    """Recorded contacts, and the threads that may record more."""

    def __init__(self):
        self.lock = threading.Lock()
        self.list = []
        self.threads = []

    def add(self, where, what):
        with self.lock:
            self.list.append([where, what.decode("latin-1") if isinstance(what, bytes) else what])

    def spawn(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        with self.lock:
            self.threads.append(thread)
        thread.start()

    def wait(self):
        """Waits until all connections are closed, up to 20 s for each. Their clients must have exited."""
        while True:
            with self.lock:
                threads, self.threads = self.threads, []
            if not threads:
                return
            for thread in threads:
                thread.join(20)

    def take(self):
        with self.lock:
            taken, self.list = self.list, []
        return taken


def label(connection):
    host, port = connection.getsockname()[:2]
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class World:
    def __init__(self, directory):
        self.directory = directory
        self.records = Records()
        self.names = Names(self.records)
        self.selector = selectors.DefaultSelector()
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(f"{directory}/certificate.pem", f"{directory}/certificate.key")

    def listen(self):
        services = {
            22: self.ssh,
            53: self.names.serve_tcp,
            80: self.http,
            443: self.https,
            5432: self.postgres,
            6379: self.raw,
            8000: self.http,
            8080: self.http,
            41080: socks_proxy,
            43128: http_proxy,
        }
        for port, service in services.items():
            listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
            self.selector.register(listener, selectors.EVENT_READ, ("tcp", service))
        for port, protocol in [(443, 0), (9999, 0), (9999, UDP_LITE)]:
            try:
                receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, protocol)
            except OSError:
                continue
            receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            receiver.bind(("::", port))
            self.selector.register(receiver, selectors.EVENT_READ, ("udp", None))
        for host in [NAME_SERVER, "93.184.216.35", "127.0.0.1"]:
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.bind((host, 53))
            self.selector.register(receiver, selectors.EVENT_READ, ("dns", None))
        # Like the Docker socket: connects to any host and port that it is given.
        for name in [f"{self.directory}/fetcher.sock", "\0fetcher"]:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(name)
            listener.listen()
            self.selector.register(listener, selectors.EVENT_READ, ("unix", None))
        os.chmod(f"{self.directory}/fetcher.sock", 0o777)
        self.selector.register(sys.stdin, selectors.EVENT_READ, ("command", None))

    def run(self):
        while True:
            for key, _ in self.selector.select():
                if key.data[0] == "command":
                    if not sys.stdin.readline():
                        return
                    self.settle()
                    print(json.dumps(self.records.take()), flush=True)
                    # `settle` has handled the other sockets of this round; they would block.
                    break
                else:
                    self.handle(key)

    def settle(self):
        """Waits until every contact so far is recorded."""
        pending = True
        while pending:
            self.records.wait()
            ready = [key for key, _ in self.selector.select(0) if key.data[0] != "command"]
            for key in ready:
                self.handle(key)
            with self.records.lock:
                pending = bool(ready or self.records.threads)
        self.names.forget()

    def handle(self, key):
        kind, service = key.data
        if kind == "tcp":
            connection = key.fileobj.accept()[0]
            connection.settimeout(20)
            # Proxies are not targets; they only lead to targets.
            if service not in (http_proxy, socks_proxy):
                self.records.add(label(connection), "connected")
            self.records.spawn(self.guarded, service, connection)
        elif kind == "unix":
            connection = key.fileobj.accept()[0]
            self.records.add("unix", "connected")
            self.records.spawn(self.guarded, self.fetch, connection)
        else:
            message, peer = key.fileobj.recvfrom(65536)
            if kind == "dns":
                answer = self.names.answer(message)
            else:
                self.records.add(f"udp:{key.fileobj.getsockname()[1]}", message)
                answer = b"reached\n"
            key.fileobj.sendto(answer, peer)

    def guarded(self, service, connection):
        with connection:
            try:
                service(connection)
            except (OSError, ValueError, IndexError) as error:
                print("world:", service.__name__, error, file=sys.stderr)

    def raw(self, connection):
        if self.receive(connection):
            connection.sendall(b"reached\n")
        self.finish(connection)

    def ssh(self, connection):
        host_key = f"{self.directory}/host_key"
        if os.path.exists(host_key):
            connection.setblocking(True)
            subprocess.run(["dropbear", "-i", "-r", host_key], stdin=connection, stdout=connection)
            return
        connection.sendall(b"SSH-2.0-reached\r\n")
        self.finish(connection)

    def postgres(self, connection):
        startup = self.receive(connection)
        if startup[4:8] == b"\x04\xd2\x16\x2f":
            connection.sendall(b"N")
            self.receive(connection)
        text = b"SFATAL\0VFATAL\0C28000\0Mreached\0\0"
        connection.sendall(b"E" + (len(text) + 4).to_bytes(4, "big") + text)
        self.finish(connection)

    def https(self, connection):
        connection = self.tls.wrap_socket(connection, server_side=True)
        self.http(connection)

    def http(self, connection):
        request = b""
        while b"\r\n\r\n" not in request and b"\n\n" not in request:
            received = self.receive(connection)
            request += received
            if not received or (b"\n" in request and b"HTTP/" not in request.split(b"\n")[0]):
                break
        if request:
            connection.sendall(self.respond(request))
        self.finish(connection)

    def respond(self, request):
        target = (request.split(b"\n")[0].split() + [b"/"])[1].decode("latin-1")
        if "/redirect?" in target:
            head = f"302 Found\r\nLocation: {target.split('?')[1]}"
            return f"HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        if "/upgrade" in target:
            return b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: raw\r\n\r\nreached\n"
        root = os.path.realpath(f"{self.directory}/www")
        path = os.path.realpath(root + target.split("?")[0])
        body, kind, status = b"reached\n", "text/plain", "200 OK"
        if os.path.isdir(path) and os.path.isfile(f"{path}/index.html"):
            path = f"{path}/index.html"
            kind = "text/html"
        if path.startswith(root + "/") and os.path.isfile(path):
            with open(path, "rb") as file:
                body = file.read()
        elif "/git/" in target or "/index/" in target:
            status = "404 Not Found"
        if path.endswith(".json"):
            kind = "application/json"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return head.encode() + (b"" if request.startswith(b"HEAD") else body)

    def fetch(self, connection):
        host, port = connection.recv(1000).split()
        with socket.create_connection((host, int(port)), 20) as goal:
            goal.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            connection.sendall(goal.recv(1000))

    def receive(self, connection):
        received = connection.recv(65536)
        if received:
            self.records.add(label(connection), received)
        return received

    def finish(self, connection):
        """Ends the response, but continues to read: data after a request is recorded too."""
        if isinstance(connection, ssl.SSLSocket):
            connection = connection.unwrap()
        connection.shutdown(socket.SHUT_WR)
        while self.receive(connection):
            pass


def set_up(directory):
    batch = "link set lo up\n" + "".join(f"address add {address} dev lo nodad\n" for address in ADDRESSES)
    # Line by line: `nodad` is only valid for IPv6.
    batch = "\n".join(line if ":" in line else line.removesuffix(" nodad") for line in batch.splitlines())
    subprocess.run(["ip", "-batch", "-"], input=batch + "\n", text=True, check=True)
    with open("/etc/passwd") as file:
        users = file.read() + f"git:x:0:0::{directory}/git:/bin/sh\n"
    resolver = f"nameserver {NAME_SERVER}\noptions timeout:20\n"
    for name, text in [("hosts", HOSTS), ("resolv.conf", resolver), ("passwd", users)]:
        with open(f"{directory}/{name}", "w") as file:
            file.write(text)
        subprocess.run(["mount", "--bind", f"{directory}/{name}", f"/etc/{name}"], check=True)


def main():
    world = World(sys.argv[1])
    set_up(sys.argv[1])
    world.listen()
    print("ready", flush=True)
    world.run()


if __name__ == "__main__":
    main()
