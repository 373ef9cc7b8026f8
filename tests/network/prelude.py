# Shared by the attempts. Exit codes: 0 escaped, 42 refused, 43 sent (the records of the servers
# show whether it arrived), 77 impossible on this machine.
import errno, os, socket, struct, sys

V4, V6, TCP, UDP = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
OTHER, WORLD = "93.184.216.35", os.environ["WORLD"]
PROXY, SOCKS = ("127.0.0.1", 43128), ("127.0.0.1", 41080)


def leave(code, text):
    print(text, flush=True)
    os._exit(code)


def escaped(what=""):
    leave(0, f"escaped {what}")


def blocked(why):
    leave(42, f"blocked: {why}")


def impossible(why):
    leave(77, f"impossible: {why}")


def refused(kind, error, trace):
    if issubclass(kind, OSError):
        blocked(repr(error))
    sys.__excepthook__(kind, error, trace)


sys.excepthook = refused


def judge(data):
    (escaped if b"reached" in data else blocked)(data[-300:])


def sent(data):
    """Ends an attempt that sends two requests. Only the first may get a response."""
    leave(43, f"sent, and got {data[-300:]}")


def rest(connection):
    connection.settimeout(30)
    data = b""
    while received := connection.recv(65536):
        data += received
    return data


def tcp(address, data=GET, family=V4):
    with socket.socket(family, TCP) as connection:
        connection.settimeout(30)
        connection.connect(address)
        connection.sendall(data)
        return rest(connection)


def named(host, port=80, data=None):
    data = data or f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("latin-1", "replace")
    with socket.create_connection((host, port), 30) as connection:
        connection.sendall(data)
        return rest(connection)


def proxy(data):
    """Sends data to the HTTP proxy, closes the sending direction, and returns the response."""
    with socket.create_connection(PROXY, 30) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return rest(connection)


def through(target, data=GET, host=None):
    """Sends CONNECT with any `target`, then data, and returns the response to the data."""
    with socket.create_connection(PROXY, 30) as connection:
        host = target if host is None else host
        connection.sendall(b"CONNECT " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(1)
            if not received:
                blocked(head)
            head += received
        if b" 200 " not in head.split(b"\n")[0]:
            blocked(head)
        connection.sendall(data)
        return rest(connection)


def socks(address, command=1, data=GET):
    """Sends a SOCKS5 request with an address in wire format."""
    with socket.create_connection(SOCKS, 30) as connection:
        connection.settimeout(30)
        connection.sendall(b"\5\1\0")
        if connection.recv(2) != b"\5\0":
            blocked("no method")
        connection.sendall(bytes([5, command, 0]) + address)
        answer = connection.recv(10)
        if answer[1:2] != b"\0":
            blocked(answer)
        if command != 1:
            escaped(answer)
        connection.sendall(data)
        return rest(connection)


def domain(name, port=80):
    return bytes([3, len(name)]) + name + port.to_bytes(2, "big")


def query(name, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def dns(name, kind, server="93.184.216.53"):
    """Sends one query over UDP to this server, and returns its response."""
    with socket.socket(V4, UDP) as question:
        question.settimeout(30)
        question.connect((server, 53))
        question.send(query(name, kind))
        return question.recv(4096)


def make(*kind):
    """Creates a socket of a kind that no rules cover."""
    try:
        socket.socket(*kind)
    except OSError as error:
        if error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT):
            impossible(error) if "CONTROL" in os.environ else blocked(error)
        raise
    escaped(kind)
