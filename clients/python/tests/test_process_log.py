"""The log of a process: order, holes, gaps, acks and repeated reads."""

from base64 import b64encode
from typing import Any

import pytest

from exec_server._process_log import CAPACITY, PULL_BYTES, ProcessLog
from exec_server.errors import OutputGap, ProtocolViolation, ServerError
from exec_server.events import Exited, Gap, Output, OutputClosed


def output(log: ProcessLog, seq: int, data: bytes = b"x") -> None:
    chunk = b64encode(data).decode()
    log.handle_notification("process/output", {"seq": seq, "stream": "stdout", "chunk": chunk})


def exited(log: ProcessLog, seq: int) -> None:
    log.handle_notification("process/exited", {"seq": seq, "exitCode": 3, "sandboxDenied": False})


def closed(log: ProcessLog, seq: int) -> None:
    log.handle_notification("process/closed", {"seq": seq})


def read(seqs: list[int], next_seq: int, **facts: Any) -> dict[str, Any]:
    chunks = [
        {"seq": seq, "stream": "stdout", "chunk": b64encode(b"%d" % seq).decode()} for seq in seqs
    ]
    empty = {"exited": False, "exitCode": None, "closed": False, "failure": None}
    return {"chunks": chunks, "nextSeq": next_seq, **empty, **facts}


def over(seqs: list[int], next_seq: int, is_closed: bool, **facts: Any) -> dict[str, Any]:
    return read(seqs, next_seq, exited=True, exitCode=4, closed=is_closed, **facts)


def drain(log: ProcessLog) -> list[str]:
    found = []
    while (event := log.take()) is not None:
        match event:
            case Output(seq, _, data):
                found.append(f"{seq}:{data[:5].decode()}")
            case Exited(seq, exit):
                found.append(f"{seq}:exit {exit.code}")
            case OutputClosed(seq):
                found.append(f"{seq}:closed")
            case Gap(_, dropped):
                found.append(f"gap {dropped}")
    return found


def test_events_are_taken_in_order_and_once() -> None:
    log = ProcessLog("p")
    output(log, 2, b"b")
    assert drain(log) == []
    output(log, 1, b"a")
    output(log, 1, b"a")
    output(log, 2, b"b")
    exited(log, 3)
    closed(log, 4)
    output(log, 5, b"z")
    assert drain(log) == ["1:a", "2:b", "3:exit 3", "4:closed"]
    assert log.is_drained


def test_a_hole_is_read_from_the_server() -> None:
    log = ProcessLog("p")
    output(log, 1)
    assert log.poll_pull() is None
    output(log, 3)
    assert log.is_behind
    assert log.poll_pull() == (0, PULL_BYTES), "after what was taken: a read acknowledges it"
    assert log.poll_pull() is None, "one at a time"
    log.handle_read(0, read([1, 2, 3], 4))
    assert drain(log) == ["1:x", "2:2", "3:3"]


def test_only_what_was_taken_is_acknowledged() -> None:
    log = ProcessLog("p")
    output(log, 1, bytes(100 << 10))
    assert log.poll_ack() is None and not log.wants_timer
    log.take()
    assert log.poll_ack() == 1, "64 KiB are enough"
    output(log, 2)
    log.take()
    assert log.poll_ack() is None and log.wants_timer
    log.handle_timeout()
    assert log.poll_ack() == 2
    assert log.poll_ack() is None and not log.wants_timer


def test_a_full_log_refuses_and_asks_again_when_it_has_room() -> None:
    log = ProcessLog("p")
    chunk = bytes(256 << 10)
    for seq in range(1, 40):
        output(log, seq, chunk)
    fits = log.next_seq - 1
    assert fits * len(chunk) <= CAPACITY
    assert log.is_behind and log.poll_pull() is None, "no room yet"
    for _ in range(fits - 1):
        log.take()
    assert log.poll_pull() == (fits - 1, PULL_BYTES)
    log.handle_read(fits - 1, read([fits, fits + 1], fits + 2))
    assert drain(log)[-1] == f"{fits + 1}:{fits + 1}"


