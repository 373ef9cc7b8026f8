"""The result of `run`, and how output is collected within a bound."""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from .errors import OutputGap, SessionLost
from .events import Denied, Exit, Exited, Gap, Output

if TYPE_CHECKING:
    from .process import Process

#: Gets text as it arrives. The result of a coroutine function is awaited before more is read.
OnOutput = Callable[[str], object]

#: How many bytes of each stream `run` keeps by default.
MAX_OUTPUT = 16 << 20


class Result(NamedTuple):
    """The exit and the output of a command."""

    exit_code: int
    #: As text; bytes that are not UTF-8 are replaced. A line marks omitted output.
    stdout: str
    stderr: str
    stdout_bytes: bytes
    stderr_bytes: bytes
    #: Whether output in the middle was left out, because there was more than `max_output`.
    truncated: bool
    #: The signal that killed the command; then `exit_code` is 128 + signal.
    signal: int | None
    #: A limit that the command reached, such as `memory` or `wallTime`; the first of several.
    limit: str | None
    #: The access that the sandbox denied, if that is probably why the command failed.
    denied: Denied | None
    timed_out: bool

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Collector:
    """The beginning and the end of a stream."""

    def __init__(self, bound: int) -> None:
        self._head_bound = bound // 2
        self._tail_bound = bound - self._head_bound
        self._head = bytearray()
        self._tail = bytearray()
        self.omitted = 0

    def add(self, data: bytes) -> None:
        room = self._head_bound - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cut only at twice the bound: cutting for each piece would move the whole tail each time.
        if len(self._tail) > 2 * self._tail_bound:
            self._cut()

    def finish(self) -> tuple[bytes, str]:
        """The bytes, and the text with a line in place of omitted output."""
        if len(self._tail) > self._tail_bound:
            self._cut()
        data = bytes(self._head + self._tail)
        if not self.omitted:
            return data, data.decode(errors="replace")
        head, tail = (part.decode(errors="replace") for part in (self._head, self._tail))
        return data, f"{head}\n[{self.omitted} bytes left out]\n{tail}"

    def _cut(self) -> None:
        excess = len(self._tail) - self._tail_bound
        self.omitted += excess
        del self._tail[:excess]


async def collect(
    started: Process, bound: int, on_stdout: OnOutput | None, on_stderr: OnOutput | None
) -> Result:
    collectors = {"stdout": Collector(bound), "stderr": Collector(bound)}
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}
    make_decoder = codecs.getincrementaldecoder("utf-8")
    decoders = {name: make_decoder(errors="replace") for name, call in callbacks.items() if call}
    ended = None
    async for event in started.events():
        if isinstance(event, Output):
            collectors[event.stream].add(event.data)
            if (decoder := decoders.get(event.stream)) is not None:
                await _report(callbacks[event.stream], decoder.decode(event.data))
        elif isinstance(event, Exited):
            ended = event.exit
        elif isinstance(event, Gap):
            raise OutputGap(started.process_id, event.dropped_bytes)
    for name, decoder in decoders.items():
        await _report(callbacks[name], decoder.decode(b"", final=True))
    if ended is None:
        text = "has no result: its output closed, but the server reported no exit"
        raise SessionLost(f"process {started.process_id!r} {text}")
    return _make_result(ended, collectors["stdout"], collectors["stderr"])


async def _report(callback: OnOutput | None, text: str) -> None:
    if callback is not None and text:
        called = callback(text)
        if isinstance(called, Awaitable):
            await called


def _make_result(exit: Exit, stdout: Collector, stderr: Collector) -> Result:
    (out, out_text), (err, err_text) = stdout.finish(), stderr.finish()
    return Result(
        exit_code=exit.code,
        stdout=out_text,
        stderr=err_text,
        stdout_bytes=out,
        stderr_bytes=err,
        truncated=bool(stdout.omitted or stderr.omitted),
        signal=exit.signal,
        limit=exit.limits[0] if exit.limits else None,
        denied=exit.denied,
        timed_out=exit.timed_out,
    )
