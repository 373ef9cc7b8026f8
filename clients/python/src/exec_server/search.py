"""Searching in files, and for files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ._lease import Lease
from ._paths import AnyPath, from_uri, to_uri
from .errors import ExecServerError

if TYPE_CHECKING:
    from ._connection import Connection
    from ._generated import (
        FsGlobParams,
        FsSearchParams,
        FsSearchResponse,
        FsWalkResponse,
        SearchMatch,
    )


class Match(NamedTuple):
    path: str
    line_number: int
    #: Without the line ending, at most 4 KiB.
    text: str
    #: Start and end of each match in the UTF-8 bytes of `text`.
    spans: list[tuple[int, int]]
    before: list[str]
    after: list[str]


class Summary(NamedTuple):
    matches: int
    files_searched: int
    #: How many files and directories could not be read.
    unreadable: int
    #: Whether the search ended early, because a bound was reached.
    truncated: bool


class Search:
    """Iterate over it; `summary` is set at the end. Leaving `async with` cancels the search.

    A lost connection ends a search with `Interrupted`.
    """

    def __init__(
        self,
        connection: Connection,
        base: Callable[[], Awaitable[str]],
        path: AnyPath,
        params: FsSearchParams,
    ) -> None:
        self._connection = connection
        self._base = base
        self._path = path
        self._params = params
        self._matches: list[Match] = []
        self._task: asyncio.Task[None] | None = None
        search_id = connection.unique_id()
        release = ("fs/cancelSearch", {"searchId": search_id})
        self._params["searchId"] = search_id
        self._lease = Lease(search_id, "fs/search", release)
        self._summary: Summary | None = None

    @property
    def summary(self) -> Summary | None:
        return self._summary

    async def all(self) -> list[Match]:
        """All matches. `summary.truncated` says whether the search ended early."""
        return [match async for match in self]

    async def close(self) -> None:
        """Cancels the search if it still runs."""
        if self._task is not None and not self._task.done():
            self._cancel(self._task)
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Search:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Search:
        return self

    async def __anext__(self) -> Match:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        try:
            while not self._matches:
                item = await self._lease.next()
                if item is None:
                    raise StopAsyncIteration
                self._matches = [_match(result) for result in reversed(item["results"])]
        except asyncio.CancelledError:
            self._cancel(self._task)
            raise
        return self._matches.pop()

    def _cancel(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._lease.end()

    async def _run(self) -> None:
        try:
            self._params["path"] = to_uri(self._path, await self._base())
            result: FsSearchResponse = await self._connection.open_lease(
                self._lease, "fs/search", self._params
            )
        except Exception as error:  # For example, `path` has a wrong type.
            self._lease.fail(error)
            return
        self._connection.forget_lease(self._lease)
        self._summary = Summary(
            result["matches"], result["filesSearched"], result["unreadable"], result["truncated"]
        )
        self._lease.end()


async def glob(
    connection: Connection,
    root: str,
    patterns: str | Sequence[str],
    *,
    hidden: bool,
    ignored: bool,
) -> list[str]:
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    params: FsGlobParams = {"path": root, "patterns": wanted, "hidden": hidden, "ignored": ignored}
    result: FsWalkResponse = await connection.call("fs/glob", params)
    if result["truncated"]:
        raise ExecServerError(
            f"the server reached a limit below {from_uri(root)} after "
            f"{len(result['entries'])} matches; narrow the pattern, or start at a lower directory"
        )
    return [from_uri(entry["path"]) for entry in result["entries"]]


def _match(result: SearchMatch) -> Match:
    return Match(
        from_uri(result["path"]),
        result["lineNumber"],
        result["text"],
        [(span["start"], span["end"]) for span in result["submatches"]],
        [line["text"] for line in result.get("before") or []],
        [line["text"] for line in result.get("after") or []],
    )
