"""Servers, a network that fails on command, and pipes that tests read."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

SOURCES = Path(__file__).parents[1] / "src"
REPOSITORY = Path(__file__).parents[3]


def find_server() -> str | None:
    binary = os.environ.get("EXEC_SERVER_BINARY")
    return os.path.abspath(binary) if binary and os.access(binary, os.X_OK) else None


def environment(**variables: str) -> dict[str, str]:
    """The environment of a Python program that imports this package."""
    return {**os.environ, "PYTHONPATH": str(SOURCES), **variables}


class Server:
    """A server with its own user directory, on a free port unless `listen` says otherwise."""

    def __init__(
        self,
        binary: str,
        directory: Path,
        *arguments: str,
        listen: str = "ws://127.0.0.1:0",
    ) -> None:
        self._child = subprocess.Popen(
            [binary, "--listen", listen, "--log", "error", *arguments],
            stdout=subprocess.PIPE,
            env={**os.environ, "XDG_RUNTIME_DIR": str(directory), "API_TOKEN": "hidden"},
            cwd=directory,
            text=True,
        )
        self.directory = directory
        assert self._child.stdout is not None
        self.url = self._child.stdout.readline().strip()
        assert self.url, f"{binary} printed no URL; its exit status is {self._child.poll()}"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        assert self._child.stdout is not None
        self._child.stdout.close()


class Proxy:
    """A network between a client and a server. `async with` opens it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._refuses = False
        self._bytes_left: int | None = None
        self.connections = 0
        self.refusals = 0

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Resets all connections."""
        for link in self._links:
            link.transport.abort()
        self._links.clear()

    def cut_after(self, size: int) -> None:
        """Cuts once, when this many bytes have passed."""
        self._bytes_left = size

    async def refuse(self) -> None:
        """Cuts, refuses connections until `resume`, and waits until one was refused."""
        self._refuses = True
        self.cut()
        await self.until(lambda: self.refusals > 0)

    def resume(self) -> None:
        self._refuses = False

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    def _accept(self, down: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.create_task(self._serve(down, client)))

    async def _serve(self, down: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._refuses:
            client.transport.abort()
            self.refusals += 1
            self._changed.set()
            return
        up, server = await asyncio.open_connection("127.0.0.1", self._port)
        self._links |= {client, server}
        self.connections += 1
        self._changed.set()
        ways = (self._pass_on(down, server), self._pass_on(up, client))
        await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                if self._bytes_left is not None:
                    self._bytes_left -= len(data)
                    if self._bytes_left <= 0:
                        self._bytes_left = None
                        self.cut()
                        return
                target.write(data)
                await target.drain()
        finally:
            target.transport.abort()


class Fifo:
    """A pipe from processes to a test. It ends when no process has it open."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._file: Any = None

    async def readline(self) -> str:
        """The next line, or `""` once no process has the pipe open."""
        if self._file is None:
            self._file = await asyncio.to_thread(open, self.path)
        line: str = await asyncio.to_thread(self._file.readline)
        return line

    def reopen(self) -> None:
        self._file = None
