"""Pending calls, and which of them are sent again after a lost connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from ._lease import Lease

#: Calls that may be sent again when the connection is lost before the response: a repetition is
#: harmless. `process/write` is included because every write of this client has a write id.
REPLAYABLE = frozenset(
    """
    session/list environment/info environment/status server/status process/read process/write
    process/closeStdin process/resize process/terminate process/wait process/snapshot process/list
    process/observe fs/readFile fs/getMetadata fs/canonicalize fs/readDirectory fs/walk fs/glob
    fs/readLink fs/unwatch fs/cancelSearch http/cancel
    """.split()
)
#: Idempotent calls that are not sent again: in this client they belong to a lease, which ends with
#: its connection.
LEASED = frozenset({"fs/open", "fs/readBlock"})
#: A call fails after this many lost connections: it may be their cause.
MAX_LOSSES = 100
#: After a close with 1009 (message too big), calls over this size are not repeated.
LARGE_REQUEST = 1 << 20

#: Receives the result, or the error.
Reply = Callable[[Any, Exception | None], None]


class Call:
    """A request, and the function that gets its result or error."""

    __slots__ = ("lease", "losses", "method", "params", "replay", "reply", "size")

    def __init__(
        self, method: str, params: Mapping[str, object], reply: Reply, *, replay: bool
    ) -> None:
        self.method = method
        self.params = params
        self.reply = reply
        self.replay = replay
        self.losses = 0
        #: The lease that the call opens. The connection delivers to it once the call is sent.
        self.lease: Lease | None = None
        self.size = 0


class PendingCalls:
    """Bookkeeping without I/O: ids, order, repetition."""

    def __init__(self) -> None:
        self._next_id = 0
        self._in_flight: dict[int, Call] = {}
        #: Calls to send once connected: lost ones first, in the order in which they were made.
        self._waiting: list[Call] = []

    def send(self, call: Call) -> int:
        """Marks the call as in flight, and returns its id."""
        request_id = self._next_id
        self._next_id += 1
        self._in_flight[request_id] = call
        return request_id

    def wait(self, call: Call) -> None:
        self._waiting.append(call)

    def answered(self, request_id: object) -> Call | None:
        return self._in_flight.pop(request_id, None) if isinstance(request_id, int) else None

    def lose(self, *, too_big: bool = False) -> list[Call]:
        """The connection is lost. Returns the calls that must not be repeated."""
        failed: list[Call] = []
        again: list[Call] = []
        for call in self._in_flight.values():
            call.losses += 1
            culprit = too_big and call.size > LARGE_REQUEST
            may_repeat = call.replay and call.losses < MAX_LOSSES and not culprit
            (again if may_repeat else failed).append(call)
        self._in_flight = {}
        self._waiting[:0] = again
        return failed

    def take_waiting(self) -> list[Call]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def take_all(self) -> list[Call]:
        calls = [*self._in_flight.values(), *self._waiting]
        self._in_flight, self._waiting = {}, []
        return calls

    def withdraw(self, call: Call) -> bool:
        """Drops a call whose caller is gone, if the call waits to be sent. Returns whether it was
        dropped."""
        if call not in self._waiting:
            return False
        self._waiting.remove(call)
        return True


def resolve(future: asyncio.Future[Any]) -> Reply:
    """Returns a `Reply` that settles the future, unless the caller has cancelled it."""

    def reply(result: Any, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    return reply


def ignore(result: Any, error: Exception | None) -> None:
    pass
