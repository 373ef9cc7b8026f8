"""`run`: a command from start to end."""

import asyncio
from pathlib import Path

import pytest

from exec_server import CommandFailed, ExecServerError, Machine, Process, Sandbox, ServerError
from support import Fifo


async def test_a_string_is_run_by_the_shell_and_a_list_is_argv(url: str) -> None:
    async with Machine.connect(url) as m:
        result = await m.run("echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
        assert not result.ok and not result.truncated and result.signal is None
        assert (await m.run(["printf", "%s.", "a b", "$HOME"])).stdout == "a b.$HOME."


async def test_run_takes_a_directory_and_variables(url: str, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    async with Machine.connect(url) as m:
        assert (await m.run("pwd", cwd=tmp_path)).stdout == f"{tmp_path}\n"
        base = (await m.info())["cwd"].removeprefix("file://")
        assert (await m.run("pwd")).stdout == f"{base}\n"
        assert (await m.run("pwd", cwd="..")).stdout == f"{Path(base).parent}\n"
        shown = await m.run(
            'echo "$A $B ${PATH:+path} $API_TOKEN"', env={"A": "1"}, envs={"B": "2"}
        )
        assert shown.stdout == "1 2 path \n", "variables that look like secrets are not passed on"


async def test_input_is_ended_and_bytes_are_kept(url: str) -> None:
    data = bytes(range(256)) * 4096
    async with Machine.connect(url) as m:
        assert (await m.run("cat", input=data)).stdout_bytes == data
        assert (await m.run("cat", input="é")).stdout == "é"
        assert (await m.run("cat")).stdout == "", "without input, stdin is empty"
        assert (await m.run("true", input=data)).ok, "a command need not read its input"


async def test_a_result_reports_a_signal_and_a_timeout(url: str, fifo: Fifo) -> None:
    async with Machine.connect(url) as m:
        killed = await m.run("kill -9 $$")
        assert (killed.exit_code, killed.signal, killed.timed_out) == (137, 9, False)
        ended = asyncio.create_task(fifo.readline())
        late = await m.run(
            "(setsid sleep 1000 &) >fifo; sleep 1000", cwd=fifo.path.parent, timeout=0.2
        )
        assert late.timed_out and late.signal == 15
        assert await ended == "", "everything that it started is ended"


async def test_a_sandbox_says_what_it_denied(url: str, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    command = "touch here && touch ../outside"
    async with Machine.connect(url) as m:
        for sandbox, made in [(Sandbox.read_only(), False), (Sandbox.workspace_write(), True)]:
            if made:
                sandbox = Sandbox.workspace_write(temporary=False)
            result = await m.run(command, cwd=tmp_path / "inside", sandbox=sandbox)
            assert result.exit_code != 0 and result.denied is not None
            assert (tmp_path / "inside/here").exists() is made
            assert not (tmp_path / "outside").exists()
        also = Sandbox.workspace_write([tmp_path], temporary=False)
        assert (await m.run(command, cwd=tmp_path / "inside", sandbox=also)).ok
        free = await m.run(command, cwd=tmp_path / "inside", sandbox=Sandbox.none())
        assert free.ok and free.denied is None
        profile = Sandbox.profile({"type": "read-only"})
        assert not (await m.run(command, cwd=tmp_path, sandbox=profile)).ok
    with pytest.raises(ValueError, match="not absolute"):
        Sandbox.workspace_write(["relative"])


async def test_a_limit_ends_the_command(url: str) -> None:
    async with Machine.connect(url) as m:
        result = await m.run("tail /dev/zero", limits={"memoryBytes": 32 << 20})
        assert result.limit == "memory" and result.exit_code == 137
        late = await m.run("sleep 1000", limits={"wallTimeMs": 50})
        assert late.limit == "wallTime" and late.timed_out


async def test_callbacks_get_output_as_it_arrives(url: str) -> None:
    async with Machine.connect(url) as m:
        out: list[str] = []
        err: list[str] = []
        result = await m.run(
            r"printf '\303'; sleep 0.05; printf '\251\n'; echo no >&2",
            on_stdout=out.append,
            on_stderr=err.append,
        )
        assert "".join(out) == result.stdout == "é\n" and err == ["no\n"]


async def test_an_error_of_a_callback_ends_the_command(url: str, fifo: Fifo) -> None:
    def fail(text: str) -> None:
        raise RuntimeError(text)

    async with Machine.connect(url) as m:
        ended = asyncio.create_task(fifo.readline())
        with pytest.raises(RuntimeError, match="started"):
            await m.run(
                "exec 3>fifo; echo started; sleep 1000", cwd=fifo.path.parent, on_stdout=fail
            )
        assert await ended == ""


async def test_check_raises_with_the_result(url: str) -> None:
    async with Machine.connect(url) as m:
        assert (await m.run("true", check=True)).ok
        with pytest.raises(CommandFailed, match="exited with 4: reason") as failed:
            await m.run("echo reason >&2; exit 4", check=True)
        assert failed.value.result.stderr == "reason\n"
        assert isinstance(failed.value, ExecServerError)
        with pytest.raises(CommandFailed, match="killed by signal 9"):
            await m.run("kill -9 $$", check=True)
        with pytest.raises(CommandFailed, match="ended at its timeout"):
            await m.run("sleep 1000", timeout=0.05, check=True)


async def test_long_output_is_cut_in_the_middle(url: str) -> None:
    async with Machine.connect(url) as m:
        result = await m.run("seq 100000", max_output=1000)
        assert result.truncated and len(result.stdout_bytes) == 1000
        assert result.stdout.startswith("1\n2\n") and result.stdout.endswith("\n100000\n")
        assert "[587895 bytes left out]" in result.stdout


async def test_background_returns_a_process(url: str) -> None:
    async with Machine.connect(url) as m:
        process = await m.run("read line; echo $line", background=True)
        assert isinstance(process, Process)
        assert await process.wait() == 0
        assert await process.stdout.read() == b"\n"


async def test_cancelling_ends_the_command_and_all_that_it_started(url: str, fifo: Fifo) -> None:
    async with Machine.connect(url) as m:
        command = "exec >fifo; setsid sh -c 'trap \"\" TERM; echo started; sleep 1000' & wait"
        running = asyncio.create_task(m.run(command, cwd=fifo.path.parent))
        assert await fifo.readline() == "started\n"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await fifo.readline() == ""


async def test_a_missing_program_is_an_error(url: str) -> None:
    async with Machine.connect(url) as m:
        with pytest.raises(ServerError, match="no-such-program") as refused:
            await m.run(["no-such-program"])
        assert refused.value.kind == "programNotFound"
        assert (await m.run("no-such-program")).exit_code == 127


async def test_callbacks_may_be_coroutines_and_get_all_text(url: str) -> None:
    async with Machine.connect(url) as m:
        texts: list[str] = []

        async def keep(text: str) -> None:
            await asyncio.sleep(0)
            texts.append(text)

        result = await m.run(r"printf 'caf\303'", on_stdout=keep)
        assert "".join(texts) == result.stdout == "caf\ufffd"


async def test_background_refuses_options_that_it_would_ignore(url: str) -> None:
    async with Machine.connect(url) as m:
        for options in ({"input": "x"}, {"on_stdout": print}, {"check": True}):
            with pytest.raises(ValueError, match="background=True"):
                await m.run("cat", background=True, **options)
