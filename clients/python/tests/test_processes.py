"""Starts that are cancelled: none of them leaves a process behind."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import pytest

from exec_server._calls import Call
from exec_server._process_log import ProcessLog
from exec_server._processes import Processes

if TYPE_CHECKING:
    from exec_server._connection import Connection
    from exec_server._generated import StartParams

PARAMS = cast("StartParams", {"processId": "p"})


class FakeConnection:
    is_connected = True
    failure = None

    def __init__(self) -> None:
        self.sent: list[Call] = []
        self.forgotten: list[str] = []
        self.waits = False

    def send(self, call: Call) -> None:
        self.sent.append(call)

    def send_and_forget(self, method: str, params: Mapping[str, object]) -> None:
        self.forgotten.append(method)

    def notify(self, method: str, params: Mapping[str, object]) -> None:
        pass

    def withdraw(self, call: Call) -> bool:
        return self.waits


async def cancelled_start(connection: FakeConnection, *, response: str) -> None:
    processes = Processes(cast("Connection", connection))
    log = ProcessLog("p", starting=True)
    processes.track(log, lambda: None)
    task = asyncio.create_task(processes.start(log, PARAMS))
    await asyncio.sleep(0)
    (call,) = connection.sent
    if response == "just before":
        call.reply({"processId": "p"}, None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if response == "later":
        assert connection.forgotten == []
        call.reply({"processId": "p"}, None)


@pytest.mark.parametrize("response", ["just before", "later"])
async def test_a_process_whose_start_was_cancelled_is_ended(response: str) -> None:
    connection = FakeConnection()
    await cancelled_start(connection, response=response)
    assert connection.forgotten == ["process/terminate"]


async def test_a_start_that_was_not_sent_is_withdrawn() -> None:
    connection = FakeConnection()
    connection.waits = True
    await cancelled_start(connection, response="never")
    assert connection.forgotten == []
