"""The cost of `import exec_server`."""

import subprocess
import sys

from support import environment


def test_the_websocket_library_is_imported_when_it_is_first_used() -> None:
    source = """
        import sys
        import exec_server, exec_server.sync
        late = ("websockets", "tomllib", "exec_server._generated", "exec_server._websocket")
        assert not {*late} & {*sys.modules}
    """
    source = "if True:" + source
    subprocess.run([sys.executable, "-c", source], env=environment(), check=True)
