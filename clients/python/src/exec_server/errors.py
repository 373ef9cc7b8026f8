"""The errors of this package, one class for each way to react."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._result import Result

SESSION_ATTACHED = -32010


class ExecServerError(Exception):
    """The base class of all errors of this package."""


class ConnectFailed(ExecServerError):
    """No connection could be made. The text says why, and never contains a token."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        #: Whether trying again is useless, for example because the server refused the token.
        self.permanent = permanent


class SessionLost(ExecServerError):
    """The session is over: the server has exited, no longer has it, refuses this client, or could
    not be reached in time. Connect again."""


class Interrupted(ExecServerError):
    """The connection was lost before the response, or before the end of a streamed response.

    The request may or may not have been carried out, and repeating it could carry it out twice. The
    machine itself recovers: check the outcome, then decide whether to call again.
    """

    def __init__(self, method: str, *, during_response: bool = False) -> None:
        super().__init__(
            f"the connection was lost during the response to {method}, which is incomplete; "
            "call again if repeating it is safe"
            if during_response
            else f"the connection was lost before the response to {method}; "
            "it may have taken effect: check, then call again"
        )
        self.method = method


class ServerError(ExecServerError):
    """The server answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    @property
    def kind(self) -> str | None:
        """A stable word for programs, such as `unknownProcess`."""
        kind = self.data.get("kind") if isinstance(self.data, dict) else None
        return kind if isinstance(kind, str) else None


class NotFound(ServerError):
    """A path does not exist."""


class OutputGap(ExecServerError):
    """Output of a process is missing here: the server, or this client, could not keep it."""

    def __init__(self, process_id: str, dropped_bytes: int, *, fatal: bool = False) -> None:
        amount = f"{dropped_bytes} bytes" if dropped_bytes else "an unknown amount"
        advice = (
            "it is terminated, because it was not started with on_full='discard'"
            if fatal
            else "use events() to receive gaps as events instead"
        )
        super().__init__(f"process {process_id!r} lost {amount} of its output; {advice}")
        self.process_id = process_id
        self.dropped_bytes = dropped_bytes


class MessageTooLarge(ExecServerError):
    """A request exceeds the message limit of this client or of the server, and was not carried
    out."""


class ProtocolViolation(ExecServerError):
    """The peer does not speak the protocol that this client understands."""


class Closed(ExecServerError):
    """This program has closed or detached the machine."""


class CommandFailed(ExecServerError):
    """`run(check=True)`: the command did not exit with 0."""

    def __init__(self, result: Result) -> None:
        end = result.stderr[-500:].strip()
        if result.timed_out:
            text = "the command was ended at its timeout"
        elif result.signal is not None:
            text = f"the command was killed by signal {result.signal}"
        else:
            text = f"the command exited with {result.exit_code}"
        if result.limit is not None and not result.timed_out:
            text += f" (limit reached: {result.limit})"
        super().__init__(f"{text}: {end}" if end else text)
        self.result = result


def server_error(error: Any) -> ServerError:
    """Reads the `error` member of a response. Other servers may put anything there."""
    if not isinstance(error, dict):
        return ServerError(-32603, f"the server sent an invalid error: {str(error)[:200]}")
    code, message, data = error.get("code"), error.get("message"), error.get("data")
    code = code if isinstance(code, int) else -32603
    kind = data.get("kind") if isinstance(data, dict) else None
    of = NotFound if code == -32004 and kind in (None, "notFound") else ServerError
    return of(code, str(message), data)
