"""Lost connections, gaps, and processes that another program continues."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from exec_server import (
    Closed,
    ConnectFailed,
    ExecServerError,
    Exited,
    Gap,
    Machine,
    Output,
    OutputGap,
    Process,
    RecoveryPolicy,
    SessionLost,
)
from exec_server._connection import Connection, Options
from exec_server._link import Link, Receiver
from support import Fifo, Proxy, Server, environment

QUICK = RecoveryPolicy(first_pause=0.01)


async def test_output_and_input_go_on_after_a_cut(server: Server) -> None:
    async with Proxy(server.port) as network, Machine.connect(network.url, recovery=QUICK) as m:
        p = await m.start(["cat"], stdin=True)
        assert p.stdin is not None
        for number in range(1, 20):
            p.stdin.write(f"{number}\n")
            network.cut()
            assert await p.stdout.readline() == b"%d\n" % number
        assert network.connections == 20
        p.stdin.write_eof()
        assert await p.stdout.read() == b"" and await p.wait() == 0


async def test_calls_wait_while_the_connection_is_lost(server: Server) -> None:
    async with Proxy(server.port) as network, Machine.connect(network.url, recovery=QUICK) as m:
        await network.refuse()
        assert m.state == "recovering"
        running = asyncio.create_task(m.run("echo hello"))
        await asyncio.sleep(0)
        network.resume()
        assert (await running).stdout == "hello\n"
        assert m.state == "connected"


async def test_a_session_that_cannot_be_reached_in_time_is_lost(server: Server) -> None:
    policy = QUICK._replace(deadline=0.05)
    async with Proxy(server.port) as network, Machine.connect(network.url, recovery=policy) as m:
        p = await m.start(["sleep", "1000"])
        await network.refuse()
        with pytest.raises(SessionLost, match=r"no connection to ws://\S+ for 0\.05 s"):
            await p.wait()
        with pytest.raises(SessionLost):
            await m.run("true")
        assert m.state == "failed"


async def test_gaps_are_events_and_errors_of_the_streams(binary: str, fifo: Fifo) -> None:
    arguments = ["--spill-output-bytes-per-process=0", "--retained-output-bytes-per-process=65536"]
    script = """
        exec 3>fifo
        echo away >&3; read line <back
        seq 200000
        echo printed >&3; read line <back
    """
    directory = fifo.path.parent
    back = Fifo(directory / "back").path
    with Server(binary, directory, *arguments) as small:
        for reads_events in (True, False):
            fifo.reopen()
            network = Proxy(small.port)
            async with network, Machine.connect(network.url, recovery=QUICK) as m:
                p = await m.start(script, cwd=directory, on_full="discard")
                assert await fifo.readline() == "away\n"
                await network.refuse()
                await asyncio.to_thread(back.write_text, "print\n")
                assert await fifo.readline() == "printed\n"
                network.resume()
                await asyncio.to_thread(back.write_text, "end\n")
                received, dropped = await (count_events(p) if reads_events else count_stream(p))
                assert dropped > 0 and received + dropped == 1288895


async def count_events(process: Process) -> tuple[int, int]:
    received = dropped = 0
    async for event in process.events():
        if isinstance(event, Output):
            received += len(event.data)
        elif isinstance(event, Gap):
            dropped += event.dropped_bytes
    return received, dropped


async def count_stream(process: Process) -> tuple[int, int]:
    received = dropped = 0
    while True:
        try:
            data = await process.stdout.read(1 << 20)
        except OutputGap as gap:
            dropped += gap.dropped_bytes
            continue
        if not data:
            return received, dropped
        received += len(data)


STARTS = """
import asyncio, json, sys
from exec_server import Machine

async def main():
    m = await Machine.connect(sys.argv[1])
    p = await m.start("printf 'first\\nsec'; read x; echo ond $x; exit 5", stdin=True)
    other = await m.start("read x; echo other $x", stdin=True)
    assert await p.stdout.readline() == b"first\\n"
    assert await p.stdout.read(1) == b"s"
    print(json.dumps([p.save(), other.save()]))
    await m.detach()

