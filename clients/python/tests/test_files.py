"""`machine.files`, `watch`, `search` and `glob`."""

import asyncio
import os
from pathlib import Path

import pytest

from exec_server import Change, Interrupted, Machine, NotFound, RecoveryPolicy, ServerError
from support import Proxy, Server

BIG = bytes(range(256)) * (80 << 10)  # 20 MiB: written in blocks


async def test_files_are_read_and_written(url: str, tmp_path: Path) -> None:
    async with Machine.connect(url) as m:
        path = tmp_path / "a b"
        await m.files.write(path, "é")
        assert await m.files.read(path) == "é".encode()
        assert await m.files.read_text(path) == "é"
        await m.files.write(os.fspath(path), b"\xff", atomic=True, mode=0o640)
        assert path.read_bytes() == b"\xff" and path.stat().st_mode & 0o777 == 0o640
        with pytest.raises(ServerError) as refused:
            await m.files.write(path, "", create_new=True)
        assert refused.value.kind == "conflict"
        with pytest.raises(NotFound, match="absent"):
            await m.files.read(tmp_path / "absent")
        relative = os.path.relpath(path, (await m.info())["cwd"].removeprefix("file://"))
        assert await m.files.read(relative) == b"\xff"


async def test_files_of_any_size_are_transferred(url: str, tmp_path: Path) -> None:
    async with Machine.connect(url) as m:
        await m.files.write(tmp_path / "big", BIG, mode=0o600)
        assert (tmp_path / "big").read_bytes() == BIG
        assert await m.files.read(tmp_path / "big") == BIG
        await m.files.download(tmp_path / "big", tmp_path / "here")
        await m.files.upload(tmp_path / "here", tmp_path / "there")
        assert (tmp_path / "there").read_bytes() == BIG
        with pytest.raises(NotFound):
            await m.files.download(tmp_path / "absent", tmp_path / "nothing")
        assert sorted(os.listdir(tmp_path)) == ["big", "here", "there"]


