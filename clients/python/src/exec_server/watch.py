"""File changes as they happen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from ._lease import Lease
from ._paths import AnyPath, from_uri, to_uri
from .errors import Interrupted

if TYPE_CHECKING:
    from ._connection import Connection
    from ._generated import ChangedNotification, FsWatchParams


class Change(NamedTuple):
    path: str
    #: `created`, `modified`, `removed` or `renamed`.
    kind: str
    #: The old path, if `kind` is `renamed`.
    from_path: str | None = None


class Changes(NamedTuple):
    changes: list[Change]
    #: Whether changes were lost, for example with the connection: look at everything again.
    rescan: bool


class Watch:
    """Iterate over it. The watch begins with `async with`, or when the first item is requested."""

    def __init__(
        self,
        connection: Connection,
        base: Callable[[], Awaitable[str]],
        path: AnyPath,
        recursive: bool,
    ) -> None:
        self._connection = connection
        self._base = base
        self._path = path
        self._recursive = recursive
        self._lease: Lease | None = None
        self._was_lost = False
        self._closed = False

    async def __aenter__(self) -> Watch:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Changes:
        while not self._closed:
            try:
                lease = self._lease or await self._open()
                if self._was_lost and not self._closed:
                    self._was_lost = False
                    return Changes([], rescan=True)
                item = await lease.next()
            except Interrupted:
                self._lease, self._was_lost = None, True
                continue
            if item is not None:
                return _read(cast("ChangedNotification", item))
        raise StopAsyncIteration

    async def close(self) -> None:
        self._closed = True
        if self._lease is not None:
            self._lease.end()
            self._connection.close_lease(self._lease)

    async def _open(self) -> Lease:
        watch_id = self._connection.unique_id()
        lease = Lease(watch_id, "fs/watch", ("fs/unwatch", {"watchId": watch_id}))
        lease.overflow = {"changes": [], "rescan": True}
        path = to_uri(self._path, await self._base())
        params: FsWatchParams = {"path": path, "watchId": watch_id, "recursive": self._recursive}
        try:
            await self._connection.open_lease(lease, "fs/watch", params)
        except Interrupted:
            return await self._open()  # A repetition is harmless: the lost watch is gone.
        self._lease = lease
        if self._closed:  # Another task has closed it in the meantime.
            await self.close()
        return lease


def _read(item: ChangedNotification) -> Changes:
    changes = []
    for change in item["changes"]:
        old_name = change.get("from")
        from_path = None if old_name is None else from_uri(old_name)
        changes.append(Change(from_uri(change["path"]), change["kind"], from_path))
    return Changes(changes, rescan=bool(item.get("rescan")))
