"""The result of `Machine.connect` and similar methods: use it with `await` or `async with`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from ._connection import Connection, Options
from ._link import Connector, Link, Receiver
from .errors import Closed

Token = str | Callable[[], str] | None


class Opened(Protocol):
    async def __aexit__(self, *_: object) -> None: ...


T = TypeVar("T", bound=Opened)


class Opening(Generic[T]):
    """Connects when it is awaited or entered."""

    def __init__(
        self, connector: Connector, options: Options, make: Callable[[Connection], T]
    ) -> None:
        self._connector = connector
        self._options = options
        self._make = make
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *error: object) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(*error)

    async def _open(self) -> T:
        connection = Connection(self._connector, self._options)
        try:
            await connection.open()
        except BaseException:
            await self._connector.wait_closed()
            raise
        try:
            return self._make(connection)
        except BaseException:
            connection.end(Closed("the machine was not used"))
            raise


class LazyWebSocket:
    """Imports the WebSocket library when it is first needed."""

    can_redial = True

    def __init__(self, url: str, token: Token, tls: tuple[str | None, ...]) -> None:
        self.url: str | None = url
        self._token = token
        self._tls = tls

    async def dial(self, receiver: Receiver) -> Link:
        from . import _websocket

        assert self.url is not None
        token = self._token() if callable(self._token) else self._token
        return await _websocket.dial(self.url, token, _websocket.Tls(*self._tls), receiver)

    async def wait_closed(self) -> None:
        pass
