"""Events of a process, as `Process.events()` yields them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Denied(NamedTuple):
    """The access that the sandbox denied, which is probably why the command failed."""

    #: The denied path and call, as far as the program named them.
    path: str | None = None
    call: str | None = None
    #: The first `HOST:PORT` that the network rules refused.
    host: str | None = None


class Exit(NamedTuple):
    """How a process ended."""

    code: int
    #: The signal that killed the process; then `code` is 128 + signal.
    signal: int | None = None
    denied: Denied | None = None
    timed_out: bool = False
    #: The limits that were reached, such as `memory`.
    limits: tuple[str, ...] = ()
    #: Other figures from the server, such as durations and memory.
    details: dict[str, Any] = {}  # noqa: RUF012 (the field of a tuple)


class Output(NamedTuple):
    """Some output. `stream` is `stdout`, `stderr` or `pty`."""

    seq: int
    stream: str
    data: bytes


class Exited(NamedTuple):
    """The process itself has exited; its surviving children may still write."""

    seq: int
    exit: Exit


class OutputClosed(NamedTuple):
    """The last event: the process has exited and its output has ended."""

    seq: int


class Gap(NamedTuple):
    """Output is missing here. 0 bytes means that the server did not say how much."""

    seq: int
    dropped_bytes: int


Event = Output | Exited | OutputClosed | Gap


def read_exit(facts: dict[str, Any]) -> Exit:
    """Reads an exit from the params of `process/exited` or the result of `process/read`."""
    denied = None
    if facts.get("sandboxDenied"):
        told = facts.get("denied") or {}
        denied = Denied(told.get("path"), told.get("call"), told.get("host"))
    return Exit(
        code=facts["exitCode"],
        signal=facts.get("signal"),
        denied=denied,
        timed_out=bool(facts.get("timedOut")),
        limits=tuple(facts.get("limitsHit") or ()),
        details={name: facts[name] for name in _DETAILS if facts.get(name) is not None},
    )


def write_exit(exit: Exit) -> dict[str, Any]:
    """The reverse of `read_exit`."""
    return {
        "exitCode": exit.code,
        "signal": exit.signal,
        "sandboxDenied": exit.denied is not None,
        "denied": exit.denied and exit.denied._asdict(),
        "timedOut": exit.timed_out,
        "limitsHit": list(exit.limits),
        **exit.details,
    }


_DETAILS = (
    "durationMs",
    "cpuMs",
    "maxRssBytes",
    "peakMemoryBytes",
    "treeCpuMs",
    "serverStopped",
    "network",
)
