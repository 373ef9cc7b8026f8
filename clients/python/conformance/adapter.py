"""The adapter of the Python client; clients/conformance/README.md says what it does."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from base64 import b64decode, b64encode
from typing import Any

from exec_server import Closed, Interrupted, Machine, OutputGap, Process, ServerError, SessionLost

KINDS = [
    (Interrupted, "disconnected"),
    (SessionLost, "sessionLost"),
    (Closed, "sessionLost"),
    (ServerError, "server"),
    (OutputGap, "gap"),
]


class Reader:
    """The standard output of a process. Only one command reads at a time."""

    def __init__(self, process: Process, *, gaps_wanted: bool = False) -> None:
        self.process = process
        self._gaps_wanted = gaps_wanted
        self._lock = asyncio.Lock()

    async def lines(self, count: int) -> dict[str, Any]:
        lines: list[str] = []
        async with self._lock:
            while len(lines) < count and (line := await self.process.stdout.readline()):
                lines.append(line.decode().rstrip("\r\n"))
        return {"lines": lines}

    async def collect(self) -> dict[str, Any]:
        size, digest, gaps = 0, hashlib.sha256(), []
        async with self._lock:
            while True:
                try:
                    data = await self.process.stdout.read(1 << 20)
                except OutputGap as gap:
                    if not self._gaps_wanted:
                        raise
                    gaps.append(gap.dropped_bytes)
                    continue
                if not data:
                    break
                size += len(data)
                digest.update(data)
        code = await self.process.wait()
        return {"bytes": size, "sha256": digest.hexdigest(), "exitCode": code, "gaps": gaps}

    async def save(self) -> str:
        async with self._lock:
            return self.process.save()


class Adapter:
    def __init__(self, url: str) -> None:
        self._url = url
        self._machine: asyncio.Task[Machine] | None = None
        self._readers: dict[str, Reader] = {}

    async def respond(self, command: dict[str, Any]) -> None:
        try:
            response = {"id": command["id"], "ok": await self._carry_out(command) or {}}
        except Exception as error:
            kind = next((name for of, name in KINDS if isinstance(error, of)), "other")
            code = error.code if isinstance(error, ServerError) else None
            described = {"kind": kind, "code": code, "message": str(error)}
            response = {"id": command["id"], "error": described}
        print(json.dumps(response), flush=True)

    async def _carry_out(self, command: dict[str, Any]) -> dict[str, Any] | None:
        match command["do"]:
            case "start":
                discard = command.get("onFull") == "discard"
                started = await (await self._connected()).start(
                    command["argv"],
                    cwd="/",
                    tty=command.get("tty", False),
                    stdin=command.get("stdin", False),
                    on_full="discard" if discard else "block",
                )
                self._readers[command["process"]] = Reader(started, gaps_wanted=discard)
            case "resume":
                resumed = await Machine.resume(command["state"], url=self._url)
                self._readers[command["process"]] = Reader(resumed)
            case "run":
                result = await (await self._connected()).run(command["argv"], cwd="/")
                stdout = b64encode(result.stdout_bytes).decode()
                return {"exitCode": result.exit_code, "stdout": stdout}
            case "readFile":
                data = await (await self._connected()).files.read(command["path"])
                return {"data": b64encode(data).decode()}
            case "writeFile":
                data = b64decode(command["data"])
                await (await self._connected()).files.write(command["path"], data)
            case "removeFile":
                await (await self._connected()).files.remove(command["path"])
            case "close":
                await (await self._connected()).close()
            case _:
                return await self._with_process(command)
        return None

    async def _with_process(self, command: dict[str, Any]) -> dict[str, Any] | None:
        reader = self._readers[command["process"]]
        process = reader.process
        match command["do"]:
            case "write":
                assert process.stdin is not None
                process.stdin.write(b64decode(command["data"]))
                await process.stdin.drain()
            case "closeStdin":
                assert process.stdin is not None
                process.stdin.write_eof()
                await process.stdin.drain()
            case "readLines":
                return await reader.lines(command["count"])
            case "collect":
                return await reader.collect()
            case "wait":
                return {"exitCode": await process.wait()}
            case "signal":
                await process.send_signal(command["signal"])
            case "terminate":
                await process.kill()
            case "save":
                return {"state": await reader.save()}
            case other:
                raise ValueError(f"unknown command {other!r}")
        return None

    async def _connected(self) -> Machine:
        if self._machine is None:
            self._machine = asyncio.ensure_future(_connect(self._url))
        return await asyncio.shield(self._machine)


async def _connect(url: str) -> Machine:
    return await Machine.connect(url, client_name="conformance")


async def main(url: str) -> None:
    adapter = Adapter(url)
    commands = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    tasks = set()
    async for line in commands:
        task = asyncio.create_task(adapter.respond(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    # Exits without `close`, so that the server keeps the session for another adapter.
    os._exit(0)


asyncio.run(main(sys.argv[1]))
