"""HTTP requests that are made from the machine."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from exec_server import Interrupted, Machine
from support import Proxy, Server

BODY = b"x" * (5 << 20)


class Site(BaseHTTPRequestHandler):
    posts = 0

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/here")
            self.end_headers()
            return
        self.answer(BODY if self.path == "/big" else b"hello")

    def do_POST(self) -> None:
        Site.posts += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(body + self.headers.get("X-Key", "").encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # A client may leave early.
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_whole_responses_are_returned(url: str, site: str) -> None:
    async with Machine.connect(url) as m:
        response = await m.http.get(site, headers={"Accept": "*/*"})
        assert (response.status, response.text) == (200, "hello")
        assert ("content-length", "5") in [(n.lower(), v) for n, v in response.headers]
        assert (await m.http.get(f"{site}/moved")).body == b"hello"
        moved = await m.http.request("GET", f"{site}/moved", follow_redirects=False)
        assert moved.status == 302
        posted = await m.http.request("POST", site, body="text", headers={"X-Key": "!"}, timeout=60)
        assert posted.text == "text!"


async def test_bodies_arrive_in_pieces(url: str, site: str) -> None:
    async with Machine.connect(url) as m:
        async with await m.http.stream("GET", f"{site}/big") as response:
            assert response.status == 200 and response.headers
            assert b"".join([piece async for piece in response]) == BODY
        left_early = await m.http.stream("GET", f"{site}/big")
        assert await anext(left_early)
        await left_early.close()
        assert [piece async for piece in left_early] == []


async def test_a_body_ends_with_its_connection(server: Server, site: str) -> None:
    async with Proxy(server.port) as network, Machine.connect(network.url) as m:
        response = await m.http.stream("GET", f"{site}/big")
        await anext(response)
        network.cut()
        with pytest.raises(Interrupted, match="during the response to http/request"):
            while True:
                await anext(response)


async def test_a_request_cancelled_during_recovery_is_not_made(server: Server, site: str) -> None:
    Site.posts = 0
    async with Proxy(server.port) as network, Machine.connect(network.url) as m:
        await network.refuse()
        request = asyncio.create_task(m.http.request("POST", site, body="order"))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])
        network.resume()
        await m.http.request("POST", site, body="last")
    assert Site.posts == 1


async def test_a_secret_of_the_server_is_sent_and_not_seen(
    binary: str, site: str, tmp_path: Path
) -> None:
    with Server(binary, tmp_path) as server:
        async with Machine.connect(server.url) as m:
            response = await m.http.request(
                "POST", site, body="", header_env={"X-Key": "API_TOKEN"}
            )
            assert response.text == "hidden"
