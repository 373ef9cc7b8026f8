"""The name server of the world. It records every question and knows these names."""

import ipaddress
import struct

NAMES = {
    "allowed.test": ["93.184.216.34"],
    "sub.allowed.test": ["93.184.216.34"],
    "evilallowed.test": ["93.184.216.35"],
    "allowed.test.evil.test": ["93.184.216.35"],
    "asked.test": ["93.184.216.34"],
    "second.test": ["93.184.216.34"],
    "other.test": ["93.184.216.35"],
    "xn--llowed-2nf.test": ["93.184.216.35"],
    "six.test": ["2606:2800:220:1::1"],
    "internal.test": ["10.0.0.5"],
    "internal6.test": ["fd00::5"],
    "metadata.test": ["169.254.169.254"],
    "loopback.test": ["127.0.0.1"],
    "mixed.test": ["93.184.216.34", "10.0.0.5"],
    "mapped.test": ["::ffff:10.0.0.5"],
    "nat64.test": ["64:ff9b::a00:5"],
    "x.localhost": ["127.0.0.1"],
    "zero.test": ["0.0.0.0"],
}
# DNS rebinding: the first A query of an attempt gets the first address, later ones the second.
REBINDING = "rebind.test"
REBINDING_ANSWERS = ["93.184.216.34", "10.0.0.5"]
TYPES = {1: "A", 28: "AAAA", 16: "TXT", 15: "MX", 33: "SRV", 10: "NULL", 255: "ANY", 5: "CNAME"}


class Names:
    def __init__(self, records):
        self.records = records
        self.asked = 0

    def forget(self):
        self.asked = 0

    def serve_tcp(self, connection):
        while len(head := connection.recv(2)) == 2:
            message = connection.recv(int.from_bytes(head, "big"))
            answer = self.answer(message)
            connection.sendall(len(answer).to_bytes(2, "big") + answer)

    def answer(self, message):
        labels, at = [], 12
        while length := message[at]:
            labels.append(message[at + 1 : at + 1 + length].decode("latin-1"))
            at += 1 + length
        name = ".".join(labels).lower()
        kind, _ = struct.unpack(">HH", message[at + 1 : at + 5])
        kind = TYPES.get(kind, str(kind))
        self.records.add("dns", f"{name} {kind}")
        found = self.records_of(name, kind)
        code = 0 if found or name in NAMES or name == REBINDING else 3
        header = message[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(found), 0, 0)
        records = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", number, 1, 0, len(data)) + data for number, data in found)
        return header + message[12 : at + 5] + records

    def records_of(self, name, kind):
        if kind in ("TXT", "MX", "SRV", "NULL", "ANY"):
            return [(16, b"\x07reached")]
        addresses = NAMES.get(name, [])
        if name == REBINDING:
            # Only A queries count, because resolvers query both address families at once.
            addresses = [REBINDING_ANSWERS[min(self.asked, 1)]]
            self.asked += kind == "A"
        version = {"A": 4, "AAAA": 6}.get(kind)
        parsed = map(ipaddress.ip_address, addresses)
        return [(1 if version == 4 else 28, address.packed) for address in parsed if address.version == version]
