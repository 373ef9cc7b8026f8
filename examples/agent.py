"""An agent whose network fails while it works. It loses no output and does nothing twice.

pip install exec-server
python examples/agent.py                       # starts a server
python examples/agent.py 127.0.0.1:7777        # or uses one
"""

import asyncio
import os
import sys
import tempfile

from exec_server import Machine, Result, Sandbox

PROJECT = {
    "answer.py": "def answer():\n    return 41\n",
    "check.py": """
import time
from answer import answer

for number in range(1, 6):
    time.sleep(0.2)
    print("check", number, "passed", flush=True)
assert answer() == 42, f"answer() is {answer()}"
print("all checks passed")
""",
}


def model(last: Result | None) -> str | None:
    """Stands in for a language model: the next command, or None when the task is done."""
    if last is None:
        return "python3 check.py"
    if "answer() is 41" in last.stderr:
        return "sed -i s/41/42/ answer.py && python3 check.py"
    return None


async def agent(m: Machine, workspace: str, network: "Network") -> None:
    for name, content in PROJECT.items():
        await m.files.write(f"{workspace}/{name}", content)

    seen = ""

    def show(text: str) -> None:
        nonlocal seen
        print(text, end="", flush=True)
        seen += text
        if network.connections == 1 and seen.endswith("check 2 passed\n"):
            network.cut()

    result = None
    while command := model(result):
        print(f"$ {command}")
        result = await m.run(
            command,
            cwd=workspace,
            sandbox=Sandbox.workspace_write(),
            timeout=60,
            on_stdout=show,
        )
        print(f"exit code {result.exit_code}")


class Network:
    """Passes bytes on between the agent and its server. `cut` ends the connection."""

    def __init__(self, server: str) -> None:
        self._host, _, self._port = server.rpartition(":")
        self._links: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.connections = 0

    async def start(self) -> str:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"ws://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def cut(self) -> None:
        print("--- the connection is cut")
        for link in self._links:
            link.transport.abort()

    def _accept(self, down: asyncio.StreamReader, agent: asyncio.StreamWriter) -> None:
        self._tasks.append(asyncio.create_task(self._serve(down, agent)))

    async def _serve(self, down: asyncio.StreamReader, agent: asyncio.StreamWriter) -> None:
        up, server = await asyncio.open_connection(self._host, int(self._port))
        self._links = [agent, server]
        self.connections += 1
        if self.connections > 1:
            print(f"--- connection {self.connections}: the agent is back")
        await asyncio.gather(pass_on(down, server), pass_on(up, agent))


async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    except ConnectionError:
        pass
    finally:
        target.close()


async def main() -> None:
    if len(sys.argv) > 1:
        await work(sys.argv[1])
        return
    binary = os.environ.get("EXEC_SERVER_BINARY", "exec-server")
    listen = ["--listen", "ws://127.0.0.1:0", "--log", "error"]
    server = await asyncio.create_subprocess_exec(binary, *listen, stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = (await server.stdout.readline()).decode().strip()
        await work(url.removeprefix("ws://"))
    finally:
        server.terminate()
        await server.wait()


async def work(address: str) -> None:
    network = Network(address)
    with tempfile.TemporaryDirectory() as workspace:
        async with Machine.connect(await network.start()) as m:
            await agent(m, workspace, network)
            print(f"done, over {network.connections} connections")
    network.close()


asyncio.run(main())
