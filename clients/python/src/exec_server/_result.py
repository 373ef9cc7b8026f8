"""The result of `run`, and how output is collected within a bound."""

from __future__ import annotations

from typing import NamedTuple

from .events import Denied, Exit

#: How much `run` keeps of each stream unless it is told otherwise.
MAX_OUTPUT = 16 << 20


class Result(NamedTuple):
    """How a command ended, and what it wrote."""

    exit_code: int
    #: As text; bytes that are not UTF-8 are replaced. A line says what was left out in the middle.
    stdout: str
    stderr: str
    stdout_bytes: bytes
    stderr_bytes: bytes
    #: Whether output in the middle was left out, because there was more than `max_output`.
    truncated: bool
    #: The signal that killed it; `exit_code` is 128 + signal then.
    signal: int | None
    #: The limit that ended it, such as `memory` or `wallTime`.
    limit: str | None
    #: What the sandbox denied, if the command failed and that seems to be the reason.
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
        # Twice the bound, so that not every piece moves the whole tail.
        if len(self._tail) > 2 * self._tail_bound:
            self._cut()

    def finish(self) -> tuple[bytes, str]:
        """The bytes, and the text with a line in place of what was left out."""
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


def make_result(exit: Exit, stdout: Collector, stderr: Collector) -> Result:
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
