"""`start`: a handle that is shaped like `asyncio.subprocess.Process`."""

import asyncio
import signal

import pytest

from exec_server import Exited, Machine, Output, OutputClosed, ServerError
from support import Fifo


async def test_lines_of_both_streams_are_read(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start("seq 3; seq 4 6 >&2; printf end")
        assert [line async for line in p.stdout] == [b"1\n", b"2\n", b"3\n", b"end"]
        assert p.stderr is not None and p.stdin is None
        assert await p.stderr.readline() == b"4\n"
        assert await p.stderr.read(3) == b"5\n6"
        assert await p.stderr.read() == b"\n"
        assert await p.stderr.read() == b"" == await p.stdout.readline()
        assert await p.wait() == 0 == p.returncode
        assert p.exit is not None and p.exit.details["durationMs"] >= 0
        assert p.machine is m


async def test_input_is_written_drained_and_ended(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start(["cat"], stdin=True)
        assert p.stdin is not None
        p.stdin.write("one\n")
        await p.stdin.drain()
        assert await p.stdout.readline() == b"one\n"
        p.stdin.write(b"two")
        p.stdin.write_eof()
        p.stdin.write_eof()
        assert await p.stdout.read() == b"two"
        with pytest.raises(BrokenPipeError):
            p.stdin.write(b"three")
        assert await p.wait() == 0


async def test_input_for_an_exited_process_is_a_broken_pipe(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start(["true"], stdin=True)
        await p.wait()
        assert p.stdin is not None
        p.stdin.write("lost")
        for _ in range(2):
            with pytest.raises(BrokenPipeError, match="its stdin is closed"):
                await p.stdin.drain()
            p.stdin.write("lost, too")


async def test_a_terminal_has_a_size_and_can_be_resized(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start("stty size; read line; stty size; cat", tty=True, size=(30, 90))
        assert p.stderr is None and p.stdin is not None
        assert await p.stdout.readline() == b"30 90\r\n"
        await p.resize(50, 120)
        p.stdin.write("go\n")
        assert await p.stdout.readline() == b"go\r\n", "a terminal echoes"
        assert await p.stdout.readline() == b"50 120\r\n"
        p.stdin.write_eof()
        assert await p.wait() == 0


async def test_signals_are_sent_by_number_or_name(url: str) -> None:
    script = "trap 'echo usr1' USR1; trap 'echo hup' HUP; echo ready; while :; do sleep 0.01; done"
    async with Machine.connect(url) as m, await m.start(script) as p:
        assert await p.stdout.readline() == b"ready\n"
        await p.send_signal(signal.SIGUSR1)
        assert await p.stdout.readline() == b"usr1\n"
        await p.send_signal("hangup")
        assert await p.stdout.readline() == b"hup\n"
        with pytest.raises(ValueError, match="expected one of interrupt"):
            await p.send_signal(signal.SIGWINCH)
        with pytest.raises(ValueError, match="signal 99 is not supported"):
            await p.send_signal(99)
        assert p.returncode is None


async def test_only_terminate_lets_a_process_clean_up(url: str) -> None:
    async with Machine.connect(url) as m:
        gentle = await m.start(
            "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"
        )
        await gentle.stdout.readline()
        await gentle.terminate()
        assert await gentle.wait() == 7
        assert await gentle.stdout.read() == b"bye\n"
        deaf = await m.start("trap '' TERM; echo ready; while :; do sleep 0.01; done")
        await deaf.stdout.readline()
        await deaf.terminate(grace=0.01)
        assert await deaf.wait() == 137
        killed = await m.start(["sleep", "1000"])
        await killed.kill()
        assert await killed.wait() == 137
        assert killed.exit is not None and killed.exit.signal == 9


async def test_events_report_everything_in_order(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start("echo out; exit 3")
        events = [event async for event in p.events()]
        assert events[0] == Output(1, "stdout", b"out\n")
        assert isinstance(events[1], Exited) and events[1].exit.code == 3
        assert events[2:] == [OutputClosed(3)]


async def test_communicate_sends_input_and_returns_all_output(url: str) -> None:
    data = b"x" * (3 << 20)
    async with Machine.connect(url) as m:
        p = await m.start("cat; echo done >&2", stdin=True)
        assert await p.communicate(data) == (data, b"done\n")
        with pytest.raises(ValueError, match="stdin=True"):
            await (await m.start("true")).communicate(b"input")


async def test_wait_returns_although_output_is_unread(url: str) -> None:
    size = 8 << 20
    async with Machine.connect(url) as m:
        p = await m.start(f"head -c {size} /dev/zero")
        assert await p.wait() == 0
        assert len(await p.stdout.read()) == size, "nothing is lost in the meantime"


async def test_leaving_the_context_ends_the_process(url: str, fifo: Fifo) -> None:
    async with Machine.connect(url) as m:
        directory = fifo.path.parent
        async with await m.start("echo started >fifo; exec sleep 1000 >fifo", cwd=directory):
            assert await fifo.readline() == "started\n"
        assert await fifo.readline() == ""


async def test_cancelling_wait_leaves_the_process_running(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start(["cat"], stdin=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(p.wait(), 0.01)
        assert await p.communicate(b"still here") == (b"still here", b"")


async def test_the_end_of_the_machine_ends_its_processes(url: str, fifo: Fifo) -> None:
    async with Machine.connect(url) as m:
        await m.start("echo started >fifo; exec sleep 1000 >fifo", cwd=fifo.path.parent)
        assert await fifo.readline() == "started\n"
        assert m.state == "connected" and m.session_id
    assert await fifo.readline() == ""
    assert m.state == "closed"


async def test_a_process_id_of_the_caller_is_used_once(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start(["sleep", "1000"], process_id="mine")
        assert p.process_id == "mine"
        with pytest.raises(ServerError) as refused:
            await m.start(["true"], process_id="mine")
        assert refused.value.kind == "duplicateProcess"


async def test_the_whole_environment_can_be_chosen(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start(["/usr/bin/env"], env={"A": "1"}, env_policy={"inherit": "none"})
        assert await p.stdout.read() == b"A=1\n"


async def test_output_after_the_last_consumed_event_stays_unread(url: str) -> None:
    async with Machine.connect(url) as m:
        p = await m.start("read x", stdin=True)
        assert p.stderr is not None
        p._buffers["stdout"].add(b"out")
        p._buffers["stderr"].add(b"err")
        async for event in p.events():
            assert isinstance(event, Output) and event.data == b"out"
            break
        assert await p.stderr.read(3) == b"err"
