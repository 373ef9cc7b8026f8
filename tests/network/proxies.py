"""Unrestricted proxies at the ports of a managed process's proxies. They show that the refused
attempts would otherwise succeed."""

import ipaddress
import select
import socket


def http_proxy(connection):
    """Connects to the last host that a request may mean, and forwards every byte."""
    data = connection.recv(65536)
    while data:
        while b"\n" not in data and (more := connection.recv(65536)):
            data += more
        words = data.split(b"\n")[0].split()
        if words[0] == b"CONNECT":
            target = words[1]
            head, _, rest = data.partition(b"\r\n\r\n")
            goal = dial(target, 443)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            goal.sendall(rest)
            return relay(connection, goal)
        # A second request to a proxy gets a connection of its own. All other data after the first
        # request is forwarded with it.
        request, _, following = data.partition(b"\r\n\r\n")
        if following.startswith((b"GET http:", b"POST http:")):
            request, data = request + b"\r\n\r\n", following
        else:
            request, data = data, b""
        target = target_of(words, request)
        goal = dial(target, 80)
        goal.sendall(request)
        if not data:
            return relay(connection, goal)
        while received := goal.recv(65536):
            connection.sendall(received)


def target_of(words, request):
    host = [line.partition(b":")[2].strip() for line in request.split(b"\n") if line.lower().startswith(b"host:")]
    uri = words[1] if len(words) > 1 else b""
    for scheme in (b"http://", b"https://", b"//", b"ftp://"):
        if uri.lower().startswith(scheme):
            uri = uri[len(scheme) :].split(b"/")[0]
            # A frontend may trust the URI, and a backend the header.
            return host[-1] if host and host[-1] != uri else uri
    return host[-1]


def dial(target, default_port):
    """Connects to a target, parsed like in C code: after the last `@`, up to a NUL."""
    target = target.rsplit(b"@")[-1].split(b"\0")[0].split(b"%00")[0]
    if target.startswith(b"["):
        host, _, port = target[1:].partition(b"]")
        port = port.removeprefix(b":")
    else:
        host, _, port = target.partition(b":")
    return socket.create_connection((host.decode(), int(port or default_port)), 20)


def socks_proxy(connection):
    version, count = exactly(connection, 2)
    if version == 4:
        return socks4(connection, count)
    exactly(connection, count)
    connection.sendall(b"\5\0")
    _, command, _, kind = exactly(connection, 4)
    if kind == 3:
        host = exactly(connection, exactly(connection, 1)[0]).split(b"\0")[0].decode()
    else:
        host = str(ipaddress.ip_address(bytes(exactly(connection, 16 if kind == 4 else 4))))
    port = int.from_bytes(exactly(connection, 2), "big")
    if command == 3:
        return socks_udp(connection)
    if command == 2:
        return connection.sendall(b"\5\0\0\1\0\0\0\0\0\1reached")
    goal = socket.create_connection((host or "localhost", port), 20)
    connection.sendall(b"\5\0\0\1\0\0\0\0\0\0")
    relay(connection, goal)


def socks4(connection, _command):
    port = int.from_bytes(exactly(connection, 2), "big")
    address = exactly(connection, 4)
    while exactly(connection, 1) != b"\0":
        pass
    host = socket.inet_ntoa(address)
    if host.startswith("0.0.0."):
        host = ""
        while (byte := exactly(connection, 1)) != b"\0":
            host += byte.decode()
    goal = socket.create_connection((host, port), 20)
    connection.sendall(b"\0\x5a\0\0\0\0\0\0")
    relay(connection, goal)


def socks_udp(connection):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(("127.0.0.1", 0))
        connection.sendall(b"\5\0\0\1\x7f\0\0\1" + here.getsockname()[1].to_bytes(2, "big"))
        if select.select([here, connection], [], [], 20)[0][0] is not here:
            return
        datagram, _ = here.recvfrom(65536)
        host, port = socket.inet_ntoa(datagram[4:8]), int.from_bytes(datagram[8:10], "big")
        here.sendto(datagram[10:], (host, port))
        connection.recv(1)


def exactly(connection, count):
    data = b""
    while len(data) < count:
        received = connection.recv(count - len(data))
        if not received:
            raise ValueError("cut short")
        data += received
    return data


def relay(one, other):
    """Copies in both directions until both ends have closed theirs."""
    ends = {one: other, other: one}
    with other:
        while ends:
            for ready in select.select(list(ends), [], [])[0]:
                received = ready.recv(65536)
                if received:
                    ends[ready].sendall(received)
                else:
                    ends.pop(ready).shutdown(socket.SHUT_WR)
