"""The process logs of a session: routes events to them, sends their reads and acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ._calls import Call, resolve
from ._process_log import ACK_DELAY, ProcessLog
from .errors import ExecServerError, Interrupted, ServerError

if TYPE_CHECKING:
    from ._connection import Connection
    from ._generated import AckParams, ReadParams, StartParams, StartResponse

EVENTS = frozenset({"process/output", "process/exited", "process/closed"})


class Processes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tracked: dict[str, _Tracked] = {}
        self._ack_timer: asyncio.TimerHandle | None = None
        #: Whether the server takes acknowledgements.
        self.acks = False

    def track(self, log: ProcessLog, changed: Callable[[], None]) -> None:
        """Passes the events of a process to its log. `changed` is called when there may be
        something new."""
        if self._connection.failure is not None:
            raise self._connection.failure
        known = self._tracked.get(log.process_id)
        if known is not None and not known.log.discarding:
            raise ServerError(
                -32600,
                f"process {log.process_id!r} already has a handle in this session",
                {"kind": "duplicateProcess"},
            )
        self._tracked[log.process_id] = _Tracked(log, changed)
        self.settle(log)

    async def start(self, log: ProcessLog, params: StartParams) -> StartResponse:
        """Sends `process/start`. If the response is lost or the call is cancelled, the process is
        ended."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(result: Any, error: Exception | None) -> None:
            log.starting = False
            if isinstance(error, Interrupted) or (future.cancelled() and error is None):
                self.abandon(log)
            elif error is not None:
                self._tracked.pop(log.process_id, None)
            resolve(future)(result, error)

        call = Call("process/start", params, reply, replay=False)
        self._connection.send(call)
        try:
            started: StartResponse = await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.abandon(log)  # The response came just before the cancellation.
            elif self._connection.withdraw(call):
                self._tracked.pop(log.process_id, None)
            raise
        return started

    def abandon(self, log: ProcessLog) -> None:
        """Terminates a process and drops its output: no handle will read it."""
        if not log.is_over:
            log.discard()
            self._connection.send_and_forget("process/terminate", {"processId": log.process_id})
        self.settle(log)

    def discard(self, log: ProcessLog) -> None:
        """Drops the output of a process that runs on without a reader."""
        log.discard()
        self.settle(log)

    def settle(self, log: ProcessLog) -> None:
        """Sends a due acknowledgement, and a read if events are missing. Forgets a drained log."""
        tracked = self._tracked.get(log.process_id)
        if tracked is None or tracked.log is not log or not self._connection.is_connected:
            return
        seq = log.poll_ack()
        if log.is_drained:
            del self._tracked[log.process_id]
            if log.taken > 0:
                # If this last acknowledgement were lost, none would follow, and the server would
                # keep the process as long as the session. A read, which is repeated, replaces it.
                self._connection.send_and_forget("process/read", _read_params(log, log.taken, 0))
            return
        if seq is not None and self.acks:
            ack: AckParams = {"processId": log.process_id, "seq": seq}
            self._connection.notify("process/ack", ack)
        pull = log.poll_pull()
        if pull is not None:
            self._read(tracked, *pull)
        elif log.wants_timer and self._ack_timer is None:
            loop = asyncio.get_running_loop()
            self._ack_timer = loop.call_later(ACK_DELAY, self._handle_ack_timer)

    # The connection

    def handle_notification(self, method: str, params: dict[str, Any]) -> None:
        tracked = self._tracked.get(params["processId"])
        # Only events of other sessions, which this client observes, have a session id.
        if tracked is not None and "sessionId" not in params:
            tracked.log.handle_notification(method, params)
            self._changed(tracked)

    def positions(self) -> dict[str, int]:
        """For each process, the last event that need not be sent again."""
        return {name: tracked.log.taken for name, tracked in self._tracked.items()}

    def handle_connection_lost(self) -> None:
        for tracked in self._tracked.values():
            tracked.log.handle_connection_lost()

    def handle_resumed(self, positions: dict[str, Any] | None) -> None:
        for tracked in self._tracked.values():
            tracked.log.handle_resumed(positions)

    def handle_admitted(self) -> None:
        for tracked in list(self._tracked.values()):
            self._changed(tracked)

    def fail_all(self, error: ExecServerError) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        all_tracked, self._tracked = self._tracked, {}
        for tracked in all_tracked.values():
            tracked.log.fail(error)
            tracked.changed()

    def _read(self, tracked: _Tracked, after: int, max_bytes: int) -> None:
        def reply(result: Any, error: Exception | None) -> None:
            if isinstance(error, Interrupted):
                return
            if isinstance(error, ExecServerError):
                tracked.log.handle_read_failed(error)
            else:
                tracked.log.handle_read(after, result)
            self._changed(tracked)

        params = _read_params(tracked.log, after, max_bytes)
        self._connection.send(Call("process/read", params, reply, replay=False))

    def _changed(self, tracked: _Tracked) -> None:
        if tracked.log.failure is not None and not tracked.log.discarding:
            self._drain(tracked.log)
        self.settle(tracked.log)
        tracked.changed()

    def _drain(self, log: ProcessLog) -> None:
        """Terminates a process whose log has failed, and acknowledges its remaining events, so that
        the server can forget it."""
        rest = ProcessLog(log.process_id, after=log.next_seq - 1, gaps_declared=True, attached=True)
        rest.discarding = True
        self._tracked[log.process_id] = _Tracked(rest, lambda: None)
        self._connection.send_and_forget("process/terminate", {"processId": log.process_id})
        self.settle(rest)

    def _handle_ack_timer(self) -> None:
        self._ack_timer = None
        for tracked in list(self._tracked.values()):
            tracked.log.handle_timeout()
            self.settle(tracked.log)


class _Tracked(NamedTuple):
    log: ProcessLog
    changed: Callable[[], None]


def _read_params(log: ProcessLog, after: int, max_bytes: int) -> ReadParams:
    return {"processId": log.process_id, "afterSeq": after, "maxBytes": max_bytes}
