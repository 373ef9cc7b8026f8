"""Output that was taken from the log and not read yet."""

import pytest

from exec_server._streams import STREAM_LIMIT, StreamBuffer
from exec_server.errors import OutputGap


def test_lines_are_put_together_from_pieces() -> None:
    buffer = StreamBuffer("p")
    for piece in (b"on", b"e\ntwo\nth", b"r", b"ee\nrest"):
        buffer.add(piece)
    assert [buffer.take_line() for _ in range(4)] == [b"one\n", b"two\n", b"three\n", None]
    assert buffer.take_rest() == b"rest" and buffer.size == 0


def test_a_gap_ends_a_line_and_is_raised_once() -> None:
    buffer = StreamBuffer("p")
    buffer.add(b"cut o")
    buffer.add_gap(OutputGap("p", 7))
    buffer.add(b"whole\n")
    assert buffer.take_line() == b"cut o"
    with pytest.raises(OutputGap) as raised:
        buffer.take_line()
    assert raised.value.dropped_bytes == 7
    assert buffer.take_line() == b"whole\n"


def test_the_oldest_output_is_dropped_while_the_stream_is_not_read() -> None:
    buffer = StreamBuffer("p")
    for _ in range(3):
        buffer.add(bytes(STREAM_LIMIT // 2))
    assert buffer.size == STREAM_LIMIT
    with pytest.raises(OutputGap) as raised:
        buffer.take(1)
    assert raised.value.dropped_bytes == STREAM_LIMIT // 2
    buffer.is_read = True
    buffer.add(bytes(STREAM_LIMIT))
    assert len(buffer.take_rest()) == 2 * STREAM_LIMIT


def test_unread_output_includes_its_gaps() -> None:
    buffer = StreamBuffer("p")
    buffer.add(b"abc")
    buffer.add_gap(OutputGap("p", 7))
    buffer.add(b"def")
    assert buffer.take(1) == b"a"
    bc, gap, rest = buffer.unread()
    assert (bc, rest) == (b"bc", b"def")
    assert isinstance(gap, OutputGap) and gap.dropped_bytes == 7
    assert [buffer.take_item(), isinstance(buffer.take_item(), OutputGap)] == [b"bc", True]
    assert buffer.unread() == [b"def"]
    assert (buffer.take_item(), buffer.take_item(), buffer.size) == (b"def", None, 0)
