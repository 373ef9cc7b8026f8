"""The event loop of `exec_server.sync`: one thread, started when it is first used."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

#: How long Ctrl-C waits for the interrupted call to clean up at the server.
CANCEL_TIMEOUT = 2.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run(awaitable: Awaitable[T]) -> T:
    """Runs an awaitable on the loop and returns its result. Ctrl-C cancels the awaitable."""
    if threading.current_thread() is _thread:
        if isinstance(awaitable, Coroutine):
            awaitable.close()
        raise RuntimeError(
            "a callback of exec_server.sync cannot call exec_server.sync: "
            "it runs on the thread of the event loop; make the call on another thread"
        )
    ended = threading.Event()

    async def to_the_end() -> T:
        try:
            return await awaitable
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(to_the_end(), _started_loop())
    try:
        return future.result()
    except BaseException:
        if future.cancel():
            ended.wait(CANCEL_TIMEOUT)
        raise


def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a plain function on the thread of the loop, to which all state of the API belongs."""

    async def called() -> T:
        return function(*args, **kwargs)

    return run(called())


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    while True:
        try:
            item = run(items.__anext__())
        except StopAsyncIteration:
            return
        yield item


def _started_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="exec_server", daemon=True)
            _thread.start()
        return _loop


def _forget() -> None:
    """A forked child does not inherit the thread of the loop, so it starts a new loop."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
