"""Files of a machine."""

from __future__ import annotations

import asyncio
import os
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ._lease import Lease
from ._paths import AnyPath, from_uri, to_uri
from .errors import ExecServerError, Interrupted, ServerError

if TYPE_CHECKING:
    from ._generated import (
        DirectoryEntry,
        FsCopyParams,
        FsCreateDirectoryParams,
        FsCreateParams,
        FsHandleResponse,
        FsMetadata,
        FsOpenParams,
        FsReadBlockParams,
        FsReadBlockResponse,
        FsReadDirectoryParams,
        FsReadDirectoryResponse,
        FsReadFileResponse,
        FsRemoveParams,
        FsRenameParams,
        FsWriteBlockParams,
        FsWriteFileParams,
    )
    from .machine import Machine

BLOCK = 1 << 20
BLOCKS_IN_FLIGHT = 4
#: A larger file is written in blocks.
WHOLE_FILE = 16 << 20
PAGE = 10_000
#: How long the server may take to release the file of a lost connection, and the pause before each
#: further attempt, in seconds.
RELEASE_TIMEOUT = 10.0
RELEASE_PAUSE = 0.05


class FileInfo(NamedTuple):
    path: str
    is_directory: bool
    is_file: bool
    #: Whether the path itself is a symlink. The other members from `stat` describe its target.
    is_symlink: bool
    size: int
    modified_ms: int
    #: Permission bits.
    mode: int

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


