"""The client's copy of one process's log: order, holes, gaps, acks. No I/O and no clock.

Events arrive by number, from notifications and from `process/read`. Each is handed out once and in
order by `take`. Only what was taken is acknowledged, so the server keeps the rest: a client that
dies, or hands the process to another client, loses nothing. Events that a full log refuses are read
from the server once there is room.
"""

from __future__ import annotations

from base64 import b64decode
from collections import deque
from itertools import pairwise, takewhile
from typing import Any

from .errors import ExecServerError, OutputGap, ProtocolViolation, ServerError
from .events import Event, Exit, Exited, Gap, Output, OutputClosed, read_exit

#: The maximum total size of the events in a log that were not taken yet.
CAPACITY = 4 << 20
#: A log that refused events asks for them again once it holds no more than this.
PULL_BELOW = 512 << 10
#: The maximum size of one read.
PULL_BYTES = 2 << 20
#: Output is acknowledged once this much has been taken, once the log is drained, or `ACK_DELAY`
#: seconds after it was taken.
ACK_BYTES = 64 << 10
ACK_DELAY = 0.1
EVENT_COST = 64
#: Larger numbers are refused: no process has that many events.
MAX_SEQ = 1 << 62


class ProcessLog:
    def __init__(
        self,
        process_id: str,
        *,
        after: int = 0,
        gaps_declared: bool = False,
        attached: bool = False,
        starting: bool = False,
    ) -> None:
        self.process_id = process_id
        #: Whether a gap is an event. Otherwise it fails the log.
        self.gaps_declared = gaps_declared
        #: Whether the response to `process/start` is still to come.
        self.starting = starting
        #: The number of the last event that was handed out.
        self.taken = after
        self.exit: Exit | None = None
        self.failure: ExecServerError | None = None
        #: Whether the log has no reader. Then events count as taken when they arrive.
        self.discarding = False
        self._events: deque[Event] = deque()
        self._cost = 0
        self._next = after + 1
        self._exit_seq = 0
        self._announced = after
        #: Whether the server may have events that it sends only in response to `process/read`.
        self._unsure = attached
        self._pulling = False
        #: Whether the last read brought nothing new. Then the next read waits for the timer, a
        #: notification or a resume.
        self._stalled = False
        self._closed = False
        self._unacked_bytes = 0
        self._acked = after
        self._ack_due = False

    # State

    @property
    def next_seq(self) -> int:
        return self._next

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be added."""
        return self._closed or self.failure is not None

    @property
    def is_drained(self) -> bool:
        """Whether nothing more will be handed out."""
        return self.is_over and not self._events

    @property
    def is_behind(self) -> bool:
        """Whether the server has, or may have, events that are not here."""
        return (self._unsure or self._announced >= self._next) and not self.is_over

    @property
    def taken_exit(self) -> Exit | None:
        """The exit, if it was handed out."""
        return self.exit if self._exit_seq <= self.taken else None

    def restore_exit(self, exit: Exit, *, closed: bool) -> None:
        """Sets the exit, which was handed out before this log began."""
        self.exit, self._exit_seq, self._closed = exit, self.taken, closed

    def take(self) -> Event | None:
        """Returns the next event, or `None` if it has not arrived."""
        if not self._events:
            return None
        event = self._events.popleft()
        cost = _cost(event)
        self._cost -= cost
        self.taken = self._next - 1 if not self._events else self._events[0].seq - 1
        self._unacked_bytes += cost
        if self._unacked_bytes >= ACK_BYTES or self.is_drained:
            self._ack_due = True
        return event

    # Input

    def handle_notification(self, method: str, params: dict[str, Any]) -> None:
        """`process/output`, `process/exited` or `process/closed`."""
        try:
            seq = params["seq"]
            if not 0 < seq < MAX_SEQ:
                raise ValueError(f"sequence number {seq} is out of range")
            event: Event
            if method == "process/output":
                if seq != self._next:
                    self._announced = max(self._announced, seq)
                    return
                event = Output(seq, params["stream"], b64decode(params["chunk"]))
            elif method == "process/exited":
                event = Exited(seq, read_exit(params))
            else:
                event = OutputClosed(seq)
        except (KeyError, TypeError, ValueError) as error:
            text = f"invalid {method} of process {self.process_id!r}: {error!r}"
            self.fail(ProtocolViolation(text))
            return
        self._stalled = False
        self._announced = max(self._announced, seq)
        # An exit that is unknown when the process closes lies in a gap. A read will report it.
        if not (isinstance(event, OutputClosed) and self.exit is None):
            self._offer(event)

    def handle_read(self, after: int, result: Any) -> None:
        """The result of a `process/read` whose `afterSeq` was `after`."""
        self._pulling = False
        before = self._next
        try:
            self._announced = max(self._announced, result["nextSeq"] - 1)
            self._unsure = bool(result["chunks"])
            self._apply(after, result)
        except ExecServerError as error:
            self.fail(error)
        except (KeyError, TypeError, ValueError) as error:
            text = f"invalid response to process/read of process {self.process_id!r}: {error!r}"
            self.fail(ProtocolViolation(text))
        self._stalled = self._next == before

    def handle_read_failed(self, error: ExecServerError) -> None:
        self._pulling = False
        self.fail(error)

    def handle_connection_lost(self) -> None:
        self._pulling = False

    def handle_resumed(self, positions: dict[str, Any] | None) -> None:
        """The session is attached again. `positions` has an entry for each process that the server
        still has."""
        if self.starting:
            return
        if positions is not None and self.process_id not in positions:
            text = f"process {self.process_id!r} is no longer known in this session"
            self.fail(ServerError(-32600, text, {"kind": "unknownProcess"}))
            return
        # A response without positions: the server resends only unacknowledged events, so a read
        # must fetch the rest.
        self._unsure = self._unsure or positions is None
        self._stalled = False
        self._acked = min(self._acked, self.taken - 1)
        self._ack_due = self.taken > 0

    def handle_timeout(self) -> None:
        """`ACK_DELAY` has passed since `wants_timer` became true."""
        self._stalled = False
        if self.taken > self._acked:
            self._ack_due = True

    def fail(self, error: ExecServerError) -> None:
        """Ends the log with this error, after the events that it holds."""
        if not self.is_over:
            self.failure = error

    def discard(self) -> None:
        """The log loses its reader: its events are dropped, and count as taken."""
        self.discarding = True
        self._events.clear()
        self._cost = 0
        self.taken = self._next - 1
        self._ack_due = True

    # Output

    @property
    def wants_timer(self) -> bool:
        return (self.taken > self._acked and not self._ack_due) or (
            self._stalled and self.is_behind and not self._pulling
        )

    def poll_ack(self) -> int | None:
        """The number to acknowledge now, if any."""
        if not self._ack_due:
            return None
        self._ack_due = False
        if self.taken <= self._acked:
            return None
        self._acked = self.taken
        self._unacked_bytes = 0
        return self.taken

    def poll_pull(self) -> tuple[int, int] | None:
        """`afterSeq` and `maxBytes` of a read that is needed now, if any.

        A read acknowledges its `afterSeq`, so it begins after the last event taken, and repeats
        events that are here already. If gaps are declared, it begins after the last event here, so
        that each gap is reported once.
        """
        if not self.is_behind or self._pulling or self._stalled or self._cost > PULL_BELOW:
            return None
        self._pulling = True
        return (self._next - 1 if self.gaps_declared else self.taken), PULL_BYTES

    def _offer(self, event: Event) -> bool:
        """Adds an event. Returns false if the log is full. Ignores events that are here already, or
        come too early."""
        if self.is_over or event.seq != self._next:
            return True
        cost = _cost(event)
        if isinstance(event, Output):
            # An empty log takes anything, so no chunk is too large for it.
            if self._cost and self._cost + cost > CAPACITY:
                return False
        elif isinstance(event, Exited):
            if self.exit is not None:  # A read reported it already, under another number.
                self._next += 1
                return True
            self.exit, self._exit_seq = event.exit, event.seq
        elif isinstance(event, OutputClosed):
            self._closed = True
        self._push(event, event.seq + 1)
        return True

    def _push(self, event: Event, next_seq: int) -> None:
        self._next = next_seq
        if self.discarding:
            self.taken = next_seq - 1
            self._ack_due = True
            return
        self._events.append(event)
        self._cost += _cost(event)

    def _skip_to(self, seq: int, dropped_bytes: int) -> None:
        if seq <= self._next:
            return
        if not (self.gaps_declared or self.discarding):
            raise OutputGap(self.process_id, dropped_bytes, fatal=True)
        self._push(Gap(self._next, dropped_bytes), seq)

    def _output_bytes_after(self, seq: int) -> int:
        later = takewhile(lambda event: event.seq > seq, reversed(self._events))
        return sum(
            len(event.data) if isinstance(event, Output) else event.dropped_bytes
            for event in later
            if isinstance(event, (Output, Gap))
        )

    def _apply(self, after: int, result: dict[str, Any]) -> None:
        """The chunks have numbers; exit and close take the numbers that are missing."""
        chunks, next_seq = result["chunks"], result["nextSeq"]
        _check_numbers([chunk["seq"] for chunk in chunks], next_seq)
        exit_code = result.get("exitCode")
        is_news = self.exit is None and bool(result["exited"]) and exit_code is not None
        news = read_exit(result) if is_news else None
        expected = after + 1
        if dropped := result.get("droppedBytes") or 0:
            expected = max(expected, _after_gap(chunks, next_seq, is_news, result["closed"]))
            # The log may already have some of the bytes that the server counts from `after`.
            self._skip_to(expected, max(dropped - self._output_bytes_after(after), 0))
        for chunk in chunks:
            seq = chunk["seq"]
            while expected < seq:
                if expected == self._exit_seq:
                    expected += 1
                elif news is not None:
                    self._offer(Exited(expected, news))
                    news, expected = None, expected + 1
                else:  # An older server does not report the size of a gap.
                    self._skip_to(seq, 0)
                    expected = seq
            if seq >= self._next and not self._offer(
                Output(seq, chunk["stream"], b64decode(chunk["chunk"]))
            ):
                return  # The rest is read once there is room.
            expected = seq + 1
        while expected < next_seq:
            if expected == self._exit_seq:
                expected += 1
            elif news is not None:
                self._offer(Exited(expected, news))
                news, expected = None, expected + 1
            elif result["closed"]:
                self._offer(OutputClosed(expected))
                break
            else:
                self._skip_to(next_seq, 0)
                break
        if failure := result.get("failure"):
            self.fail(ServerError(-32603, str(failure), {"kind": "processLost"}))


def _cost(event: Event) -> int:
    return len(event.data) + EVENT_COST if isinstance(event, Output) else EVENT_COST


def _check_numbers(seqs: list[int], next_seq: int) -> None:
    rising = all(a < b for a, b in pairwise(seqs))
    if not rising or (seqs and (seqs[0] < 1 or seqs[-1] >= MAX_SEQ)) or next_seq >= MAX_SEQ:
        raise ValueError(
            "sequence numbers are out of order or out of range: "
            f"chunks {seqs!r:.100}, nextSeq {next_seq}"
        )


def _after_gap(chunks: list[Any], next_seq: int, exit_is_news: bool, closed: bool) -> int:
    """The first number after a declared gap.

    If the exit was dropped with the output, it takes the last number of the gap: no other is left.
    """
    if not chunks:
        return next_seq - exit_is_news - closed
    first: int = chunks[0]["seq"]
    has_place = next_seq - first - closed > len(chunks)
    return first - 1 if exit_is_news and not has_place else first
