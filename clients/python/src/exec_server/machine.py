"""A machine: where commands run and files are. One session of an exec-server."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, overload

from . import _environments, process
from ._connection import Connection, Options
from ._link import Connector, Link, Receiver
from ._paths import AnyPath, from_uri, to_uri
from ._process_log import ProcessLog
from ._recovery import RecoveryPolicy
from ._result import MAX_OUTPUT, Collector, Result, make_result
from ._stdio import StdioConnector, find_binary
from .errors import Closed, CommandFailed, ExecServerError, OutputGap, SessionLost
from .events import Exited, Gap, Output
from .files import Files
from .http import Http
from .process import News, Process
from .sandbox import Sandbox
from .search import Search, glob
from .watch import Watch

Command = str | Sequence[str]
OnOutput = Callable[[str], object]
#: The shell that runs a command given as one string.
SHELL = "/bin/sh"


class Machine:
    """Commands and files of one machine. Leaving `async with` ends the session and its
    processes."""

    def __init__(self, connection: Connection, sandbox: Sandbox | None = None) -> None:
        self._connection = connection
        self._sandbox = sandbox
        self._cwd: str | None = None
        self._files = Files(self)
        self._http = Http(connection)

    @staticmethod
    def connect(
        url: str,
        *,
        token: str | Callable[[], str] | None = None,
        tls_ca: str | None = None,
        tls_fingerprint: str | None = None,
        tls_client_cert: str | None = None,
        tls_client_key: str | None = None,
        client_name: str = Options().client_name,
        connect_timeout: float = 10.0,
        detached_ttl: float | None = None,
        recovery: RecoveryPolicy = RecoveryPolicy(),  # noqa: B008 (a tuple)
    ) -> Connecting:
        """A server at `ws://HOST:PORT`, `wss://HOST:PORT` or `unix:///PATH`.

        `token` is the token, or a function that is called for each connection, so that it may be
        renewed. `detached_ttl` is how long the session survives without a connection.
        """
        connector = LazyWebSocket(
            url, token, (tls_ca, tls_fingerprint, tls_client_cert, tls_client_key)
        )
        options = Options(client_name, connect_timeout, None, detached_ttl, recovery)
        return Connecting(connector, options)

    @staticmethod
    def local(binary: str | None = None) -> Connecting:
        """This machine: starts the bundled `exec-server`, which ends with the machine."""
        argv = [binary or find_binary(), "--listen", "stdio"]
        return Connecting(StdioConnector(argv), Options())

    @staticmethod
    def from_environments(name: str | None = None, path: str | None = None) -> Connecting:
        """An environment of `environments.toml`; without a name, its default."""
        found = _environments.find(name, path)
        if found.url is None:
            connector: Connector = StdioConnector(found.argv, found.env, found.cwd)
        else:
            connector = LazyWebSocket(found.url, found.token, found.tls)
        options = Options(connect_timeout=found.connect_timeout)
        return Connecting(connector, options, found.sandbox)

    @staticmethod
    def resume(
        state: str,
        *,
        token: str | Callable[[], str] | None = None,
        tls_ca: str | None = None,
        tls_fingerprint: str | None = None,
        tls_client_cert: str | None = None,
        tls_client_key: str | None = None,
        recovery: RecoveryPolicy = RecoveryPolicy(),  # noqa: B008 (a tuple)
    ) -> Connecting:
        """The session of a process that was saved, perhaps by another program. `attach(state)` then
        continues the process."""
        saved = _read_state(state)
        connector = LazyWebSocket(
            saved["url"], token, (tls_ca, tls_fingerprint, tls_client_cert, tls_client_key)
        )
        options = Options(resume_session_id=saved["session"], recovery=recovery)
        return Connecting(connector, options)

    @property
    def files(self) -> Files:
        return self._files

    @property
    def http(self) -> Http:
        """HTTP requests that are made from the machine."""
        return self._http

    @property
    def session_id(self) -> str:
        return self._connection.session_id or ""

    @property
    def state(self) -> str:
        """`connected`, `recovering`, `failed` or `closed`."""
        return self._connection.state

    @overload
    async def run(
        self,
        command: Command,
        *,
        background: Literal[False] = False,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        sandbox: Sandbox | None = None,
        limits: Mapping[str, Any] | None = None,
        input: bytes | str | None = None,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        check: bool = False,
        max_output: int = MAX_OUTPUT,
    ) -> Result: ...

    @overload
    async def run(
        self,
        command: Command,
        *,
        background: Literal[True],
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        sandbox: Sandbox | None = None,
        limits: Mapping[str, Any] | None = None,
    ) -> Process: ...

    async def run(
        self,
        command: Command,
        *,
        background: bool = False,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        sandbox: Sandbox | None = None,
        limits: Mapping[str, Any] | None = None,
        input: bytes | str | None = None,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        check: bool = False,
        max_output: int = MAX_OUTPUT,
    ) -> Result | Process:
        """Runs a command to the end of its output. A string is run by the shell, a list is argv.

        `timeout` is kept by the server: after it, the command and everything it started are ended.
        Cancelling the task ends the command. `on_stdout` and `on_stderr` get text as it comes.
        With `background=True` it returns at once, as `start` does.
        """
        started = await self.start(
            command,
            stdin=input is not None,
            cwd=cwd,
            env=env,
            envs=envs,
            timeout=timeout,
            sandbox=sandbox,
            limits=limits,
        )
        if background:
            return started
        async with started:
            if started.stdin is not None and input is not None:
                started.stdin.write(input)
                started.stdin.write_eof()
            result = await _collect(started, max_output, on_stdout, on_stderr)
        if check and not result.ok:
            raise CommandFailed(result)
        return result

    async def start(
        self,
        command: Command,
        *,
        stdin: bool = False,
        tty: bool = False,
        size: tuple[int, int] | None = None,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        env_policy: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        sandbox: Sandbox | None = None,
        limits: Mapping[str, Any] | None = None,
        on_full: Literal["block", "discard"] = "block",
        process_id: str | None = None,
    ) -> Process:
        """Starts a process. `size` is (rows, columns) of its terminal.

        `env` is added to the server's environment (without names that look like secrets), or to
        what `env_policy` leaves of it. If the connection is lost before the response, this raises
        `Interrupted`, and whatever was started is ended.
        """
        base = await self._base() if cwd is None or not str(cwd).startswith("/") else "/"
        argv = [SHELL, "-c", command] if isinstance(command, str) else list(command)
        params: dict[str, Any] = {
            "processId": process_id or self._connection.unique_id(),
            "argv": argv,
            "cwd": to_uri(base if cwd is None else cwd, base),
            "env": {**(envs or {}), **(env or {})},
            "envPolicy": dict(env_policy) if env_policy is not None else {"inherit": "all"},
            "tty": tty,
            "pipeStdin": stdin and not tty,
        }
        if on_full != "block":
            params["onFull"] = on_full
        if size is not None:
            params["size"] = {"rows": size[0], "cols": size[1]}
        if timeout is not None:
            params["timeoutMs"] = max(1, int(timeout * 1000))
        policy = sandbox or self._sandbox
        if policy is not None:
            params["sandbox"] = policy.to_wire()
        if limits is not None:
            params["limits"] = dict(limits)
        discards = on_full == "discard"
        log = ProcessLog(params["processId"], gaps_declared=discards, started_here=True)
        news = News()
        self._connection.track(log, news.wake)
        await self._connection.start(log, params)
        return Process(self._connection, log, news, tty=tty, stdin=stdin)

    async def attach(self, state: str) -> Process:
        """Continues a process of this session where `Process.save` was, at the next byte."""
        saved = _read_state(state)
        if saved["session"] != self.session_id:
            raise ExecServerError(
                f"process {saved['process']!r} belongs to session {saved['session']}, "
                f"and this machine is session {self.session_id}; use Machine.resume(state)"
            )
        return process.load(self._connection, saved)

    def watch(self, path: AnyPath, *, recursive: bool = True) -> Watch:
        """Changes below a path, until `async with` is left."""
        return Watch(self._connection, self._base, path, recursive)

    def search(
        self,
        pattern: str,
        path: AnyPath = ".",
        *,
        literal: bool = False,
        ignore_case: bool = False,
        word: bool = False,
        globs: Sequence[str] = (),
        hidden: bool = False,
        ignored: bool = False,
        before: int = 0,
        after: int = 0,
        max_matches: int | None = None,
    ) -> Search:
        """Lines that match a regular expression, as they are found."""
        params: dict[str, Any] = {
            "pattern": pattern,
            "literal": literal,
            "ignoreCase": ignore_case,
            "word": word,
            "globs": list(globs),
            "hidden": hidden,
            "ignored": ignored,
            "before": before,
            "after": after,
        }
        if max_matches is not None:
            params["maxMatches"] = max_matches
        return Search(self._connection, self._base, path, params)

    async def glob(
        self,
        patterns: str | Sequence[str],
        path: AnyPath = ".",
        *,
        hidden: bool = False,
        ignored: bool = False,
    ) -> list[str]:
        """Paths below `path` that match; `**` crosses directories, `!` in front excludes."""
        root = to_uri(path, await self._base())
        return await glob(self._connection, root, patterns, hidden=hidden, ignored=ignored)

    async def info(self) -> dict[str, Any]:
        """What the server says about itself: shell, directories, capabilities."""
        info: dict[str, Any] = await self._connection.call("environment/info", {})
        return info

    async def detach(self) -> None:
        """Hangs up and leaves the session, with its processes, to be resumed in time."""
        self._connection.end(Closed("the machine was detached"))

    async def close(self) -> None:
        """Ends the session, its processes and the connection."""
        try:
            if self._connection.state in ("connected", "recovering"):
                await self._connection.call("session/close", {})
        except (ExecServerError, OSError):
            pass  # The server ends a session without a connection by itself.
        finally:
            self._connection.end(Closed("the machine was closed"))

    async def __aenter__(self) -> Machine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _base(self) -> str:
        """The working directory of the server, to which relative paths are relative."""
        if self._cwd is None:
            self._cwd = from_uri((await self.info())["cwd"])
        return self._cwd


class Connecting:
    """A machine that is being connected to: `await` it, or use it with `async with`."""

    def __init__(
        self, connector: Connector, options: Options, sandbox: Sandbox | None = None
    ) -> None:
        self._connector = connector
        self._options = options
        self._sandbox = sandbox
        self._machine: Machine | None = None

    async def _open(self) -> Machine:
        connection = Connection(self._connector, self._options)
        await connection.open()
        self._machine = Machine(connection, self._sandbox)
        return self._machine

    def __await__(self) -> Generator[Any, None, Machine]:
        return self._open().__await__()

    async def __aenter__(self) -> Machine:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        if self._machine is not None:
            await self._machine.close()


class LazyWebSocket:
    """Imports the WebSocket library when it is first needed."""

    can_redial = True

    def __init__(self, url: str, token: Any, tls: tuple[str | None, ...]) -> None:
        self.url: str | None = url
        self._token = token
        self._tls = tls

    async def dial(self, receiver: Receiver) -> Link:
        from . import _websocket

        assert self.url is not None
        token = self._token() if callable(self._token) else self._token
        return await _websocket.dial(self.url, token, _websocket.Tls(*self._tls), receiver)


async def _collect(
    started: Process, bound: int, on_stdout: OnOutput | None, on_stderr: OnOutput | None
) -> Result:
    collectors = {"stdout": Collector(bound), "stderr": Collector(bound)}
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}
    decoder = codecs.getincrementaldecoder("utf-8")
    decoders = {name: decoder(errors="replace") for name, call in callbacks.items() if call}
    ended = None
    async for event in started.events():
        if isinstance(event, Output):
            collectors[event.stream].add(event.data)
            callback = callbacks[event.stream]
            if callback is not None and (text := decoders[event.stream].decode(event.data)):
                callback(text)
        elif isinstance(event, Exited):
            ended = event.exit
        elif isinstance(event, Gap):
            raise OutputGap(started.process_id, event.dropped_bytes)
    if ended is None:
        raise SessionLost(f"process {started.process_id!r} closed without an exit")
    return make_result(ended, collectors["stdout"], collectors["stderr"])


def _read_state(state: str) -> dict[str, Any]:
    try:
        saved = json.loads(state)
        if not {"url", "session", "process", "after"} <= saved.keys():
            raise ValueError("members are missing")
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"this is not a state that Process.save() returned: {error}") from None
    return dict(saved)
