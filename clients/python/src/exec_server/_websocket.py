"""WebSocket links over TCP, TLS and Unix sockets.

Built on the protocol part of `websockets`, which does no I/O: the call that reads a message from
the socket also hands it on, without a task or a queue in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from ._link import MAX_MESSAGE, Link, Receiver, without_secrets
from .errors import ConnectFailed, ExecServerError

#: Some peers refuse larger frames, so a larger message is sent in fragments.
MAX_FRAME = 16 << 20
PING_INTERVAL = 3.0
#: A link is given up when no ping was answered for this long. Data in flight delays a pong, so the
#: limit grows by the time that the bytes received or sent since the last pong take at
#: `SLOWEST_LINK` bytes per second.
PONG_TIMEOUT = 10.0
SLOWEST_LINK = 4096.0
#: A link on which nothing arrives is given up after this time in any case.
SILENCE_TIMEOUT = 20.0
MESSAGE_TOO_BIG = 1009


class Tls(NamedTuple):
    """Which servers are trusted, and the certificate of this client."""

    ca: str | None = None
    #: `SHA256:HEX` of the server's certificate. It replaces every other check.
    fingerprint: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise ConnectFailed(f"cannot load tls_ca {self.ca}: {error}") from error
        if self.fingerprint is not None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_cert is not None:
            try:
                context.load_cert_chain(self.client_cert, self.client_key)
            except OSError as error:
                files = f"tls_client_cert {self.client_cert}"
                if self.client_key is not None:
                    files += f" and tls_client_key {self.client_key}"
                raise ConnectFailed(f"cannot load {files}: {error}") from error
        return context

    def check(self, certificate: bytes | None) -> None:
        if self.fingerprint is None:
            return
        algorithm, _, wanted = self.fingerprint.partition(":")
        wanted = wanted.replace(":", "").lower()
        if algorithm.upper() != "SHA256" or len(wanted) != 64:
            raise ConnectFailed(
                f"tls_fingerprint is {self.fingerprint!r}; "
                "expected SHA256: and 64 hexadecimal digits",
                permanent=True,
            )
        found = hashlib.sha256(certificate or b"").hexdigest()
        if wanted != found:
            raise ConnectFailed(
                f"the server's certificate is SHA256:{found}, not {self.fingerprint}; "
                "use the new fingerprint only if the server's operator confirms it",
                permanent=True,
            )


async def dial(url: str, token: str | None, tls: Tls, receiver: Receiver) -> Link:
    """Opens `ws://`, `wss://` or `unix:///PATH`. Raises `ConnectFailed`."""
    loop = asyncio.get_running_loop()
    where = without_secrets(url)
    try:
        parts = urlsplit(url)
        uri = parse_uri("ws://localhost/" if parts.scheme == "unix" else url)
    except (InvalidURI, ValueError):
        raise ConnectFailed(
            f"{where} is not wss://HOST:PORT, ws://HOST:PORT or unix:///PATH", permanent=True
        ) from None
    link = _WebSocketLink(loop, ClientProtocol(uri, max_size=MAX_MESSAGE), token, receiver)
    try:
        if parts.scheme == "unix":
            await loop.create_unix_connection(lambda: link, url.removeprefix("unix://"))
        else:
            context = tls.context() if uri.secure else None
            await loop.create_connection(lambda: link, uri.host, uri.port, ssl=context)
            if context is not None:
                secured = link.transport.get_extra_info("ssl_object")
                tls.check(secured.getpeercert(binary_form=True))
        link.open()
        await link.opened
    except InvalidStatus as refusal:
        link.close()
        raise _refused(where, refusal.response) from None
    except ConnectFailed as error:
        link.close()
        text = f"cannot connect to {where}: {error}"
        raise ConnectFailed(text, permanent=error.permanent) from error.__cause__
    except (OSError, WebSocketException) as error:
        link.close()
        permanent = isinstance(error, ssl.SSLCertVerificationError)
        raise ConnectFailed(f"cannot connect to {where}: {error}", permanent=permanent) from error
    except BaseException:
        link.close()
        raise
    return link


def _refused(where: str, response: Response) -> ConnectFailed:
    status = response.status_code
    advice = {
        401: "; check the token",
        403: "; it refuses this user, host name or origin",
    }.get(status, "")
    permanent = 400 <= status < 500 and status not in (408, 409, 429)
    return ConnectFailed(f"{where} answered {status}{advice}", permanent=permanent)


class _WebSocketLink(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: ClientProtocol,
        token: str | None,
        receiver: Receiver,
    ) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._protocol = protocol
        self._token = token
        self._receiver: Receiver | None = receiver
        self._fragments: list[bytes | bytearray | memoryview] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ping_due = self._last_heard = self._last_pong = loop.time()
        self._bytes_since_pong = 0

    def open(self) -> None:
        """Sends the upgrade request."""
        request = self._protocol.connect()
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token}"
        self._protocol.send_request(request)
        self._flush()

    # Link

    def send(self, message: bytes) -> None:
        if self._receiver is None:
            return
        self._bytes_since_pong += len(message)
        if len(message) <= MAX_FRAME:
            self._protocol.send_text(message)
        else:
            pieces = range(0, len(message), MAX_FRAME)
            for start in pieces:
                piece = message[start : start + MAX_FRAME]
                last = start == pieces[-1]
                if start == 0:
                    self._protocol.send_text(piece, fin=False)
                else:
                    self._protocol.send_continuation(piece, fin=last)
        self._flush()

    def close(self) -> None:
        self._receiver = None
        self._stop()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._last_heard = self._loop.time()
        self._bytes_since_pong += len(data)
        self._protocol.receive_data(data)
        self._progress()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        self._progress()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the server ended the connection")

    def _progress(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._handle_frame(event)
            elif isinstance(event, Response) and self._protocol.handshake_exc is None:
                if not self.opened.done():  # The attempt may have been cancelled.
                    self.opened.set_result(None)
                self._ping_due = self._last_pong = self._loop.time()
                self._keep_alive()
        failure = self._protocol.handshake_exc
        if failure is not None:
            self._fail_opening(failure)
        self._flush()
        broken = self._protocol.parser_exc
        if broken is not None and not isinstance(broken, EOFError):
            self._end(f"the server sent an invalid WebSocket frame: {broken}")
        elif self._protocol.close_expected() or broken is not None:
            self._end("the server closed the connection")

    def _handle_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PONG:
            self._last_pong, self._bytes_since_pong = self._loop.time(), 0
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            message: Any = frame.data
            if not frame.fin or self._fragments:
                self._fragments.append(frame.data)
                if not frame.fin:
                    return
                message, self._fragments = b"".join(self._fragments), []
            if self._receiver is not None:
                self._receiver.handle_message(message)

    def _flush(self) -> None:
        transport = getattr(self, "transport", None)
        if transport is None or transport.is_closing():
            return
        for data in self._protocol.data_to_send():
            if data:
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()

    def _keep_alive(self) -> None:
        now = self._loop.time()
        if now - self._ping_due > 1.0:
            # The loop was blocked: a pong may wait in the socket.
            self._last_pong = self._last_heard = now
        patience = PONG_TIMEOUT + self._bytes_since_pong / SLOWEST_LINK
        if now - self._last_pong > patience or now - self._last_heard > SILENCE_TIMEOUT:
            # `transport.close` would keep the socket open until the peer has received all buffered
            # data.
            self.transport.abort()
            self._end(f"no ping was answered for {now - self._last_pong:.0f} s")
            return
        self._protocol.send_ping(b"")
        self._flush()
        self._ping_due = now + PING_INTERVAL
        self._timer = self._loop.call_at(self._ping_due, self._keep_alive)

    def _end(self, reason: str) -> None:
        self._fail_opening(ConnectFailed(reason))
        receiver, self._receiver = self._receiver, None
        self._stop()
        if receiver is not None:
            close = self._protocol.close_rcvd
            code = None if close is None else close.code
            if close is not None and code != 1005:
                reason = f"the server closed the connection with {code} {close.reason}".rstrip()
            error: ExecServerError = ConnectFailed(reason)
            receiver.handle_end(error, too_big=code == MESSAGE_TOO_BIG)

    def _fail_opening(self, error: Exception) -> None:
        """Fails the attempt. Only `dial` reports the error."""
        if not self.opened.done():
            self._receiver = None
            self.opened.set_exception(error)
            self.opened.exception()  # Marks it as retrieved: `dial` may have been cancelled.

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        transport = getattr(self, "transport", None)
        if transport is not None and not transport.is_closing():
            transport.close()
