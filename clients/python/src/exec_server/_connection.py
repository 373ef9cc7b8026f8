"""One session and the connections under it: performs the actions of `Recovery`, and carries calls,
responses and notifications. Everything here runs on one event loop and without locks."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ._calls import REPLAYABLE, Call, PendingCalls, Reply, ignore, resolve
from ._lease import Lease
from ._link import MAX_MESSAGE, Connector, Link, without_secrets
from ._processes import EVENTS, Processes
from ._recovery import Admit, CatchUp, Dial, GiveUp, HangUp, Recovery, RecoveryPolicy
from .errors import (
    SESSION_ATTACHED,
    Closed,
    ConnectFailed,
    ExecServerError,
    Interrupted,
    MessageTooLarge,
    ProtocolViolation,
    ServerError,
    SessionLost,
    server_error,
)

if TYPE_CHECKING:
    from ._generated import InitializeParams

log = logging.getLogger("exec_server")

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_LEASE_IDS = {
    "fs/changed": "watchId",
    "fs/searchResults": "searchId",
    "http/request/bodyDelta": "requestId",
}


class Options(NamedTuple):
    client_name: str = "exec-server-python"
    #: How long the first attempt to connect may take, in seconds.
    connect_timeout: float = 10.0
    resume_session_id: str | None = None
    #: How long the session survives without a connection, in seconds; `None`: the server's choice.
    detached_ttl: float | None = None
    recovery: RecoveryPolicy = RecoveryPolicy()


class Connection:
    def __init__(self, connector: Connector, options: Options) -> None:
        self._loop = asyncio.get_running_loop()
        self._connector = connector
        self._options = options
        self.session_id = options.resume_session_id
        self._recovery = Recovery(
            options.recovery,
            options.connect_timeout,
            self._loop.time(),
            random.random,
        )
        self._calls = PendingCalls()
        self.processes = Processes(self)
        self._leases: dict[str, Lease] = {}
        self._link: tuple[int, Link] | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._final: ExecServerError | None = None
        self._last_failure: ExecServerError | None = None
        self._dialing = 0
        self._positions: dict[str, Any] | None = None
        self._unique = f"{random.getrandbits(64):016x}"
        self._ids = 0

    @property
    def url(self) -> str | None:
        return self._connector.url

    @property
    def state(self) -> str:
        """`connected`, `recovering`, `failed` or `closed`."""
        if self._final is not None:
            return "closed" if isinstance(self._final, Closed) else "failed"
        return "connected" if self.is_connected else "recovering"

    @property
    def is_connected(self) -> bool:
        """Whether calls go through now."""
        return self._link is not None and self._recovery.is_connected

    @property
    def failure(self) -> ExecServerError | None:
        """The error of every further call, once the session is closed or lost."""
        return self._final

    def unique_id(self) -> str:
        self._ids += 1
        return f"{self._unique}-{self._ids}"

    async def open(self) -> None:
        self._perform()
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self.end(Closed("the connection attempt was cancelled"))
            raise

    async def call(self, method: str, params: Mapping[str, object]) -> Any:
        """Makes a call and returns its result. Cancelling does not stop a call that was sent."""
        future: asyncio.Future[Any] = self._loop.create_future()
        call = Call(method, params, resolve(future), replay=method in REPLAYABLE)
        self.send(call)
        try:
            return await future
        finally:
            if future.cancelled():
                self.withdraw(call)

    def withdraw(self, call: Call) -> bool:
        return self._calls.withdraw(call)

    def send(self, call: Call) -> None:
        """Sends a call now, or once calls may go through."""
        if self._final is not None:
            call.reply(None, self._final)
        elif self.is_connected:
            self._transmit(call)
        else:
            self._calls.wait(call)

    def send_and_forget(self, method: str, params: Mapping[str, object]) -> None:
        """Sends a call that must arrive, but whose result is not needed."""
        self.send(Call(method, params, ignore, replay=True))

    async def open_lease(self, lease: Lease, method: str, params: Mapping[str, object]) -> Any:
        """Makes a call that opens a lease: a resource that ends with the connection."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def reply(result: Any, error: Exception | None) -> None:
            if error is not None:
                self._leases.pop(lease.id, None)
            if future.cancelled():
                self.close_lease(lease)
            resolve(future)(result, error)

        call = Call(method, params, reply, replay=False)
        call.lease = lease
        self.send(call)
        try:
            return await future
        except asyncio.CancelledError:
            self.withdraw(call)
            self.close_lease(lease)
            raise

    def close_lease(self, lease: Lease) -> None:
        """Releases a lease on the server, unless its connection has ended."""
        if self._leases.pop(lease.id, None) is not None and self._final is None:
            self.send_and_forget(*lease.release)

    def forget_lease(self, lease: Lease) -> None:
        """Forgets a lease that the server has ended."""
        self._leases.pop(lease.id, None)

    def notify(self, method: str, params: Mapping[str, object]) -> None:
        """Sends a notification on the current connection, if there is one."""
        if self._link is not None:
            self._link[1].send(_encode({"method": method, "params": params}).encode())

    # Recovery

    def _perform(self) -> None:
        while (action := self._recovery.poll_action()) is not None:
            match action:
                case Dial(generation):
                    self._dialing = generation
                    self._attempt = self._loop.create_task(self._dial(generation))
                case HangUp():
                    if self._attempt is not None or self._link is not None:
                        self._last_failure = self._timed_out()
                    self._drop_link()
                case CatchUp(generation):
                    self._catch_up(generation)
                case Admit():
                    self._admit()
                case GiveUp(reason):
                    self.end(self._final_error(reason))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._final is None and (at := self._recovery.poll_timeout()) is not None:
            self._timer = self._loop.call_at(at, self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer = None
        self._recovery.handle_timeout(self._loop.time())
        self._perform()

    async def _dial(self, generation: int) -> None:
        try:
            link = await self._connector.dial(_LinkReceiver(self, generation))
        except Exception as error:
            if self._dialing == generation:
                self._attempt = None
            failure = error
            # For example, the caller's token function failed.
            if not isinstance(failure, ConnectFailed):
                text = f"cannot connect to {self._peer()}: {type(error).__name__}: {error}"
                failure = ConnectFailed(text)
                failure.__cause__ = error
            self._lost(generation, failure, permanent=failure.permanent)
            return
        if self._dialing != generation or self._final is not None:
            link.close()  # The attempt was dropped in the meantime.
            return
        self._attempt = None
        self._link = (generation, link)
        params: InitializeParams = {"clientName": self._options.client_name, "acks": True}
        if self.session_id is not None:
            params["resumeSessionId"] = self.session_id
            params["positions"] = self.processes.positions()
        if self._options.detached_ttl is not None:
            params["detachedTtlMs"] = int(self._options.detached_ttl * 1000)
        self._transmit(Call("initialize", params, self._initialized(generation), replay=False))

    def _initialized(self, generation: int) -> Reply:
        def reply(result: Any, error: Exception | None) -> None:
            if isinstance(error, Interrupted):
                return
            if error is None and not isinstance(result, dict):
                error = ProtocolViolation(
                    f"the response of {self._peer()} to initialize is not an object"
                )
            if error is None and self.session_id not in (None, result.get("sessionId")):
                error = ProtocolViolation(
                    f"{self._peer()} resumed session {result.get('sessionId')!r:.100} "
                    f"instead of {self.session_id!r}"
                )
            if isinstance(error, ExecServerError):
                # The server may not have noticed yet that the old connection is dead.
                retry = isinstance(error, ServerError) and error.code == SESSION_ATTACHED
                self._lost(generation, error, permanent=not retry)
                return
            self.session_id = result.get("sessionId")
            self.processes.acks = result.get("acks") is True
            positions = result.get("positions")
            self._positions = positions if isinstance(positions, dict) else None
            self.notify("initialized", {})
            self._recovery.handle_initialized(generation, self._loop.time())
            self._perform()

        return reply

    def _catch_up(self, generation: int) -> None:
        """The server sends unacknowledged events again; reads of the logs fetch the rest."""
        self.processes.handle_resumed(self._positions)
        self._recovery.handle_caught_up(generation, self._loop.time())

    def _admit(self) -> None:
        self._last_failure = None
        if not self._opened.done():
            self._opened.set_result(None)
        for call in self._calls.take_waiting():
            self.send(call)
        self.processes.handle_admitted()

    def _lost(self, generation: int, error: ExecServerError, *, permanent: bool = False) -> None:
        if self._final is not None:
            return
        self._last_failure = error
        if self._link is not None and self._link[0] == generation:
            self._drop_link()
        permanent = permanent or not self._connector.can_redial
        self._recovery.handle_lost(generation, self._loop.time(), permanent=permanent)
        self._perform()

    def _drop_link(self, *, too_big: bool = False) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._link is None:
            return
        self._link[1].close()
        self._link = None
        self.processes.handle_connection_lost()
        for call in self._calls.lose(too_big=too_big):
            if too_big and call.replay:
                text = (
                    f"{call.method} of {call.size} bytes: the server closed the connection "
                    "because a message exceeded its limit; send less at once"
                )
                call.reply(None, MessageTooLarge(text))
            else:
                call.reply(None, Interrupted(call.method))
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.fail(Interrupted(lease.method, during_response=True))

    def _timed_out(self) -> ConnectFailed:
        text = f"{self._peer()} did not answer"
        if not self._opened.done():
            text += f" within {self._options.connect_timeout:g} s"
        elif self._recovery.recovering is not None:
            text += f" within {self._options.recovery.attempt:g} s"
        # Otherwise the deadline of the recovery cut the attempt short.
        return ConnectFailed(text)

    def _peer(self) -> str:
        return without_secrets(self.url) if self.url else "the server"

    def _final_error(self, reason: str) -> ExecServerError:
        last = self._last_failure
        ended = isinstance(last, ServerError) and last.kind == "unknownSession"
        if reason == "never connected" and not ended:
            return last or self._timed_out()
        if reason == "deadline":
            seconds = f"{self._options.recovery.deadline:g} s"
            text = f"no connection to {self._peer()} for {seconds}; the last attempt: {last}"
            return SessionLost(text)
        if isinstance(last, ProtocolViolation):
            return last
        error = SessionLost(f"session {self.session_id} is lost: {last}")
        error.__cause__ = last
        return error

    async def close(self) -> None:
        """Ends the session and the connection."""
        try:
            if self._final is None:
                await self.call("session/close", {})
        except (ExecServerError, OSError):
            pass  # The server ends a session that stays detached for too long.
        finally:
            self.end(Closed("the machine was closed"))
            await self._connector.wait_closed()

    def end(self, error: ExecServerError) -> None:
        """Ends the connection. Calls that were sent and cannot be repeated fail with `Interrupted`,
        all other calls and the processes with this error."""
        if self._final is not None:
            return
        self._final = error
        self._drop_link()
        if self._timer is not None:
            self._timer.cancel()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # Marks it as retrieved: there may be no waiter.
        for call in self._calls.take_all():
            call.reply(None, error)
        self.processes.fail_all(error)

    # Messages

    def _transmit(self, call: Call) -> None:
        request_id = self._calls.send(call)
        text = _encode({"id": request_id, "method": call.method, "params": call.params}).encode(
            "utf-8", "surrogatepass"
        )
        call.size = len(text)
        if call.lease is not None:
            self._leases[call.lease.id] = call.lease
        if len(text) > MAX_MESSAGE:
            self._calls.answered(request_id)
            message = (
                f"{call.method} of {len(text)} bytes exceeds the limit of {MAX_MESSAGE} bytes; "
                "send less at once"
            )
            call.reply(None, MessageTooLarge(message))
        elif self._link is not None:
            self._link[1].send(text)

    def handle_message(self, message: bytes | bytearray) -> None:
        try:
            decoded = json.loads(message)
            method, params = decoded.get("method"), decoded.get("params")
            if method is None:
                self._handle_response(decoded)
            elif "id" in decoded:
                self._refuse(decoded["id"], method)
            elif method in EVENTS:
                self.processes.handle_notification(method, params)
            elif method in _LEASE_IDS:
                lease = self._leases.get(params[_LEASE_IDS[method]])
                if lease is not None:
                    lease.deliver(params)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if self._link is not None:
                violation = ProtocolViolation(f"{self._peer()} sent an invalid message: {error!r}")
                self._lost(self._link[0], violation, permanent=True)

    def handle_end(self, generation: int, error: ExecServerError, *, too_big: bool) -> None:
        if self._link is not None and self._link[0] == generation:
            self._drop_link(too_big=too_big)
        self._lost(generation, self._last_failure or error)

    def _handle_response(self, response: dict[str, Any]) -> None:
        call = self._calls.answered(response.get("id"))
        if call is None:
            log.debug(
                "session %s: received a response to request %s, which is not pending; error: %s",
                self.session_id,
                response.get("id"),
                response.get("error"),
            )
        elif response.get("error") is not None:
            call.reply(None, server_error(response["error"]))
        else:
            call.reply(response.get("result"), None)

    def _refuse(self, request_id: Any, method: str) -> None:
        """Refuses a request from the server: this client supports none."""
        error = {"code": -32601, "message": f"method {method!r} is not known to this client"}
        if self._link is not None:
            self._link[1].send(_encode({"id": request_id, "error": error}).encode())


class _LinkReceiver:
    """Receives from one connection. The end of an old connection cannot drop a new link."""

    def __init__(self, connection: Connection, generation: int) -> None:
        self._connection = connection
        self._generation = generation
        self.handle_message = connection.handle_message

    def handle_end(self, error: ExecServerError, *, too_big: bool) -> None:
        self._connection.handle_end(self._generation, error, too_big=too_big)