class Files:
    """Paths are absolute, or relative to the working directory of the server.

    When the connection is lost, calls that only read are repeated, and `upload` and a `write` of
    more than 16 MiB continue until the last step, which puts the file in place. That step and all
    other calls raise `Interrupted`.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._connection = machine._connection

    async def read(self, path: AnyPath) -> bytes:
        """The content of a file of any size."""
        uri = await self._uri(path)
        try:
            whole: FsReadFileResponse = await self._connection.call("fs/readFile", {"path": uri})
            return b64decode(whole["dataBase64"])
        except ServerError as error:
            if error.kind != "fileTooLarge":
                raise
        content = bytearray()
        await self._read_blocks(uri, content.extend)
        return bytes(content)

    async def read_text(self, path: AnyPath, encoding: str = "utf-8") -> str:
        return (await self.read(path)).decode(encoding)

    async def write(
        self,
        path: AnyPath,
        data: bytes | str,
        *,
        atomic: bool = False,
        create_new: bool = False,
        mode: int | None = None,
    ) -> None:
        """Replaces the content of a file, or creates the file. Text is written as UTF-8.

        `atomic` writes a new file and renames it; `create_new` fails if the file exists. Content of
        more than 16 MiB is always written atomically.
        """
        content = data.encode() if isinstance(data, str) else bytes(data)
        uri = await self._uri(path)
        if len(content) <= WHOLE_FILE:
            params: FsWriteFileParams = {
                "path": uri,
                "dataBase64": b64encode(content).decode(),
                "atomic": atomic,
                "createNew": create_new,
                "mode": mode,
            }
            await self._connection.call("fs/writeFile", params)
            return

        def block(offset: int) -> bytes:
            return content[offset : offset + BLOCK]

        await self._write_blocks(uri, block, create_new=create_new, mode=mode)

    async def list(self, path: AnyPath = ".") -> list[FileInfo]:
        """The entries of a directory of any size, sorted by name."""
        uri = await self._uri(path)
        params: FsReadDirectoryParams = {"path": uri, "details": True, "limit": PAGE}
        entries: list[FileInfo] = []
        while True:
            page: FsReadDirectoryResponse = await self._connection.call("fs/readDirectory", params)
            entries += [_info(entry["path"], entry) for entry in page["entries"]]
            if not page.get("next"):
                return entries
            params["after"] = page["next"]

    async def stat(self, path: AnyPath) -> FileInfo:
        uri = await self._uri(path)
        return _info(uri, await self._connection.call("fs/getMetadata", {"path": uri}))

    async def exists(self, path: AnyPath) -> bool:
        try:
            await self.stat(path)
        except ServerError as error:
            if error.kind == "notFound":
                return False
            raise
        return True

    async def remove(self, path: AnyPath, *, recursive: bool = False, force: bool = False) -> None:
        """Removes a file, a symlink or a directory. With `force` it need not exist."""
        params: FsRemoveParams = {
            "path": await self._uri(path),
            "recursive": recursive,
            "force": force,
        }
        await self._connection.call("fs/remove", params)

    async def rename(self, source: AnyPath, target: AnyPath, *, replace: bool = True) -> None:
        params: FsRenameParams = {
            "sourcePath": await self._uri(source),
            "destinationPath": await self._uri(target),
            "replace": replace,
        }
        await self._connection.call("fs/rename", params)

    async def make_dir(self, path: AnyPath, *, parents: bool = True) -> None:
        """Makes a directory. With `parents`, makes missing parents too, and accepts an existing
        directory."""
        params: FsCreateDirectoryParams = {
            "path": await self._uri(path),
            "recursive": parents,
        }
        await self._connection.call("fs/createDirectory", params)

    async def copy(self, source: AnyPath, target: AnyPath, *, recursive: bool = False) -> None:
        """Copies on the machine itself."""
        params: FsCopyParams = {
            "sourcePath": await self._uri(source),
            "destinationPath": await self._uri(target),
            "recursive": recursive,
        }
        await self._connection.call("fs/copy", params)

    async def upload(self, local: AnyPath, path: AnyPath) -> None:
        """Copies a local file to the machine. It appears there complete, or not at all.
        After a lost connection the upload continues where it stopped. If the connection is lost as
        the file is put in place, this raises `Interrupted`."""
        with open(local, "rb") as file:
            await self._write_blocks(await self._uri(path), _reader(file))

    async def download(self, path: AnyPath, local: AnyPath) -> None:
        """Copies a file of the machine to a local file. After a lost connection the download
        continues where it stopped, unless the file has changed."""
        partial = os.fsdecode(local) + ".partial"
        try:
            with open(partial, "wb") as file:
                await self._read_blocks(await self._uri(path), file.write)
            os.replace(partial, os.fsdecode(local))
        except BaseException:
            if os.path.exists(partial):
                os.unlink(partial)
            raise

    async def _uri(self, path: AnyPath) -> str:
        absolute = os.fsdecode(path).startswith("/")
        return to_uri(path, "/" if absolute else await self._machine._base())

    async def _read_blocks(self, uri: str, consume: Callable[[bytes], object]) -> None:
        offset, version = 0, None
        while True:
            lease = self._lease("fs/open", {})
            params: FsOpenParams = {"path": uri, "handleId": lease.id, "details": True}
            try:
                opened: FsHandleResponse = await self._connection.open_lease(
                    lease, "fs/open", params
                )
                metadata = opened.get("metadata")
                found = metadata and (metadata.get("size"), metadata.get("modifiedAtMs"))
                if version not in (None, found):
                    raise ExecServerError(
                        f"{from_uri(uri)} changed while it was read; read it again"
                    )
                version = found
                while True:
                    block: FsReadBlockParams = {
                        "handleId": lease.id,
                        "offset": offset,
                        "len": BLOCK,
                    }
                    answer: FsReadBlockResponse = await self._connection.call("fs/readBlock", block)
                    data = b64decode(answer["chunk"])
                    consume(data)
                    offset += len(data)
                    if answer["eof"]:
                        return
            except Interrupted:
                continue
            finally:
                self._connection.close_lease(lease)

    async def _write_blocks(
        self,
        uri: str,
        block: Callable[[int], bytes],
        *,
        create_new: bool = False,
        mode: int | None = None,
    ) -> None:
        """Writes a file in blocks. The `resumeKey` lets the upload continue after a lost
        connection."""
        key = self._connection.unique_id()
        released_by = 0.0
        while True:
            lease = self._lease("fs/create", {"discard": True})
            opening: FsCreateParams = {
                "path": uri,
                "handleId": lease.id,
                "resumeKey": key,
                "createNew": create_new,
                "mode": mode,
            }
            try:
                opened: FsHandleResponse = await self._connection.open_lease(
                    lease, "fs/create", opening
                )
                # Go back: any block that was in flight when the connection was lost may be missing.
                offset = max(0, (opened.get("size") or 0) - BLOCKS_IN_FLIGHT * BLOCK)
                await self._send_blocks(lease, offset - offset % BLOCK, block)
            except Interrupted:
                released_by = time.monotonic() + RELEASE_TIMEOUT
                continue
            except BaseException as error:
                self._connection.close_lease(lease)
                conflict = isinstance(error, ServerError) and error.kind == "conflict"
                if not conflict or time.monotonic() > released_by:
                    raise
                await asyncio.sleep(RELEASE_PAUSE)
                continue
            # `fs/close` is not repeated: after a lost connection, the caller must check whether the
            # file is in place.
            self._connection.forget_lease(lease)
            await self._connection.call("fs/close", {"handleId": lease.id})
            return

    async def _send_blocks(self, lease: Lease, offset: int, block: Callable[[int], bytes]) -> None:
        waiting: deque[asyncio.Task[Any]] = deque()
        try:
            while data := block(offset):
                params: FsWriteBlockParams = {
                    "handleId": lease.id,
                    "offset": offset,
                    "chunk": b64encode(data).decode(),
                }
                call = self._connection.call("fs/writeBlock", params)
                waiting.append(asyncio.ensure_future(call))
                offset += len(data)
                if len(waiting) == BLOCKS_IN_FLIGHT:
                    await waiting.popleft()
            while waiting:
                await waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _lease(self, method: str, release: dict[str, Any]) -> Lease:
        handle = self._connection.unique_id()
        return Lease(handle, method, ("fs/close", {"handleId": handle, **release}))


def _reader(file: BinaryIO) -> Callable[[int], bytes]:
    def block(offset: int) -> bytes:
        file.seek(offset)
        return file.read(BLOCK)

    return block


def _info(uri: str, facts: DirectoryEntry | FsMetadata) -> FileInfo:
    return FileInfo(
        path=from_uri(uri),
        is_directory=facts["isDirectory"],
        is_file=facts["isFile"],
        is_symlink=facts.get("isSymlink") or False,
        size=facts.get("size") or 0,
        modified_ms=facts.get("modifiedAtMs") or 0,
        mode=facts.get("mode") or 0,
    )