asyncio.run(main())
"""


async def test_another_program_continues_at_the_next_byte(url: str) -> None:
    output = await asyncio.to_thread(program, STARTS, url)
    state, other_state = json.loads(output)
    async with await resumed(state) as p:
        assert p.stdin is not None
        p.stdin.write("go\n")
        assert await p.stdout.read() == b"econd go\n"
        assert await p.wait() == 5
        other = await p.machine.attach(other_state)
        assert await other.communicate(b"too\n") == (b"other too\n", b"")
        session = p.machine.session_id
    async with Machine.connect(url) as m:
        with pytest.raises(ExecServerError, match=f"belongs to session {session}"):
            await m.attach(other_state)
    with pytest.raises(SessionLost):
        await Machine.resume(state)


async def test_a_process_that_has_exited_is_resumed_with_its_exit(url: str) -> None:
    m = await Machine.connect(url)
    p = await m.start("echo out; exit 6")
    events = p.events()
    async for event in events:
        if isinstance(event, Exited):
            break
    state = p.save()
    await m.detach()
    async with await resumed(state) as p:
        assert p.returncode == 6 and await p.wait() == 6
        assert await p.stdout.read() == b"", "its output was read before"


def test_an_invalid_state_is_refused() -> None:
    with pytest.raises(ValueError, match="not a state"):
        Machine.resume("{}")


async def test_a_state_has_no_token(server: Server) -> None:
    async with Machine.connect(f"{server.url}/?token=hidden") as m:
        p = await m.start(["true"])
        assert "hidden" not in p.save()


async def resumed(state: str) -> Process:
    """Retries, because the server may not know yet that the old connection has ended."""
    while True:
        try:
            return await Machine.resume(state)
        except ExecServerError as error:
            if "attached" not in str(error):
                raise


def program(source: str, *arguments: str) -> str:
    command = [sys.executable, "-c", source, *arguments]
    return subprocess.run(command, env=environment(), stdout=-1, text=True, check=True).stdout


def test_a_program_that_is_killed_has_saved_its_place(url: str, tmp_path: Path) -> None:
    dies = "import os; sys.stdout.flush(); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", STARTS.replace("await m.detach()", dies), url]
    killed = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -9
    state = json.loads(killed.stdout)[0]

    async def continues() -> None:
        async with await resumed(state) as p:
            assert await p.communicate("on\n") == (b"econd on\n", b"")

    asyncio.run(continues())


async def test_the_deadline_names_the_last_failure(server: Server) -> None:
    policy = RecoveryPolicy(deadline=0.05, first_pause=10.0)  # No attempt before the deadline.
    async with Proxy(server.port) as network, Machine.connect(network.url, recovery=policy) as m:
        p = await m.start(["sleep", "1000"])
        network.cut()
        with pytest.raises(SessionLost) as lost:
            await p.wait()
        assert "did not answer" not in str(lost.value)


class SilentAfterTheFirst:
    """A connector, and the link that its first attempt opens. Later attempts hang."""

    can_redial = True
    url: str | None = "ws://box"
    receiver: Receiver | None = None

    async def dial(self, receiver: Receiver) -> Link:
        if self.receiver is not None:
            await asyncio.Event().wait()
        self.receiver = receiver
        return self

    def send(self, message: bytes) -> None:
        call = json.loads(message)
        if self.receiver is not None and call["method"] == "initialize":
            response = {"id": call["id"], "result": {"sessionId": "s"}}
            self.receiver.handle_message(json.dumps(response).encode())

    def close(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


async def test_an_attempt_cut_short_by_the_deadline_names_no_time() -> None:
    connector = SilentAfterTheFirst()
    policy = RecoveryPolicy(deadline=0.05, first_pause=0.0)
    connection = Connection(connector, Options(recovery=policy))
    await connection.open()
    assert connector.receiver is not None
    connector.receiver.handle_end(ConnectFailed("cut"), too_big=False)
    with pytest.raises(SessionLost, match=r"for 0\.05 s; .*: ws://box did not answer$"):
        await connection.call("environment/info", {})


async def test_a_closed_machine_attaches_to_nothing(url: str) -> None:
    async with Machine.connect(url) as m:
        state = (await m.start(["sleep", "1000"])).save()
    with pytest.raises(Closed):
        await m.attach(state)
