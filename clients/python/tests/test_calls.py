"""Pending calls, and which of them are repeated."""

import re
from pathlib import Path
from typing import Any

import pytest

from exec_server._calls import LEASED, REPLAYABLE, Call, PendingCalls


def call(method: str) -> Call:
    def reply(result: Any, error: Exception | None) -> None:
        pass

    return Call(method, {}, reply, replay=method in REPLAYABLE)


def test_responses_find_their_calls_once() -> None:
    calls = PendingCalls()
    request_id = calls.send(call("process/list"))
    assert calls.answered("0") is None and calls.answered(7) is None
    assert calls.answered(request_id) is not None
    assert calls.answered(request_id) is None


def test_harmless_calls_are_repeated_in_order_and_others_fail() -> None:
    calls = PendingCalls()
    for method in ("process/write", "process/start", "process/closeStdin"):
        calls.send(call(method))
    calls.wait(call("process/list"))
    assert [failed.method for failed in calls.lose()] == ["process/start"]
    again = [waiting.method for waiting in calls.take_waiting()]
    assert again == ["process/write", "process/closeStdin", "process/list"]


def test_a_call_that_was_too_large_is_not_repeated() -> None:
    calls = PendingCalls()
    large, small = call("process/write"), call("process/write")
    large.size, small.size = 20 << 20, 100
    calls.send(large)
    calls.send(small)
    assert calls.lose(too_big=True) == [large]
    assert calls.take_waiting() == [small]


def test_the_replayable_calls_are_those_of_the_protocol() -> None:
    table = Path(__file__).parents[3] / "crates/protocol/src/methods.rs"
    if not table.exists():
        pytest.skip("SKIPPED: the protocol's method table is not beside this package")
    rows = re.findall(r'= "([\w/]+)", \w+, (\w+), \w+:', table.read_text())
    replayable = {name for name, replay in rows if replay in ("Idempotent", "WithWriteId")}
    assert len(rows) > 40
    v0 = {name for name in replayable if name.startswith("command/")}
    assert replayable - LEASED - v0 == REPLAYABLE
