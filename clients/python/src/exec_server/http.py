"""HTTP requests that are made from the machine, in its network."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ._lease import Lease
from .errors import ExecServerError

if TYPE_CHECKING:
    from ._connection import Connection
    from ._generated import HttpAckParams, HttpRequestHeader, HttpRequestParams
    from ._generated import HttpResponse as HttpHead


class HttpResponse(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class HttpStream:
    """A response whose body arrives in pieces: iterate over it. A slow reader slows the download.

    A lost connection ends it with `Interrupted`.
    """

    def __init__(self, connection: Connection, lease: Lease, head: HttpHead) -> None:
        self._connection = connection
        self._lease = lease
        self._done = False
        self.status: int = head["status"]
        self.headers: list[tuple[str, str]] = _headers(head)

    async def close(self) -> None:
        """Ends the request, at the server too."""
        self._done = True
        self._lease.end()
        self._connection.close_lease(self._lease)

    async def __aenter__(self) -> HttpStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> HttpStream:
        return self

    async def __anext__(self) -> bytes:
        while not self._done:
            item = await self._lease.next()
            if item is None:
                break
            ack: HttpAckParams = {"requestId": self._lease.id, "seq": item["seq"]}
            self._connection.notify("http/request/ack", ack)
            if item["done"]:
                self._done = True
                self._connection.forget_lease(self._lease)
                if item.get("error"):
                    raise ExecServerError(f"the response body is incomplete: {item['error']}")
            if data := b64decode(item["deltaBase64"]):
                return data
        raise StopAsyncIteration


class Http:
    """No request is made twice: a lost connection raises `Interrupted`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | str | None = None,
        timeout: float | None = None,
        follow_redirects: bool = True,
        header_env: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Makes a request and returns the whole response, whose body may have at most 47 MiB.

        `timeout` bounds the whole exchange, in seconds. `header_env` maps a header to an
        environment variable of the server, whose value is appended to that of the header."""
        lease = self._lease()
        params = _params(lease, method, url, headers, body, timeout, follow_redirects, header_env)
        try:
            result: HttpHead = await self._connection.open_lease(lease, "http/request", params)
        finally:
            self._connection.forget_lease(lease)
        return HttpResponse(result["status"], _headers(result), b64decode(result["bodyBase64"]))

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> HttpResponse:
        return await self.request("GET", url, headers=headers)

    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | str | None = None,
        timeout: float | None = None,
        follow_redirects: bool = True,
        header_env: Mapping[str, str] | None = None,
    ) -> HttpStream:
        """Sends a request and returns once the response head arrives; the body is a stream.

        `timeout` bounds the time until then, in seconds."""
        lease = self._lease()
        params = _params(lease, method, url, headers, body, timeout, follow_redirects, header_env)
        params["streamResponse"] = params["acks"] = True
        head: HttpHead = await self._connection.open_lease(lease, "http/request", params)
        return HttpStream(self._connection, lease, head)

    def _lease(self) -> Lease:
        request_id = self._connection.unique_id()
        return Lease(request_id, "http/request", ("http/cancel", {"requestId": request_id}))


def _params(
    lease: Lease,
    method: str,
    url: str,
    headers: Mapping[str, str] | None,
    body: bytes | str | None,
    timeout: float | None,
    follow_redirects: bool,
    header_env: Mapping[str, str] | None,
) -> HttpRequestParams:
    plain = dict(headers or {})
    secret = dict(header_env or {})
    listed: list[HttpRequestHeader] = [
        {"name": name, "value": value} for name, value in plain.items() if name not in secret
    ]
    for name, variable in secret.items():
        listed.append({"name": name, "value": plain.get(name, ""), "valueEnvVar": variable})
    params: HttpRequestParams = {
        "requestId": lease.id,
        "method": method,
        "url": url,
        "headers": listed,
        "redirectPolicy": "follow" if follow_redirects else "stop",
    }
    if body is not None:
        content = body.encode() if isinstance(body, str) else body
        params["bodyBase64"] = b64encode(content).decode()
    if timeout is not None:
        params["timeoutMs"] = max(1, int(timeout * 1000))
    return params


def _headers(result: HttpHead) -> list[tuple[str, str]]:
    return [(header["name"], header["value"]) for header in result["headers"]]
