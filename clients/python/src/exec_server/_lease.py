"""A resource at the server that ends with its connection: a file handle, watch, search or HTTP
body."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

MAX_ITEMS = 1000


class Lease:
    """Notifications under one id, in order, and possibly an error at the end."""

    def __init__(self, lease_id: str, method: str, release: tuple[str, dict[str, Any]]) -> None:
        self.id = lease_id
        #: The call that opens the lease.
        self.method = method
        #: The call that releases the lease on the server.
        self.release = release
        #: The item that replaces a full queue. `None`: the server's flow control bounds the queue.
        self.overflow: dict[str, Any] | None = None
        self._items: deque[dict[str, Any]] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._news = asyncio.Event()

    def deliver(self, params: dict[str, Any]) -> None:
        self._items.append(params)
        if self.overflow is not None and len(self._items) > MAX_ITEMS:
            self._items.clear()
            self._items.append(self.overflow)
        self._news.set()

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._news.set()

    def end(self) -> None:
        """No more notifications will come. Queued ones are still handed out."""
        self._ended = True
        self._news.set()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    async def next(self) -> dict[str, Any] | None:
        """The next notification, or `None` at the end."""
        while not self._items:
            self.check()
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        return self._items.popleft()
