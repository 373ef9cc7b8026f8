"""`exec_server.sync`: the same API without `async`."""

import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import exec_server
from exec_server import Closed, CommandFailed, Exited, Output, OutputClosed, sync
from exec_server.sync import Machine
from support import environment


def test_both_apis_have_the_same_names() -> None:
    assert sync.__all__ == exec_server.__all__
    different = [n for n in sync.__all__ if getattr(sync, n) is not getattr(exec_server, n)]
    assert {"Machine", "Process", "Files", "Http", "Search", "Watch"} <= set(different)
    for name in different:
        asynchronous, synchronous = getattr(exec_server, name), getattr(sync, name)
        assert public(asynchronous) <= public(synchronous)
        for method in public(asynchronous):
            assert not inspect.iscoroutinefunction(getattr(synchronous, method))


def public(of: type) -> set[str]:
    return {name for name in vars(of) if not name.startswith("_")}


def test_commands_and_processes_work(url: str) -> None:
    with Machine.connect(url) as m:
        seen: list[str] = []
        result = m.run("cat; echo $A", input="in\n", env={"A": "1"}, on_stdout=seen.append)
        assert result.stdout == "".join(seen) == "in\n1\n"
        with pytest.raises(CommandFailed):
            m.run("false", check=True)
        with m.start(["cat"], stdin=True) as p:
            assert p.stdin is not None and p.stderr is not None
            p.stdin.write("one\ntwo\n")
            p.stdin.drain()
            assert p.stdout.readline() == b"one\n"
            p.stdin.write_eof()
            assert list(p.stdout) == [b"two\n"]
            assert p.wait() == 0 == p.returncode
            assert p.machine.session_id == m.session_id
        events = list(m.start("echo out").events())
        assert [type(event) for event in events] == [Output, Exited, OutputClosed]
        background = m.run("exit 3", background=True)
        assert isinstance(background, sync.Process) and background.wait() == 3
        terminal = m.start("stty size", tty=True, size=(20, 70))
        assert terminal.stderr is None
        assert terminal.communicate() == (b"20 70\r\n", b"")
    with pytest.raises(Closed):
        m.run("true")


def test_files_watches_searches_and_http_work(url: str, tmp_path: Path) -> None:
    with Machine.connect(url) as m, m.watch(tmp_path) as watch:
        m.files.write(tmp_path / "file", "needle\n")
        assert next(watch).changes[0].path == f"{tmp_path}/file"
        assert [entry.name for entry in m.files.list(tmp_path)] == ["file"]
        search = m.search("needle", tmp_path)
        assert [match.line_number for match in search] == [1]
        assert search.summary is not None and search.summary.matches == 1
        assert m.glob("*", tmp_path) == [f"{tmp_path}/file"]
        with pytest.raises(exec_server.ExecServerError):
            m.http.get("http://127.0.0.1:1/")


def test_a_process_is_saved_and_resumed(url: str) -> None:
    m = Machine.connect(url)
    p = m.start("echo one; read line; echo two", stdin=True)
    assert p.stdout.readline() == b"one\n"
    state = p.save()
    m.detach()
    while True:
        try:
            resumed = Machine.resume(state)
            break
        except exec_server.ServerError as error:
            assert error.code == -32010
    with resumed:
        assert resumed.communicate("\n") == (b"two\n", b"")


def test_several_threads_share_a_machine(url: str) -> None:
    results: list[str] = []
    with Machine.connect(url) as m:

        def work(number: int) -> None:
            results.append(m.run(["echo", str(number)]).stdout)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [f"{number}\n" for number in range(8)]


def test_a_callback_cannot_block_the_event_loop(url: str) -> None:
    with Machine.connect(url) as m:
        with pytest.raises(RuntimeError, match=r"cannot call exec_server\.sync"):
            m.run("echo x", on_stdout=lambda _: m.run("true"))
        assert m.run("true").ok


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_connects_anew(url: str) -> None:
    with Machine.connect(url) as m:
        assert m.run("true").ok
        child = os.fork()
        if child == 0:
            with Machine.connect(url) as own:
                os._exit(own.run("exit 9").exit_code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


INTERRUPTED = """
import signal, sys
from exec_server.sync import Machine

# If the tests were started with SIGINT ignored, Python would not raise KeyboardInterrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
m = Machine.connect(sys.argv[1])
try:
    m.run("exec 3>$FIFO; echo ready; sleep 1000", env={"FIFO": sys.argv[2]},
          on_stdout=lambda text: print(text, end="", flush=True))
except KeyboardInterrupt:
    print("interrupted", m.run("echo again").stdout, flush=True)
    sys.stdin.readline()
"""


def test_ctrl_c_ends_the_command_and_leaves_the_machine(url: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, url, str(fifo)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    with open(fifo) as held:
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted again\n"
        assert held.read() == "", "the command is gone although the program still runs"
    program.communicate("\n")
    assert program.returncode == 0


def test_a_program_may_end_without_closing(binary: str) -> None:
    source = """
from exec_server.sync import Machine
m = Machine.local()
p = m.start("cat", stdin=True)
print(m.run("echo hello").stdout, end="")
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment(EXEC_SERVER_BINARY=binary),
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 0)
