"""When to dial, how long to wait, and when to give up: decisions only.

Events and the time enter through `handle_*`; actions and the next timeout leave through `poll_*`.
This module knows no socket, clock or session, so a test can play any sequence of events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class RecoveryPolicy(NamedTuple):
    """How a lost connection is recovered; times are in seconds."""

    #: How long to try after the loss; `None`: forever. By default a server keeps a session for
    #: 30 s, so a longer deadline needs a longer `detached_ttl` too.
    deadline: float | None = 25.0
    #: The pause after the first failed attempt. It doubles with each further one, up to
    #: `longest_pause`. The first attempt is immediate, unless the connection lived for less than
    #: this.
    first_pause: float = 0.1
    longest_pause: float = 2.0
    #: How long one attempt to reconnect may take, from dialling to the response to `initialize`.
    attempt: float = 5.0


class Dial(NamedTuple):
    """Connect, and open or resume the session."""

    generation: int


class HangUp(NamedTuple):
    """Drop this connection or attempt."""

    generation: int


class CatchUp(NamedTuple):
    """The session is attached again: fetch the events that each process missed."""

    generation: int


class Admit(NamedTuple):
    """Let calls through."""

    generation: int


class GiveUp(NamedTuple):
    """Fail every call and process. The reason is `never connected`, `deadline` or `permanent`."""

    reason: str


Action = Dial | HangUp | CatchUp | Admit | GiveUp


class _Opening(NamedTuple):
    until: float


class _Connected(NamedTuple):
    since: float


class _Pausing(NamedTuple):
    since: float
    failed: int
    until: float


class _Attempting(NamedTuple):
    since: float
    failed: int
    until: float


class _CatchingUp(NamedTuple):
    since: float
    failed: int


class _GivenUp(NamedTuple):
    pass


_State = _Opening | _Connected | _Pausing | _Attempting | _CatchingUp | _GivenUp


class Recovery:
    """Numbers the attempts to connect (generations). Events of an old generation change nothing."""

    def __init__(
        self,
        policy: RecoveryPolicy,
        first_attempt: float,
        now: float,
        jitter: Callable[[], float],
    ) -> None:
        """`jitter` returns a number from 0 to 1."""
        self._policy = policy
        self._jitter = jitter
        self._generation = 1
        self._state: _State = _Opening(now + first_attempt)
        self._actions: deque[Action] = deque([Dial(1)])

    @property
    def is_connected(self) -> bool:
        return isinstance(self._state, _Connected)

    @property
    def recovering(self) -> tuple[float, int] | None:
        """When the recovery began, and how many attempts have failed since, counting a connection
        that was lost at once."""
        match self._state:
            case _Pausing(since, failed, _) | _Attempting(since, failed, _):
                return since, failed
            case _CatchingUp(since, failed):
                return since, failed
        return None

    def handle_lost(self, generation: int, now: float, *, permanent: bool = False) -> None:
        """A connection ended, or an attempt failed. `permanent`: another attempt is useless."""
        if generation != self._generation:
            return
        match self._state:
            case _GivenUp():
                pass
            case _Opening():
                self._give_up("never connected")
            case _ if permanent:
                self._give_up("permanent")
            case _Connected(since) if now < since + self._policy.first_pause:
                # A server that accepts and drops connections is not dialled in a tight loop.
                self._pause(now, 0, now)
            case _Connected():
                self._attempt(now, 0, now)
            case _Attempting(since, failed, _) | _CatchingUp(since, failed):
                self._pause(since, failed, now)

    def handle_initialized(self, generation: int, now: float) -> None:
        """The server answered `initialize`."""
        if generation != self._generation:
            return
        match self._state:
            case _Opening():
                self._state = _Connected(now)
                self._actions.append(Admit(generation))
            case _Attempting(since, failed, _):
                # Only the policy's deadline applies now: a slow link is no reason to start over.
                self._state = _CatchingUp(since, failed)
                self._actions.append(CatchUp(generation))

    def handle_caught_up(self, generation: int, now: float) -> None:
        """The missed events of every process are known."""
        if generation == self._generation and isinstance(self._state, _CatchingUp):
            self._state = _Connected(now)
            self._actions.append(Admit(generation))

    def handle_timeout(self, now: float) -> None:
        match self._state:
            case _Opening(until) if now >= until:
                self._actions.append(HangUp(self._generation))
                self._give_up("never connected")
            case _Pausing(since, _, _) | _Attempting(since, _, _) | _CatchingUp(since, _) if (
                self._policy.deadline is not None and now >= since + self._policy.deadline
            ):
                self._actions.append(HangUp(self._generation))
                self._give_up("deadline")
            case _Pausing(since, failed, until) if now >= until:
                self._attempt(since, failed, now)
            case _Attempting(since, failed, until) if now >= until:
                self._actions.append(HangUp(self._generation))
                self._pause(since, failed, now)

    def poll_timeout(self) -> float | None:
        """When `handle_timeout` should be called; `None`: not at all."""
        match self._state:
            case _Opening(until):
                return until
            case _Pausing(since, _, until) | _Attempting(since, _, until):
                return until if self._policy.deadline is None else min(until, self._end(since))
            case _CatchingUp(since, _):
                return None if self._policy.deadline is None else self._end(since)
        return None

    def poll_action(self) -> Action | None:
        return self._actions.popleft() if self._actions else None

    def _end(self, since: float) -> float:
        return since + (self._policy.deadline or 0.0)

    def _attempt(self, since: float, failed: int, now: float) -> None:
        self._generation += 1
        self._actions.append(Dial(self._generation))
        self._state = _Attempting(since, failed, now + self._policy.attempt)

    def _pause(self, since: float, failed: int, now: float) -> None:
        """Waits between half of the pause and all of it, so that clients do not return together."""
        policy = self._policy
        pause = min(policy.first_pause * 2.0 ** min(failed, 32), policy.longest_pause)
        until = now + pause * (0.5 + 0.5 * self._jitter())
        self._state = _Pausing(since, failed + 1, until)

    def _give_up(self, reason: str) -> None:
        self._state = _GivenUp()
        self._actions.append(GiveUp(reason))
