"""Fixtures of the end-to-end tests, and support for test functions that are coroutines."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import Fifo, Server, find_server

#: Only a test that hangs takes this long.
HANG = 60.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), HANG))
    return True


@pytest.fixture(scope="session")
def binary() -> str:
    found = find_server()
    if found is None:
        pytest.skip("SKIPPED: EXEC_SERVER_BINARY does not name an executable file")
    return found


@pytest.fixture(scope="session")
def server(binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share."""
    with Server(binary, tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def url(server: Server) -> str:
    return server.url


@pytest.fixture
def fifo(tmp_path: Path) -> Fifo:
    return Fifo(tmp_path / "fifo")
