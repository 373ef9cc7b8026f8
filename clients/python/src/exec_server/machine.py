"""A machine: where commands run and files are. One session of an exec-server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

from ._connection import Connection, Options
from ._link import Connector
from ._opening import LazyWebSocket, Opening, Token
from ._paths import AnyPath, from_uri, to_uri
from ._process_log import ProcessLog
from ._recovery import RecoveryPolicy
from ._result import MAX_OUTPUT, OnOutput, Result, collect
from ._stdio import StdioConnector, find_binary
from .errors import Closed, CommandFailed, ExecServerError
from .files import Files
from .http import Http
from .process import News, Process, load, read_state
from .sandbox import Sandbox
from .search import Search, glob
from .watch import Watch

if TYPE_CHECKING:
    from ._generated import (
        EnvironmentInfo,
        EnvPolicy,
        FsSearchParams,
        LimitsRequest,
        StartParams,
    )

Command = str | Sequence[str]
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
        token: Token = None,
        tls_ca: str | None = None,
        tls_fingerprint: str | None = None,
        tls_client_cert: str | None = None,
        tls_client_key: str | None = None,
        client_name: str = Options().client_name,
        connect_timeout: float = 10.0,
        detached_ttl: float | None = None,
        recovery: RecoveryPolicy = RecoveryPolicy(),
    ) -> Opening[Machine]:
        """Connects to a server at `ws://HOST:PORT`, `wss://HOST:PORT` or `unix:///PATH`.

        `token` is the token, or a function that returns it and is called for each connection, so
        that the token may be renewed. `detached_ttl` is how long the session survives without a
        connection. Times are in seconds.
        """
        connector = LazyWebSocket(
            url, token, (tls_ca, tls_fingerprint, tls_client_cert, tls_client_key)
        )
        options = Options(client_name, connect_timeout, None, detached_ttl, recovery)
        return Opening(connector, options, Machine)

    @staticmethod
    def local(binary: str | None = None) -> Opening[Machine]:
        """The local machine, through a child `exec-server` that ends with the `Machine`."""
        argv = [binary or find_binary(), "--listen", "stdio"]
        return Opening(StdioConnector(argv), Options(), Machine)

    @staticmethod
    def from_environments(name: str | None = None, path: str | None = None) -> Opening[Machine]:
        """Connects to an environment of `environments.toml`; without a name, to the default."""
        from . import _environments

        found = _environments.find(name, path)
        if found.url is None:
            connector: Connector = StdioConnector(found.argv, found.env, found.cwd)
        else:
            connector = LazyWebSocket(found.url, found.token, found.tls)
        options = Options(connect_timeout=found.connect_timeout)
        return Opening(connector, options, lambda connection: Machine(connection, found.sandbox))

    @staticmethod
    def resume(
        state: str,
        *,
        url: str | None = None,
        token: Token = None,
        tls_ca: str | None = None,
        tls_fingerprint: str | None = None,
        tls_client_cert: str | None = None,
        tls_client_key: str | None = None,
        client_name: str = Options().client_name,
        connect_timeout: float = 10.0,
        recovery: RecoveryPolicy = RecoveryPolicy(),
    ) -> Opening[Process]:
        """Continues a process after `Process.save()`, even in another program, at the next byte.

        The session must have no other connection; `process.machine` is its machine. `url` is needed
        if the server has a different URL here. Leaving `async with` ends the session.
        """
        saved = read_state(state)
        connector = LazyWebSocket(
            url or saved["url"], token, (tls_ca, tls_fingerprint, tls_client_cert, tls_client_key)
        )
        options = Options(client_name, connect_timeout, saved["session"], None, recovery)
        return Opening(
            connector, options, lambda connection: load(Machine(connection), saved, resumed=True)
        )

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
        limits: LimitsRequest | None = None,
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
        limits: LimitsRequest | None = None,
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
        limits: LimitsRequest | None = None,
        input: bytes | str | None = None,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        check: bool = False,
        max_output: int = MAX_OUTPUT,
    ) -> Result | Process:
        """Runs a command to the end of its output. A string is run by the shell, a list is argv.

        After `timeout` seconds, the server ends the command and everything that the command
        started. Cancelling the task ends the command. `on_stdout` and `on_stderr` get text as it
        arrives; coroutine functions are awaited. With `background=True` it returns a process once
        the command has started, as `start` does, and takes no input, callbacks or `check`.
        """
        if background and (check or input is not None or on_stdout or on_stderr):
            raise ValueError(
                "input, on_stdout, on_stderr and check cannot be combined with background=True; "
                "use start() and the process that it returns"
            )
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
            result = await collect(started, max_output, on_stdout, on_stderr)
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
        env_policy: EnvPolicy | None = None,
        timeout: float | None = None,
        sandbox: Sandbox | None = None,
        limits: LimitsRequest | None = None,
        on_full: Literal["block", "discard"] = "block",
        process_id: str | None = None,
    ) -> Process:
        """Starts a process. `size` is (rows, columns) of its terminal.

        `env` is added to the server's environment (without names that look like secrets), or to
        the part of it that `env_policy` selects. If the connection is lost before the response,
        this raises `Interrupted`, and the process is ended if it did start.
        """
        base = await self._base() if cwd is None or not str(cwd).startswith("/") else "/"
        argv = [SHELL, "-c", command] if isinstance(command, str) else list(command)
        params: StartParams = {
            "processId": process_id or self._connection.unique_id(),
            "argv": argv,
            "cwd": to_uri(base if cwd is None else cwd, base),
            "env": {**(envs or {}), **(env or {})},
            "envPolicy": env_policy or {"inherit": "all"},
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
            params["limits"] = limits
        discards = on_full == "discard"
        log = ProcessLog(params["processId"], gaps_declared=discards, starting=True)
        news = News()
        self._connection.processes.track(log, news.wake)
        await self._connection.processes.start(log, params)
        return Process(self, log, news, tty=tty, stdin=stdin)

    async def attach(self, state: str) -> Process:
        """Continues a process of this session after `Process.save`, at the next byte."""
        saved = read_state(state)
        if saved["session"] != self.session_id:
            raise ExecServerError(
                f"process {saved['process']!r} belongs to session {saved['session']}, "
                f"and this machine is session {self.session_id}; use Machine.resume(state)"
            )
        return load(self, saved)

    def watch(self, path: AnyPath, *, recursive: bool = True) -> Watch:
        """Changes of a file, or of a directory and its entries, until `async with` is left. With
        `recursive` of the whole tree."""
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
        params: FsSearchParams = {
            "path": "",
            "searchId": "",
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
        """Paths below `path` that match; `**` crosses directories, a leading `!` excludes."""
        root = to_uri(path, await self._base())
        return await glob(self._connection, root, patterns, hidden=hidden, ignored=ignored)

    async def info(self) -> EnvironmentInfo:
        """Facts about the server: shell, directories, capabilities."""
        info: EnvironmentInfo = await self._connection.call("environment/info", {})
        return info

    async def detach(self) -> None:
        """Closes the connection. Until the session expires, it and its processes can be resumed. A
        server that this client started ends."""
        self._connection.end(Closed("the machine was detached"))

    async def close(self) -> None:
        """Ends the session, its processes and the connection."""
        await self._connection.close()

    async def __aenter__(self) -> Machine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _base(self) -> str:
        """The working directory of the server, to which relative paths are relative."""
        if self._cwd is None:
            self._cwd = from_uri((await self.info())["cwd"])
        return self._cwd
