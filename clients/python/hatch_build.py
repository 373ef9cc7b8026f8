"""Adds the server to the wheel that `scripts/package` builds. Other builds have only the client."""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BundledServer(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        program = os.environ.get("EXEC_SERVER_WHEEL_PROGRAM")
        if program:
            build_data["shared_scripts"][program] = "exec-server"
            build_data["tag"] = os.environ["EXEC_SERVER_WHEEL_TAG"]
            build_data["pure_python"] = False
