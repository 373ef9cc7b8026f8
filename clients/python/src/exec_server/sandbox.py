"""Sandbox policies. The server enforces them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._paths import AnyPath, to_uri

if TYPE_CHECKING:
    from ._generated import SandboxRequest


class Sandbox:
    """A policy. Make one with `read_only`, `workspace_write`, `none` or `profile`."""

    def __init__(self, wire: SandboxRequest) -> None:
        self._wire = wire

    @classmethod
    def read_only(cls) -> Sandbox:
        """All files may be read, none written; no network."""
        return cls({"type": "read-only"})

    @classmethod
    def workspace_write(
        cls, writable: Sequence[AnyPath] = (), *, network: bool = False, temporary: bool = True
    ) -> Sandbox:
        """Like `read_only`, but the command may write to its working directory, to `writable`
        (absolute paths) and, unless `temporary` is false, to the temporary directories. `.git` and
        similar names in them stay read-only. `network` allows the network."""
        for path in writable:
            if not os.fsdecode(path).startswith("/"):
                raise ValueError(f"writable path {os.fsdecode(path)!r} is not absolute")
        return cls(
            {
                "type": "workspace-write",
                "writable_roots": [to_uri(path) for path in writable],
                "network_access": network,
                "exclude_tmpdir_env_var": not temporary,
                "exclude_slash_tmp": not temporary,
            }
        )

    @classmethod
    def none(cls) -> Sandbox:
        """No sandbox, even if `environments.toml` names one for the machine. The operator's ceiling
        still applies."""
        return cls({"type": "danger-full-access"})

    @classmethod
    def profile(cls, wire: SandboxRequest) -> Sandbox:
        """A sandbox object of the protocol, for entries that no other constructor can express."""
        return cls(wire)

    def to_wire(self) -> SandboxRequest:
        return self._wire
