"""The manual, the README and the example are run as written."""

import ast
import asyncio
import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import exec_server
from support import REPOSITORY, Server, environment

MANUAL = REPOSITORY / "docs/python.md"
EXAMPLE = REPOSITORY / "examples/agent.py"
EXPECTED = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)

pytestmark = pytest.mark.skipif(
    not MANUAL.exists(), reason="SKIPPED: the repository is not around this package"
)


def blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", [MANUAL, Path(__file__).parents[1] / "README.md"])
def test_the_first_lines_are_a_program(document: Path, binary: str) -> None:
    program = blocks(document)[0]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(EXEC_SERVER_BINARY=binary),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "hello" in done.stdout, done.stderr


def test_every_block_of_the_manual_does_what_its_comments_say(
    binary: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXEC_SERVER_BINARY", binary)
    _, *rest = blocks(MANUAL)
    assert len(rest) == 7
    for block in rest:
        # The test must not touch a /tmp/demo of the developer.
        block = block.replace("/tmp/demo", f"{tmp_path}/demo")
        names = {name: getattr(exec_server, name) for name in exec_server.__all__}
        code = compile(
            block.replace("ws://127.0.0.1:7777", server.url),
            MANUAL.name,
            "exec",
            ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        )

        async def play(names: dict[str, object], code: object) -> None:
            async with exec_server.Machine.connect(server.url) as m:
                names["m"] = m
                result = eval(code, names)  # type: ignore[arg-type]
                if inspect.isawaitable(result):
                    await result

        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            asyncio.run(play(names, code))
        for expected in EXPECTED.findall(block):
            assert expected in output.getvalue().splitlines(), block


@pytest.mark.parametrize("starts_a_server", [True, False])
def test_the_agent_survives_a_cut(starts_a_server: bool, binary: str, server: Server) -> None:
    address = [] if starts_a_server else [server.url.removeprefix("ws://")]
    done = subprocess.run(
        [sys.executable, EXAMPLE, *address],
        env=environment(EXEC_SERVER_BINARY=binary),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = done.stdout.splitlines()
    checks = [f"check {number} passed" for number in range(1, 6)]
    assert [line for line in lines if not line.startswith("---")] == [
        "$ python3 check.py",
        *checks,
        "exit code 1",
        "$ sed -i s/41/42/ answer.py && python3 check.py",
        *checks,
        "all checks passed",
        "exit code 0",
        "done, over 2 connections",
    ]
    assert "--- the connection is cut" in lines
    assert "--- connection 2: the agent is back" in lines