def test_exit_and_close_take_the_numbers_that_are_missing() -> None:
    for chunks, next_seq, is_closed, exit_at in [
        ([1, 2], 4, False, 3),
        ([1, 2], 5, True, 3),
        ([1, 3], 4, False, 2),
        ([1, 3], 5, True, 2),
        ([], 3, True, 1),
    ]:
        log = ProcessLog("p")
        log.handle_read(0, over(chunks, next_seq, is_closed))
        assert f"{exit_at}:exit 4" in drain(log)
        assert (log.next_seq, log.is_over) == (next_seq, is_closed)


def test_an_exit_beyond_a_truncated_response_waits_for_the_next() -> None:
    log = ProcessLog("p")
    log.handle_read(0, over([1, 2], 3, True))
    assert log.exit is None
    log.handle_read(2, over([3], 6, True))
    assert drain(log) == ["1:1", "2:2", "3:3", "4:exit 4", "5:closed"]


def test_a_gap_is_fatal_unless_gaps_are_declared() -> None:
    strict = ProcessLog("p")
    strict.handle_read(0, read([5], 6, droppedBytes=9))
    assert isinstance(strict.failure, OutputGap) and strict.failure.dropped_bytes == 9
    assert "it is terminated" in str(strict.failure)
    unsaid = ProcessLog("p")
    unsaid.handle_read(0, read([5], 6))
    assert isinstance(unsaid.failure, OutputGap), "even if its size is unknown"
    late = ProcessLog("p", gaps_declared=True)
    late.handle_read(0, read([5], 6, droppedBytes=9))
    assert drain(late) == ["gap 9", "5:5"]
    behind = ProcessLog("p", gaps_declared=True)
    behind.handle_read(0, read([1, 2], 3))
    behind.handle_read(1, read([5], 6, droppedBytes=9))
    assert drain(behind) == ["1:1", "2:2", "gap 8", "5:5"], "the log has one byte of the gap"


def test_an_exit_within_a_gap_is_not_lost() -> None:
    for result, exit_at in [
        (over([7, 8], 10, True, droppedBytes=9), 6),
        (over([7, 8], 11, True, droppedBytes=9), 9),
        (over([7, 9], 11, True, droppedBytes=9), 8),
        (over([], 11, True, droppedBytes=9), 9),
    ]:
        log = ProcessLog("p", gaps_declared=True)
        log.handle_read(0, result)
        told = drain(log)
        assert f"{exit_at}:exit 4" in told and log.is_drained, told
    log = ProcessLog("p", gaps_declared=True)
    closed(log, 9)
    assert not log.is_over and log.is_behind, "the exit has to be read first"


def test_a_resume_acknowledges_again_and_fails_the_log_of_an_unknown_process() -> None:
    log = ProcessLog("p")
    output(log, 1, bytes(100 << 10))
    log.take()
    assert log.poll_ack() == 1
    log.handle_connection_lost()
    log.handle_resumed({"p": 1})
    assert log.poll_ack() == 1 and not log.is_behind
    log.handle_resumed({})
    assert isinstance(log.failure, ServerError) and log.failure.kind == "unknownProcess"


def test_a_read_that_brings_nothing_is_not_repeated_at_once() -> None:
    log = ProcessLog("p")
    output(log, 2)
    assert log.poll_pull() is not None
    log.handle_read(0, read([], 1))
    assert log.poll_pull() is None and log.wants_timer
    log.handle_timeout()
    assert log.poll_pull() is not None


def test_discarded_events_are_acknowledged() -> None:
    log = ProcessLog("p")
    output(log, 1)
    log.discard()
    output(log, 2)
    assert log.poll_ack() == 2
    exited(log, 3)
    closed(log, 4)
    assert log.is_drained and log.poll_ack() == 4


@pytest.mark.parametrize("seq", [0, -1, 1 << 63, "1", None])
def test_impossible_sequence_numbers_are_refused(seq: Any) -> None:
    log = ProcessLog("p")
    log.handle_notification("process/output", {"seq": seq, "stream": "stdout", "chunk": ""})
    assert isinstance(log.failure, ProtocolViolation)
    other = ProcessLog("p", gaps_declared=True)
    other.handle_read(0, read([3, 2], 4))
    assert isinstance(other.failure, ProtocolViolation)
