"""The interface of transports: a link sends messages, and a connector opens links."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

from .errors import ExecServerError

#: The largest message in either direction.
MAX_MESSAGE = 64 << 20


class Receiver(Protocol):
    """Gets the messages of a link. Called on the event loop, and never after `handle_end` or
    `Link.close`."""

    def handle_message(self, message: bytes | bytearray) -> None: ...

    def handle_end(self, error: ExecServerError, *, too_big: bool) -> None:
        """The link ended. `too_big`: whether a message over the server's limit ended it."""


class Link(Protocol):
    def send(self, message: bytes) -> None:
        """Queues a message. Messages that are still queued when the link ends are lost."""

    def close(self) -> None:
        """Ends the link. The receiver is not called again."""


class Connector(Protocol):
    #: Whether a lost connection can be dialled again. A server on stdio, and its session, end with
    #: the connection.
    can_redial: bool
    #: The URL at which another process can reach the server, if there is one.
    url: str | None

    async def dial(self, receiver: Receiver) -> Link:
        """Raises `ConnectFailed`."""
        ...

    async def wait_closed(self) -> None:
        """Waits until a server that a link started has exited."""


def without_secrets(url: str) -> str:
    """The URL without the parts that may hold a secret: user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL of the server"
    if "@" in parts.query + parts.fragment:  # A password may contain "?" or "#".
        return "the URL of the server"
    if "://" not in url:
        return url.partition("?")[0].rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
