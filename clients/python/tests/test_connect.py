"""Servers and how to reach them: URLs, tokens, TLS, `local` and `environments.toml`."""

import asyncio
import hashlib
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from websockets.http11 import Request
from websockets.server import ServerProtocol

from exec_server import (
    Closed,
    ConnectFailed,
    ExecServerError,
    Machine,
    RecoveryPolicy,
    ServerError,
    _websocket,
)
from support import Fifo, Server

TOKEN = "correct-horse-battery-staple"


async def test_a_connection_is_awaited_or_entered(url: str) -> None:
    m = await Machine.connect(url, client_name="me", detached_ttl=5.0)
    assert (await m.run("echo hello")).stdout == "hello\n"
    await m.close()
    with pytest.raises(Closed):
        await m.run("true")
    async with Machine.connect(url) as m:
        assert (await m.info())["shell"]["path"].startswith("/")


async def test_a_unix_socket_is_reached(binary: str, tmp_path: Path) -> None:
    socket = tmp_path / "a b%20c.sock"
    with Server(binary, tmp_path, listen=f"unix://{socket}"):
        async with Machine.connect(f"unix://{socket}") as m:
            assert (await m.run("echo hello")).stdout == "hello\n"


async def test_tokens_are_sent_and_refused(binary: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    arguments = ["--ws-auth=capability-token", f"--ws-token-file={file}"]
    with Server(binary, tmp_path, *arguments) as server:
        for token in (TOKEN, lambda: TOKEN):
            async with Machine.connect(server.url, token=token) as m:
                assert (await m.run("true")).ok
        for wrong in (None, "wrong"):
            with pytest.raises(ConnectFailed, match="answered 401; check the token") as refused:
                await Machine.connect(server.url, token=wrong)
            assert refused.value.permanent and "wrong" not in str(refused.value)
        environments = tmp_path / "environments.toml"
        environments.write_text(
            f'[[environments]]\nid = "box"\nurl = "{server.url}"\ntoken_file = "token"\n'
        )
        async with from_environments("box", environments) as m:
            assert (await m.run("true")).ok


async def test_certificates_are_checked(binary: str, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    fingerprint = hashlib.sha256(
        ssl.PEM_cert_to_DER_cert((tmp_path / "server.pem").read_text())
    ).hexdigest()
    ca = str(tmp_path / "ca.pem")
    own = ["--tls-cert=server.pem", "--tls-key=server.key"]
    with Server(binary, tmp_path, *own, listen="wss://127.0.0.1:0") as server:
        async with Machine.connect(server.url, tls_ca=ca) as m:
            assert (await m.run("true")).ok
        async with Machine.connect(server.url, tls_fingerprint=f"SHA256:{fingerprint}") as m:
            assert (await m.run("true")).ok
        for options in ({}, {"tls_fingerprint": f"SHA256:{'0' * 64}"}):
            with pytest.raises(ConnectFailed, match="certificate") as refused:
                await Machine.connect(server.url, **options)  # type: ignore[arg-type]
            assert refused.value.permanent
        for invalid, complaint in [
            ({"tls_fingerprint": fingerprint}, f"is '{fingerprint}'; expected SHA256:"),
            ({"tls_ca": "/absent"}, "cannot load tls_ca /absent: "),
            ({"tls_client_cert": "/absent"}, "cannot load tls_client_cert /absent: "),
        ]:
            with pytest.raises(ConnectFailed, match=f"cannot connect to wss://.*{complaint}"):
                await Machine.connect(server.url, **invalid)  # type: ignore[arg-type]
    arguments = [*own, "--tls-client-ca=ca.pem"]
    with Server(binary, tmp_path, *arguments, listen="wss://127.0.0.1:0") as server:
        async with Machine.connect(
            server.url,
            tls_ca=ca,
            tls_client_cert=str(tmp_path / "client.pem"),
            tls_client_key=str(tmp_path / "client.key"),
        ) as m:
            assert (await m.run("true")).ok


def make_certificates(directory: Path) -> None:
    """Certificates of an authority, and of a server and a client, signed by it."""

    def openssl(*arguments: str) -> None:
        command = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        command += ["-nodes", "-x509", "-days", "2", *arguments]
        subprocess.run(command, cwd=directory, check=True, capture_output=True)

    signs = ["-addext", "keyUsage=critical,keyCertSign"]
    openssl("-subj", "/CN=authority", *signs, "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("server", "client"):
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=CA:FALSE"]
        names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:box,IP:127.0.0.1"]
        openssl(*signed, *names, "-keyout", f"{name}.key", "-out", f"{name}.pem")


async def test_a_failed_token_function_fails_the_connection(url: str) -> None:
    def fail() -> str:
        raise LookupError("no token today")

    with pytest.raises(ConnectFailed, match="no token today") as failed:
        await Machine.connect(url, token=fail)
    assert isinstance(failed.value.__cause__, LookupError)


async def test_unreachable_servers_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match=r"^localhost:7777 is not wss://"):
        await Machine.connect("localhost:7777?token=secret")
    for url in ["ws://[::1", "ws://user:pass#word@host"]:
        with pytest.raises(ConnectFailed, match=r"^the URL of the server is not wss://"):
            await Machine.connect(url)
    with pytest.raises(ConnectFailed, match=r"cannot connect to unix:///\S+absent"):
        await Machine.connect(f"unix://{tmp_path}/absent")
    with pytest.raises(ConnectFailed, match="is not wss://HOST:PORT"):
        await Machine.connect("http://user:secret@host?token=secret")
    held: list[object] = []
    silent = await asyncio.start_server(lambda *streams: held.append(streams), "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:\d+ did not answer within 0\.05 s"):
        await Machine.connect(url, connect_timeout=0.05)
    silent.close()


async def test_local_starts_a_server(binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Machine.local(binary) as m:
        assert (await m.run("echo hello")).stdout == "hello\n"
        with pytest.raises(ExecServerError, match="ends with this client"):
            (await m.start("true")).save()
    monkeypatch.setenv("EXEC_SERVER_BINARY", binary)
    async with Machine.local() as m:
        assert (await m.run("true")).ok
    with pytest.raises(ConnectFailed, match="cannot start /absent"):
        await Machine.local("/absent")
    with pytest.raises(ExecServerError, match="the server"):
        await Machine.local("/bin/true")
    monkeypatch.delenv("EXEC_SERVER_BINARY")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConnectFailed, match="neither in this installation nor on PATH"):
        Machine.local()


def from_environments(name: str | None, path: Path):  # type: ignore[no-untyped-def]
    if sys.version_info < (3, 11):
        pytest.skip("SKIPPED: environments.toml needs Python 3.11")
    return Machine.from_environments(name, str(path))


async def test_environments_are_read_from_a_file(
    binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "environments.toml"
    file.write_text(f"""
        default = "program"

        [[environments]]
        id = "program"
        program = "{binary}"
        args = ["--listen", "stdio"]
        env = {{ MARK = "set" }}
        cwd = "{tmp_path}"

        [environments.sandbox]
        mode = "read-only"

        [[environments]]
        id = "far"
        remote = "https://rendezvous.example"
        environment_id = "lab"

        [[environments]]
        id = "typo"
        ulr = "ws://127.0.0.1:1"

        [[environments]]
        id = "denied"
        url = "ws://127.0.0.1:1"
        sandbox = {{ mode = "read-only", deny = ["/secret"] }}

        [[environments]]
        id = "modeless"
        url = "ws://127.0.0.1:1"
        sandbox = {{ network = false }}

        [[environments]]
        id = "online"
        url = "ws://127.0.0.1:1"
        sandbox = {{ mode = "read-only", network = true }}

        [[environments]]
        id = "both"
        url = "ws://127.0.0.1:1"
        sandbox = {{ mode = "read-only", writable = ["/tmp"] }}

        [[environments]]
        id = "relative"
        url = "ws://127.0.0.1:1"
        sandbox = {{ mode = "workspace-write", writable = ["cache"] }}
    """)
    async with from_environments(None, file) as m:
        result = await m.run("pwd; echo $MARK; touch denied")
        assert result.stdout == f"{tmp_path}\nset\n" and result.denied is not None
    monkeypatch.setenv("EXEC_SERVER_BINARY", binary)
    async with from_environments("local", file) as m:
        assert (await m.run("true")).ok
    with pytest.raises(ConnectFailed, match="did you mean 'program'"):
        from_environments("progam", file)
    with pytest.raises(ConnectFailed, match=r"'denied' in .*, not deny; use Machine.connect"):
        from_environments("denied", file)
    for name, complaint in {
        "modeless": "mode is None; expected 'read-only' or 'workspace-write'",
        "online": "supports network only with mode = 'workspace-write'",
        "both": "writable needs mode = 'workspace-write'",
        "relative": "writable path 'cache' is not absolute",
    }.items():
        with pytest.raises(ConnectFailed, match=rf"'{name}' in .*: sandbox: .*{complaint}"):
            from_environments(name, file)
    with pytest.raises(ConnectFailed, match=r"'typo' in .* has no url, remote or program"):
        from_environments("typo", file)
    # The binary would connect through the relay; here a server on stdio replaces it.
    relay = tmp_path / "relay"
    relay.write_text(
        f'#!/bin/sh\necho "$* $EXEC_SERVER_ENVIRONMENTS" >{tmp_path}/started\n'
        f"exec {binary} --listen stdio\n"
    )
    relay.chmod(0o755)
    monkeypatch.setenv("EXEC_SERVER_BINARY", str(relay))
    async with from_environments("far", file) as m:
        assert (await m.run("true")).ok
    started = (tmp_path / "started").read_text()
    assert started == f"run --on far -- exec-server --listen stdio {file}\n"
    file.write_text("[[")
    with pytest.raises(ConnectFailed, match="cannot read"):
        from_environments(None, file)
    for text in ('environments = ["box"]', '[environments]\nid = "box"', "[[environments]]"):
        file.write_text(text)
        with pytest.raises(ConnectFailed, match=r"needs a table \[\[environments\]\] with an id"):
            from_environments("box", file)


async def test_a_killed_server_fails_calls_at_the_deadline(binary: str, tmp_path: Path) -> None:
    policy = RecoveryPolicy(deadline=0.05)
    with Server(binary, tmp_path) as server:
        m = await Machine.connect(server.url, recovery=policy)
        server.kill()
        with pytest.raises(ExecServerError, match="no connection to ws://"):
            await m.start("true")


async def test_errors_have_kinds(url: str) -> None:
    async with Machine.connect(url) as m:
        with pytest.raises(ServerError) as refused:
            await m.run("true", limits={"pids": 0})
        assert refused.value.kind == "badLimits" and refused.value.code == -32602


async def test_a_cancelled_start_of_a_server_leaves_no_child(
    fifo: Fifo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exec_server._stdio.EXIT_TIMEOUT", 0.01)
    deaf = fifo.path.parent / "deaf"
    deaf.write_text(
        f"#!/bin/sh\nexec 3>{fifo.path}\nread line; echo started >&3\nexec sleep 1000\n"
    )
    deaf.chmod(0o755)
    opening = asyncio.ensure_future(Machine.local(str(deaf)))
    assert await fifo.readline() == "started\n"
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert await fifo.readline() == ""


class Receiver:
    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def handle_message(self, message: bytes | bytearray) -> None:
        pass

    def handle_end(self, error: ExecServerError, *, too_big: bool) -> None:
        self.error, self.too_big = str(error), too_big
        self.ended.set()


async def upgraded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ServerProtocol:
    """Accepts a WebSocket."""
    protocol = ServerProtocol()
    protocol.receive_data(await reader.readuntil(b"\r\n\r\n"))
    (request,) = protocol.events_received()
    assert isinstance(request, Request)
    protocol.send_response(protocol.accept(request))
    writer.writelines(protocol.data_to_send())
    return protocol


@pytest.mark.parametrize(
    ("frame", "reason", "too_big"),
    [
        (b"\x88\x09\x03\xf1too big", "the server closed the connection with 1009 too big", True),
        (b"\x8f\x00", "the server sent an invalid WebSocket frame: ", False),
    ],
)
async def test_the_end_of_a_link_has_its_reason(frame: bytes, reason: str, too_big: bool) -> None:
    async def send_frame(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upgraded(reader, writer)
        writer.write(frame)

    listener = await asyncio.start_server(send_frame, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    receiver = Receiver()
    await _websocket.dial(url, None, _websocket.Tls(), receiver)
    await receiver.ended.wait()
    assert receiver.error.startswith(reason) and receiver.too_big is too_big
    listener.close()


async def test_a_dead_link_keeps_no_output_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_websocket, "PING_INTERVAL", 0.01)
    monkeypatch.setattr(_websocket, "PONG_TIMEOUT", 0.05)
    monkeypatch.setattr(_websocket, "SLOWEST_LINK", 1e12)

    async def upgrade_and_fall_silent(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await upgraded(reader, writer)
        assert isinstance(writer.transport, asyncio.ReadTransport)
        writer.transport.pause_reading()

    listener = await asyncio.start_server(upgrade_and_fall_silent, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    receiver = Receiver()
    link = await _websocket.dial(url, None, _websocket.Tls(), receiver)
    assert isinstance(link, _websocket._WebSocketLink)
    link.send(bytes(32 << 20))
    assert link.transport.get_write_buffer_size() > 0
    await receiver.ended.wait()
    assert link.transport.get_write_buffer_size() == 0
    listener.close()
