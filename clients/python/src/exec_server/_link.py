"""The interface of transports: a link sends messages, and a connector opens links."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

from .errors import ExecServerError

#: The largest message in either direction.
MAX_MESSAGE = 64 << 20


class Receiver(Protocol):
    """Gets the messages of a link. Called on the event loop, and never after `handle_end`."""

    def handle_message(self, message: bytes | bytearray) -> None: ...

    def handle_end(self, error: ExecServerError, *, too_big: bool) -> None:
        """The link ended. `too_big`: because a message of this client was over the limit."""


class Link(Protocol):
    def send(self, message: bytes) -> None:
        """Queues a message. Messages that wait when the link ends are lost."""

    def close(self) -> None:
        """Ends the link, and reports nothing more."""


class Connector(Protocol):
    #: Whether a lost connection can be made again. A server on stdio takes its session with it.
    can_redial: bool
    #: The URL that another process could use, if there is one.
    url: str | None

    async def dial(self, receiver: Receiver) -> Link:
        """Raises `ConnectFailed`."""
        ...

    async def wait_closed(self) -> None:
        """Waits until closed links are gone."""


def without_secrets(url: str) -> str:
    """The URL without user, password and query, which may hold a token."""
    parts = urlsplit(url)
    if "://" not in url:
        return url.partition("?")[0].rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
