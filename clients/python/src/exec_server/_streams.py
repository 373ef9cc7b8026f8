"""The streams of a process: output demultiplexed from its log, and input that is sent in order."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import deque
from typing import TYPE_CHECKING, Any

from ._calls import Call
from .errors import OutputGap

if TYPE_CHECKING:
    from ._generated import WriteParams
    from .process import Process

#: How many bytes of one stream are kept while the other is read. At this size, the oldest bytes of
#: a stream without a reader are dropped, and a stream with a reader holds back the other.
STREAM_LIMIT = 1 << 20
#: The largest piece of input in one message, and how many pieces may wait for their responses.
MAX_PIECE = 256 << 10
PIECES_IN_FLIGHT = 8
END_OF_TRANSMISSION = b"\x04"


class StreamBuffer:
    """Output of one stream that was taken from the log and not read yet. No I/O."""

    def __init__(self, process_id: str) -> None:
        self._process_id = process_id
        self._lost = 0
        self._items: deque[bytes | OutputGap] = deque()
        #: Where the unread part of the first item begins.
        self._offset = 0
        self._scanned = 0
        self.size = 0
        #: Whether this stream has a reader.
        self.is_read = False

    def add(self, data: bytes) -> None:
        self._items.append(data)
        self.size += len(data)
        # Without a reader the oldest output is dropped, and a later reader gets a gap.
        while not self.is_read and self.size > STREAM_LIMIT:
            oldest = self._items.popleft()
            if isinstance(oldest, OutputGap):
                self._lost += oldest.dropped_bytes
            else:
                self._lost += len(oldest)
                self.size -= len(oldest)

    def add_gap(self, gap: OutputGap) -> None:
        self._items.append(gap)

    def unread(self) -> list[bytes | OutputGap]:
        """Everything that was not read yet."""
        items = list(self._items)
        if items and isinstance(items[0], bytes):
            items[0] = items[0][self._offset :]
        return [OutputGap(self._process_id, self._lost), *items] if self._lost else items

    def take_item(self) -> bytes | OutputGap | None:
        """Takes the first item of `unread`."""
        try:
            return self.take(1 << 62)
        except OutputGap as gap:
            return gap

    def take(self, limit: int) -> bytes | None:
        """At most `limit` bytes of the first item; `None` if there is no item. Raises a gap."""
        first = self._first()
        if first is None:
            return None
        if self._offset == 0 and len(first) <= limit:
            self._items.popleft()
            data = first
        else:
            data = first[self._offset : self._offset + limit]
            self._offset += len(data)
            if self._offset == len(first):
                self._items.popleft()
                self._offset = 0
        self.size -= len(data)
        self._scanned = 0
        return data

    def take_line(self) -> bytes | None:
        """The next line, or its part before a gap; `None` if its end has not arrived."""
        if self._first() is None:
            return None
        for index, item in enumerate(self._items):
            if isinstance(item, OutputGap):
                return self._take_items(index, 0)
            if index < self._scanned:
                continue
            end = item.find(b"\n", self._offset if index == 0 else 0)
            if end >= 0:
                return self._take_items(index, end + 1)
        self._scanned = len(self._items)
        return None

    def take_rest(self) -> bytes:
        """All bytes up to the next gap."""
        parts = []
        while (data := self.take(1 << 62)) is not None:
            parts.append(data)
            if self._items and isinstance(self._items[0], OutputGap):
                break
        return b"".join(parts)

    def _first(self) -> bytes | None:
        if self._lost:
            lost, self._lost = self._lost, 0
            raise OutputGap(self._process_id, lost)
        if not self._items:
            return None
        first = self._items[0]
        if isinstance(first, OutputGap):
            self._items.popleft()
            self._scanned = 0
            raise first
        return first

    def _take_items(self, whole: int, end: int) -> bytes:
        """The first `whole` items, and the next one up to `end`."""
        parts = []
        for _ in range(whole):
            parts.append(self.take(1 << 62) or b"")
        if end > 0:
            parts.append(self.take(end - self._offset) or b"")
        return b"".join(parts) if len(parts) != 1 else parts[0]


class StreamReader:
    """Output of a process, shaped like `asyncio.StreamReader`. Iterating gives lines."""

    def __init__(self, process: Process, stream: str) -> None:
        self._process = process
        self._buffer = process._buffers[stream]

    async def read(self, n: int = -1) -> bytes:
        """At most `n` bytes, and `b""` at the end; without `n` everything until the end."""
        self._buffer.is_read = True
        if n == 0:
            return b""
        if n < 0:
            parts = []
            while data := await self.read(1 << 62):
                parts.append(data)
            return b"".join(parts)
        while True:
            taken = self._buffer.take(n)
            if taken:
                self._process._news.wake()
                return taken
            if taken is None and not await self._process._more(self._buffer):
                return b""

    async def readline(self) -> bytes:
        """The next line with its newline, which the last line may lack; `b""` at the end."""
        self._buffer.is_read = True
        while (line := self._buffer.take_line()) is None:
            if not await self._process._more(self._buffer):
                return self._buffer.take_rest()
        self._process._news.wake()
        return line

    def __aiter__(self) -> StreamReader:
        return self

    async def __anext__(self) -> bytes:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line


class StreamWriter:
    """Input of a process, shaped like `asyncio.StreamWriter`.

    Each byte arrives once and in order, even across lost connections. `drain` waits until the
    server has accepted everything, so a process that does not read holds the writer back.
    """

    def __init__(self, process: Process, tty: bool) -> None:
        self._process = process
        self._tty = tty
        self._prefix = process._connection.unique_id()
        self._writes = 0
        self._queue: deque[bytes | None] = deque()
        self._in_flight = 0
        self._error: Exception | None = None
        self._ended = False
        self._waiters: list[asyncio.Future[None]] = []

    def write(self, data: bytes | str) -> None:
        """Queues input. Text is sent as UTF-8."""
        if self._ended:
            name = self._process.process_id
            raise BrokenPipeError(f"cannot write to process {name!r} after write_eof")
        if self._error is not None:
            return  # `drain` raises it.
        data = data.encode() if isinstance(data, str) else bytes(data)
        for start in range(0, len(data), MAX_PIECE):
            self._queue.append(data[start : start + MAX_PIECE])
        self._send()

    async def drain(self) -> None:
        """Waits until the server has accepted all input. Raises the error of a failed write."""
        while self._error is None and (self._queue or self._in_flight):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._error is not None:
            raise self._error

    def write_eof(self) -> None:
        """Ends the input after all writes. A terminal gets the end-of-file character."""
        if not self._ended:
            self._ended = True
            self._queue.append(END_OF_TRANSMISSION if self._tty else None)
            self._send()

    def _send(self) -> None:
        while self._queue and self._in_flight < PIECES_IN_FLIGHT and self._error is None:
            piece = self._queue.popleft()
            process_id = self._process.process_id
            if piece is None:
                # The status in the response is ignored: a repeated call finds the input closed.
                params = {"processId": process_id}
                call = Call("process/closeStdin", params, self._settle, replay=True)
            else:
                self._writes += 1
                write: WriteParams = {
                    "processId": process_id,
                    "chunk": b64encode(piece).decode(),
                    "writeId": f"{self._prefix}.{self._writes}",
                }
                call = Call("process/write", write, self._handle_write, replay=True)
            self._in_flight += 1
            self._process._connection.send(call)

    def _handle_write(self, result: Any, error: Exception | None) -> None:
        if error is None and result["status"] != "accepted":
            name = self._process.process_id
            status = result["status"]
            reason = {
                "stdinClosed": "its stdin is closed",
                "unknownProcess": "the server no longer knows it",
            }.get(status, f"the server answered {status!r}")
            error = BrokenPipeError(f"cannot write to process {name!r}: {reason}")
        self._settle(result, error)

    def _settle(self, result: Any, error: Exception | None) -> None:
        self._in_flight -= 1
        if error is not None:
            self._error = self._error or error
            self._queue.clear()
        self._send()
        if self._error is not None or not (self._queue or self._in_flight):
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
