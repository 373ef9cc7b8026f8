"""The handle of a process. The handle outlives the connections under it."""

from __future__ import annotations

import asyncio
import json
import signal as signals
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from ._link import without_secrets
from ._process_log import ProcessLog
from ._streams import STREAM_LIMIT, StreamBuffer, StreamReader, StreamWriter
from .errors import ExecServerError, OutputGap
from .events import Event, Exit, Gap, Output, OutputClosed, read_exit, write_exit

if TYPE_CHECKING:
    from ._generated import (
        ResizeParams,
        SignalName,
        SignalParams,
        TerminateParams,
        WaitResponse,
    )
    from .machine import Machine

_SIGNALS: dict[int, SignalName] = {
    signals.SIGINT: "interrupt",
    signals.SIGTERM: "terminate",
    signals.SIGKILL: "kill",
    signals.SIGHUP: "hangup",
    signals.SIGQUIT: "quit",
    signals.SIGUSR1: "user1",
    signals.SIGUSR2: "user2",
    signals.SIGSTOP: "stop",
    signals.SIGCONT: "continue",
}


class Process:
    """A process on the machine, shaped like `asyncio.subprocess.Process`.

    Dropping the handle leaves the process running. Leaving `async with process:` ends it.
    """

    def __init__(
        self, machine: Machine, log: ProcessLog, news: News, *, tty: bool, stdin: bool
    ) -> None:
        self._machine = machine
        self._connection = machine._connection
        self._resumed = False
        self._log = log
        self._news = news
        self._tty = tty
        self._loop = asyncio.get_running_loop()
        names = ("pty",) if tty else ("stdout", "stderr")
        self._buffers = {name: StreamBuffer(log.process_id) for name in names}
        #: `None` unless the process was started with `stdin=True` or a terminal.
        self.stdin: StreamWriter | None = StreamWriter(self, tty) if stdin or tty else None
        #: With a terminal, all output of the process.
        self.stdout: StreamReader = StreamReader(self, names[0])
        #: `None` with a terminal.
        self.stderr: StreamReader | None = None if tty else StreamReader(self, "stderr")

    @property
    def machine(self) -> Machine:
        """The machine on which the process runs."""
        return self._machine

    @property
    def process_id(self) -> str:
        """The name of the process in the session; not its pid."""
        return self._log.process_id

    @property
    def exit(self) -> Exit | None:
        """How the process ended, if this client knows it already."""
        return self._log.exit

    @property
    def returncode(self) -> int | None:
        """The exit code, if this client knows it already; 128 + N after signal N."""
        return None if self._log.exit is None else self._log.exit.code

    async def wait(self) -> int:
        """Waits for the exit and returns the exit code. Cancelling it leaves the process running.

        A process whose output is not read blocks once the server's log is full, as with a pipe.
        """
        while self._log.exit is None:
            if self._log.failure is not None:
                raise self._log.failure
            if self._log.is_behind:
                # Events may be missing in this log, perhaps because it is full, so ask the server.
                params = {"processId": self.process_id}
                result: WaitResponse = await self._connection.call("process/wait", params)
                code = result["exitCode"]
                if self._log.exit is None and code is not None:
                    return code
            else:
                await self._news.wait()
        return self._log.exit.code

    async def communicate(self, input: bytes | str | None = None) -> tuple[bytes, bytes]:
        """Writes `input`, closes stdin, and returns the rest of stdout and stderr. With a terminal,
        all output is in the first."""
        if self.stdin is not None:
            if input is not None:
                self.stdin.write(input)
            self.stdin.write_eof()
        elif input is not None:
            raise ValueError(f"process {self.process_id!r} has no stdin; start it with stdin=True")
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": [], "pty": []}
        async for event in self.events():
            if isinstance(event, Output):
                parts[event.stream].append(event.data)
            elif isinstance(event, Gap):
                raise OutputGap(self.process_id, event.dropped_bytes)
        return b"".join(parts["stdout"] + parts["pty"]), b"".join(parts["stderr"])

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events that were not handed out yet, each once and in order. Use it instead of
        `stdout` and `stderr`."""
        for name, buffer in self._buffers.items():
            # Take items one by one, so that the rest stays unread if the consumer stops.
            while (item := buffer.take_item()) is not None:
                if isinstance(item, bytes):
                    yield Output(self._log.taken, name, item)
                else:
                    yield Gap(self._log.taken, item.dropped_bytes)
        while True:
            taken = self._log.take()
            if taken is not None:
                yield taken
                # The consumer asks for the next event, so this one may be acknowledged.
                self._connection.processes.settle(self._log)
                if isinstance(taken, OutputClosed):
                    return
            elif self._log.failure is not None:
                raise self._log.failure
            elif self._log.is_over:
                return
            else:
                self._connection.processes.settle(self._log)
                await self._news.wait()

    async def send_signal(self, signal: int | SignalName) -> None:
        """Sends a signal to the process group: a number from `signal`, or a name like `interrupt`.

        It is not repeated: a lost connection raises `Interrupted`.
        """
        name = signal if isinstance(signal, str) else _SIGNALS.get(signal)
        if name is None:
            known = ", ".join(_SIGNALS.values())
            raise ValueError(f"signal {int(signal)} is not supported; expected one of {known}")
        params: SignalParams = {"processId": self.process_id, "signal": name}
        await self._connection.call("process/signal", params)

    async def terminate(self, grace: float = 2.0) -> None:
        """Ends the process and everything it started: TERM, and after `grace` seconds KILL."""
        params: TerminateParams = {
            "processId": self.process_id,
            "mode": {"type": "graceful", "timeoutMs": max(1, int(grace * 1000))},
        }
        await self._connection.call("process/terminate", params)

    async def kill(self) -> None:
        """Kills the process and everything it started."""
        await self._connection.call("process/terminate", {"processId": self.process_id})

    async def resize(self, rows: int, cols: int) -> None:
        """Changes the size of the terminal."""
        params: ResizeParams = {"processId": self.process_id, "rows": rows, "cols": cols}
        await self._connection.call("process/resize", params)

    def save(self) -> str:
        """The state from which `Machine.resume` and `Machine.attach` continue at the next byte,
        even in another program. It contains no token."""
        if self._connection.url is None:
            raise ExecServerError(
                "a local server ends with this client, so its processes cannot be resumed; "
                "connect to one that listens on ws://, wss:// or unix://"
            )
        unread = {
            name: [
                b64encode(item).decode() if isinstance(item, bytes) else item.dropped_bytes
                for item in buffer.unread()
            ]
            for name, buffer in self._buffers.items()
        }
        log = self._log
        return json.dumps(
            {
                "url": without_secrets(self._connection.url),
                "session": self._connection.session_id,
                "process": log.process_id,
                "after": log.taken,
                "exit": None if log.taken_exit is None else write_exit(log.taken_exit),
                "closed": log.is_drained and log.failure is None,
                "gaps": log.gaps_declared,
                "tty": self._tty,
                "stdin": self.stdin is not None,
                "unread": unread,
            }
        )

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._log.is_over:
            self._connection.processes.abandon(self._log)
        if self._resumed:
            await self._machine.close()

    def __del__(self) -> None:
        # Without a reader the server need not keep the output.
        log: ProcessLog | None = getattr(self, "_log", None)
        if log is not None and not log.discarding and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._connection.processes.discard, log)

    async def _more(self, wanted: StreamBuffer) -> bool:
        """Moves events to the streams until `wanted` gets output or a gap. Returns false at the end
        of the log."""
        size = wanted.size
        while True:
            others = [b for b in self._buffers.values() if b is not wanted]
            if all(not b.is_read or b.size < STREAM_LIMIT for b in others):
                event = self._log.take()
                if event is not None:
                    self._distribute(event)
                    self._connection.processes.settle(self._log)
                    if wanted.size > size or isinstance(event, Gap):
                        return True
                    continue
                if self._log.failure is not None:
                    raise self._log.failure
                if self._log.is_over:
                    return False
                self._connection.processes.settle(self._log)
            await self._news.wait()

    def _distribute(self, event: Event) -> None:
        if isinstance(event, Output):
            self._buffers[event.stream].add(event.data)
        elif isinstance(event, Gap):
            for buffer in self._buffers.values():
                buffer.add_gap(OutputGap(self.process_id, event.dropped_bytes))
        self._news.wake()


_STATE_MEMBERS = {
    *("url", "session", "process", "after", "exit", "closed", "gaps", "tty", "stdin", "unread")
}


class News:
    """Wakes the waiters of a process, without a reference that would keep its handle alive."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


def read_state(state: str) -> dict[str, Any]:
    try:
        saved = json.loads(state)
        if not saved.keys() >= _STATE_MEMBERS:
            missing = ", ".join(sorted(_STATE_MEMBERS - saved.keys()))
            raise ValueError(f"it lacks {missing}")
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"this is not a state that Process.save() returned: {error}") from None
    return dict(saved)


def load(machine: Machine, state: dict[str, Any], *, resumed: bool = False) -> Process:
    """A handle that continues after `Process.save`."""
    log = ProcessLog(
        state["process"],
        after=state["after"],
        gaps_declared=state["gaps"],
        attached=not state["closed"],
    )
    if state["exit"] is not None:
        log.restore_exit(read_exit(state["exit"]), closed=state["closed"])
    news = News()
    process = Process(machine, log, news, tty=state["tty"], stdin=state["stdin"])
    for name, items in state["unread"].items():
        for item in items:
            if isinstance(item, str):
                process._buffers[name].add(b64decode(item))
            else:
                process._buffers[name].add_gap(OutputGap(log.process_id, item))
    if not state["closed"]:
        machine._connection.processes.track(log, news.wake)
    process._resumed = resumed
    return process
