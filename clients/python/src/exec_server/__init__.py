"""Run processes and work with files on another machine, through bad networks.

    from exec_server import Machine

    async with Machine.connect("ws://127.0.0.1:7777") as m:
        result = await m.run("make -j4", on_stdout=print)

The same without `async`: `from exec_server.sync import Machine`.
"""

from ._recovery import RecoveryPolicy
from ._result import Result
from .errors import (
    Closed,
    CommandFailed,
    ConnectFailed,
    ExecServerError,
    Interrupted,
    MessageTooLarge,
    NotFound,
    OutputGap,
    ProtocolViolation,
    ServerError,
    SessionLost,
)
from .events import Denied, Event, Exit, Exited, Gap, Output, OutputClosed
from .files import FileInfo, Files
from .http import Http, HttpResponse, HttpStream
from .machine import Machine
from .process import Process
from .sandbox import Sandbox
from .search import Match, Search, Summary
from .watch import Change, Changes, Watch

__all__ = [
    "Change",
    "Changes",
    "Closed",
    "CommandFailed",
    "ConnectFailed",
    "Denied",
    "Event",
    "ExecServerError",
    "Exit",
    "Exited",
    "FileInfo",
    "Files",
    "Gap",
    "Http",
    "HttpResponse",
    "HttpStream",
    "Interrupted",
    "Machine",
    "Match",
    "MessageTooLarge",
    "NotFound",
    "Output",
    "OutputClosed",
    "OutputGap",
    "Process",
    "ProtocolViolation",
    "RecoveryPolicy",
    "Result",
    "Sandbox",
    "Search",
    "ServerError",
    "SessionLost",
    "Summary",
    "Watch",
]