async def test_transfers_go_on_after_a_cut(server: Server, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(BIG)
    policy = RecoveryPolicy(first_pause=0.01)
    async with Proxy(server.port) as network, Machine.connect(network.url, recovery=policy) as m:
        network.cut_after(5 << 20)
        await m.files.upload(tmp_path / "local", tmp_path / "remote")
        assert (tmp_path / "remote").read_bytes() == BIG
        network.cut_after(5 << 20)
        await m.files.download(tmp_path / "remote", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == BIG
        assert network.connections == 3


async def test_directories_are_made_listed_copied_and_removed(url: str, tmp_path: Path) -> None:
    async with Machine.connect(url) as m:
        await m.files.make_dir(tmp_path / "a/b")
        await m.files.make_dir(tmp_path / "a/b")
        with pytest.raises(ServerError):
            await m.files.make_dir(tmp_path / "a/b", parents=False)
        await m.files.write(tmp_path / "a/x", "12345")
        (tmp_path / "a/link").symlink_to("x")
        b, link, x = await m.files.list(tmp_path / "a")
        assert (b.name, b.is_directory) == ("b", True)
        assert (link.name, link.is_symlink) == ("link", True)
        assert (x.path, x.is_file, x.size) == (f"{tmp_path}/a/x", True, 5)
        status = (tmp_path / "a/x").stat()
        assert (x.mode, x.modified_ms) == (status.st_mode & 0o7777, status.st_mtime_ns // 10**6)
        assert (await m.files.stat(tmp_path / "a/link")).size == 5
        await m.files.copy(tmp_path / "a", tmp_path / "c", recursive=True)
        await m.files.rename(tmp_path / "c/x", tmp_path / "c/y")
        assert await m.files.exists(tmp_path / "c/y")
        assert not await m.files.exists(tmp_path / "c/x")
        with pytest.raises(ServerError):
            await m.files.rename(tmp_path / "a/x", tmp_path / "c/y", replace=False)
        with pytest.raises(ServerError):
            await m.files.remove(tmp_path / "c")
        await m.files.remove(tmp_path / "c", recursive=True)
        await m.files.remove(tmp_path / "c", force=True)
        assert not (tmp_path / "c").exists()


async def test_names_may_have_any_bytes(url: str, tmp_path: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/\xff%?#\n"
    async with Machine.connect(url) as m:
        await m.files.write(strange, "content")
        (found,) = await m.files.list(tmp_path)
        assert os.fsencode(found.path) == strange
        assert await m.files.read_text(found.path) == "content"


async def test_changes_are_watched(url: str, tmp_path: Path) -> None:
    async with Machine.connect(url) as m, m.watch(tmp_path) as watch:
        (tmp_path / "new").write_text("")
        changes = await anext(watch)
        assert Change(f"{tmp_path}/new", "created") in changes.changes and not changes.rescan
        (tmp_path / "new").rename(tmp_path / "newer")
        async for changes in watch:
            if Change(f"{tmp_path}/newer", "renamed", f"{tmp_path}/new") in changes.changes:
                break


async def test_a_watch_says_that_changes_may_be_missing(server: Server, tmp_path: Path) -> None:
    policy = RecoveryPolicy(first_pause=0.01)
    async with Proxy(server.port) as network, Machine.connect(network.url, recovery=policy) as m:
        async with m.watch(tmp_path, recursive=False) as watch:
            network.cut()
            assert (await anext(watch)).rescan
            (tmp_path / "new").write_text("")
            assert (await anext(watch)).changes[0].path == f"{tmp_path}/new"
        with pytest.raises(NotFound):
            await anext(m.watch(tmp_path / "absent"))


async def test_files_are_searched(url: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("one\ntwo two\nthree\n")
    (tmp_path / "y.txt").write_text("TWO\n")
    (tmp_path / ".hidden").write_text("two\n")
    async with Machine.connect(url) as m:
        search = m.search("t[w]o", tmp_path, before=1, after=1)
        (match,) = await search.all()
        assert (match.path, match.line_number) == (f"{tmp_path}/x.py", 2)
        assert (match.text, match.spans) == ("two two", [(0, 3), (4, 7)])
        assert (match.before, match.after) == (["one"], ["three"])
        assert search.summary is not None
        assert (search.summary.matches, search.summary.truncated) == (1, False)

        async def names(pattern: str, **options: bool | list[str]) -> list[str]:
            found = m.search(pattern, tmp_path, **options)  # type: ignore[arg-type]
            return sorted([os.path.basename(match.path) async for match in found])

        assert await names("two", ignore_case=True) == ["x.py", "y.txt"]
        assert await names("two", ignore_case=True, globs=["*.txt"]) == ["y.txt"]
        assert await names("two", hidden=True) == [".hidden", "x.py"]
        assert await names("t[w]o", literal=True) == []
        assert await names("thre", word=True) == []
        async with m.search("t", tmp_path, max_matches=1) as limited:
            await anext(limited)
        with pytest.raises(ServerError):
            await m.search("(", tmp_path).all()


async def test_a_search_ends_with_its_connection(server: Server, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("line\n" * 1_000_000)
    async with Proxy(server.port) as network, Machine.connect(network.url) as m:
        search = m.search("line", tmp_path)
        await anext(search)
        network.cut()
        with pytest.raises(Interrupted):
            await search.all()


async def test_paths_are_found(url: str, tmp_path: Path) -> None:
    for name in ["a.py", "b/c.py", "b/d.txt", ".e.py"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    async with Machine.connect(url) as m:
        assert sorted(await m.glob("**/*.py", tmp_path)) == [
            f"{tmp_path}/a.py",
            f"{tmp_path}/b/c.py",
        ]
        assert await m.glob(["**/*.py", "!b"], tmp_path, hidden=True) == [
            f"{tmp_path}/.e.py",
            f"{tmp_path}/a.py",
        ]


async def test_a_search_that_cannot_start_or_is_closed_ends(url: str, tmp_path: Path) -> None:
    async with Machine.connect(url) as m:
        with pytest.raises(TypeError):
            await m.search("line", 5).all()  # type: ignore[arg-type]
        (tmp_path / "lines").write_text("line\n" * 1_000_000)
        search = m.search("absent", tmp_path)
        waiting = asyncio.ensure_future(anext(search))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await search.all() == []


async def test_a_watch_is_opened_again_after_a_cut(server: Server, tmp_path: Path) -> None:
    async with Proxy(server.port) as network, Machine.connect(network.url) as m:
        await m.files.exists("absent")  # Fetches the base of paths, so the cut hits fs/watch.
        network.cut_after(1)
        async with m.watch(tmp_path) as watch:
            assert network.connections == 2
            (tmp_path / "new").touch()
            assert (await anext(watch)).changes[0].path == f"{tmp_path}/new"


async def test_a_watch_closed_during_recovery_stays_closed(server: Server, tmp_path: Path) -> None:
    async with Proxy(server.port) as network, Machine.connect(network.url) as m:
        async with m.watch(tmp_path) as watch:
            waiting = asyncio.ensure_future(anext(watch, None))
            await network.refuse()
        network.resume()
        assert await waiting is None
        assert [changes async for changes in watch] == []
