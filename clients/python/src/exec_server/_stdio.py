"""A server that this client starts as a child, reaches over stdin and stdout, and ends."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence

from ._link import MAX_MESSAGE, Link, Receiver
from .errors import ConnectFailed

#: How long a server whose input has ended may take to exit.
EXIT_TIMEOUT = 5.0
BINARY_VARIABLE = "EXEC_SERVER_BINARY"


def find_binary() -> str:
    """Checked in this order: EXEC_SERVER_BINARY, the wheel of this client, PATH."""
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        return named
    found = _bundled_binary() or shutil.which("exec-server")
    if found is None:
        raise ConnectFailed(
            "the program exec-server is neither in this installation nor on PATH; "
            f"install the wheel for this platform, or set {BINARY_VARIABLE} to its path",
            permanent=True,
        )
    return found


def _bundled_binary() -> str | None:
    """The binary installed with this package. Only the installer's record says where it is: in a
    venv, the system, or the user's directory."""
    from importlib import metadata

    try:
        files = metadata.files("exec-server") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = str(file.locate())
        if file.name == "exec-server" and os.access(path, os.X_OK):
            return path
    return None


class StdioConnector:
    can_redial = False
    url: str | None = None

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self._argv = argv
        self._env = {**os.environ, **(env or {})}
        self._env.pop(BINARY_VARIABLE, None)  # The server warns about settings it does not know.
        self._cwd = cwd
        self._link: _StdioLink | None = None

    async def dial(self, receiver: Receiver) -> Link:
        loop = asyncio.get_running_loop()
        try:
            # In a new session, so that Ctrl-C in the terminal reaches neither the server nor a
            # wrapper such as ssh.
            _, self._link = await loop.subprocess_exec(
                lambda: _StdioLink(loop, receiver, self._argv[0]),
                *self._argv,
                stderr=None,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise ConnectFailed(f"cannot start {self._argv[0]}: {error}") from error
        return self._link

    async def wait_closed(self) -> None:
        if self._link is not None:
            await self._link.wait_closed()


class _StdioLink(asyncio.SubprocessProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, receiver: Receiver, program: str) -> None:
        self._program = program
        self._ended: asyncio.Future[None] = loop.create_future()
        self._receiver: Receiver | None = receiver
        self._line = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._child = transport
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        self._stdin = stdin

    def send(self, message: bytes) -> None:
        if not self._stdin.is_closing():
            self._stdin.write(message + b"\n")

    def close(self) -> None:
        """A server whose stdin ends terminates its processes and exits."""
        self._receiver = None
        self._stdin.close()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._ended], timeout=EXIT_TIMEOUT)
        self._child.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            return
        *ends, rest = data.split(b"\n")
        for end in ends:
            line, self._line = self._line, bytearray()
            line += end
            if line.strip() and self._receiver is not None:
                self._receiver.handle_message(line)
        self._line += rest
        if len(self._line) > MAX_MESSAGE:
            self._end(f"the server {self._program} sent a line of more than {MAX_MESSAGE} bytes")
            self._child.kill()

    def pipe_connection_lost(self, fd: int, error: Exception | None) -> None:
        if fd == 1:
            self._end(f"the server {self._program} closed its stdout")

    def process_exited(self) -> None:
        status = self._child.get_returncode()
        if status is not None and status < 0:
            self._end(f"the server {self._program} was killed by signal {-status}")
        else:
            self._end(f"the server {self._program} exited with {status}")

    def _end(self, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.handle_end(ConnectFailed(reason), too_big=False)
