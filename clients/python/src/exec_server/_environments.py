"""`environments.toml`: the available machines and how to reach them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NamedTuple

from ._stdio import find_binary
from .errors import ConnectFailed
from .sandbox import Sandbox

LOCAL: dict[str, Any] = {"id": "local"}


class Environment(NamedTuple):
    url: str | None = None
    token: Callable[[], str] | None = None
    tls: tuple[str | None, ...] = (None, None, None, None)
    argv: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    cwd: str | None = None
    connect_timeout: float = 10.0
    sandbox: Sandbox | None = None


def find(name: str | None, path: str | None) -> Environment:
    """Returns the environment of this name, or the default one. Raises `ConnectFailed` if the file
    is unreadable or invalid, or has no such environment."""
    path = path or _user_file()
    config = _load(path) if path is not None else {}
    entries = {entry["id"]: entry for entry in _tables(config, path)}
    if config.get("include_local", True):
        entries.setdefault("local", LOCAL)
    first = "local" if "local" in entries else next(iter(entries), "local")
    name = str(name or config.get("default") or first)
    entry = entries.get(name)
    if entry is None:
        close = get_close_matches(name, entries, 1)
        advice = f"; did you mean {close[0]!r}?" if close else ""
        known = ", ".join(entries) or "none"
        where = f"{path} has" if path else "there is no environments.toml; known"
        raise ConnectFailed(f"unknown environment {name!r}{advice} ({where}: {known})")
    return _read(entry, path or "")


def _user_file() -> str | None:
    named = os.environ.get("EXEC_SERVER_ENVIRONMENTS")
    if named:
        return named
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(config, "exec-server", "environments.toml")
    return path if os.path.exists(path) else None


def _load(path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            with open(path, "rb") as file:
                return tomllib.load(file)
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConnectFailed(f"cannot read {path}: {error}") from error
    raise ConnectFailed(
        f"reading {path} needs Python 3.11 or newer, which has tomllib; "
        "use Machine.connect(url) instead"
    )


def _tables(config: dict[str, Any], path: str | None) -> list[dict[str, Any]]:
    tables = config.get("environments", [])
    if isinstance(tables, list) and all(
        isinstance(table, dict) and isinstance(table.get("id"), str) for table in tables
    ):
        return tables
    raise ConnectFailed(f"{path}: each environment needs a table [[environments]] with an id")


def _read(entry: dict[str, Any], path: str) -> Environment:
    def beside(key: str) -> str | None:
        value = entry.get(key)
        return None if value is None else os.path.join(os.path.dirname(path), value)

    common = Environment(
        connect_timeout=entry.get("connect_timeout_sec", 10.0),
        sandbox=_sandbox(entry, path),
    )
    if "url" in entry:
        files = (beside("tls_ca"), entry.get("tls_fingerprint"))
        identity = (beside("tls_client_cert"), beside("tls_client_key"))
        token = _token(beside("token_file"), entry.get("token_env"))
        return common._replace(url=entry["url"], token=token, tls=files + identity)
    if "program" in entry:
        argv = (entry["program"], *entry.get("args", []))
        return common._replace(argv=argv, env=entry.get("env"), cwd=beside("cwd"))
    if "remote" in entry:
        # The binary connects through the relay and recovers lost connections. At the other end, a
        # second server on stdio serves this client.
        nested = ("run", "--on", entry["id"], "--", "exec-server", "--listen", "stdio")
        variables = {"EXEC_SERVER_ENVIRONMENTS": path}
        return common._replace(argv=(find_binary(), *nested), env=variables)
    if entry is not LOCAL:
        raise ConnectFailed(f"environment {entry['id']!r} in {path} has no url, remote or program")
    return common._replace(argv=(find_binary(), "--listen", "stdio"))


def _token(file: str | None, variable: str | None) -> Callable[[], str] | None:
    def read() -> str:
        if file is not None:
            try:
                with open(file, encoding="utf-8") as text:
                    return text.read().rstrip("\r\n")
            except OSError as error:
                raise ConnectFailed(f"cannot read the token in {file}: {error}") from error
        value = os.environ.get(str(variable))
        if not value:
            raise ConnectFailed(f"no token: the environment variable {variable} is unset or empty")
        return value

    return read if file is not None or variable is not None else None


def _sandbox(entry: dict[str, Any], path: str) -> Sandbox | None:
    table = entry.get("sandbox")
    if table is None:
        return None
    where = f"environment {entry['id']!r} in {path}: sandbox"
    unknown = set(table) - {"mode", "writable", "network"}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ConnectFailed(
            f"{where}: the Python client supports only mode, writable and network, not {names}; "
            "use Machine.connect, and pass a Sandbox.profile to run"
        )
    mode, writable, network = table.get("mode"), table.get("writable"), table.get("network", False)
    if mode == "workspace-write":
        try:
            return Sandbox.workspace_write(writable or (), network=network)
        except ValueError as error:
            raise ConnectFailed(f"{where}: {error}") from None
    if mode != "read-only":
        raise ConnectFailed(f"{where}: mode is {mode!r}; expected 'read-only' or 'workspace-write'")
    if writable is not None:
        raise ConnectFailed(f"{where}: writable needs mode = 'workspace-write'")
    if network:
        raise ConnectFailed(
            f"{where}: the Python client supports network only with mode = 'workspace-write'"
        )
    return Sandbox.read_only()
