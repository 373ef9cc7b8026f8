"""Paths on the wire are `file:` URIs, whose percent-encoding carries any bytes."""

from __future__ import annotations

import os
import posixpath
from urllib.parse import quote_from_bytes, unquote_to_bytes

#: A path on the machine; a relative one is relative to the machine's working directory.
AnyPath = str | bytes | os.PathLike[str]


def to_uri(path: AnyPath, base: str = "/") -> str:
    text = os.fsdecode(path)
    return "file://" + quote_from_bytes(os.fsencode(posixpath.join(base, text)))


def from_uri(uri: str) -> str:
    """Bytes that are not UTF-8 become surrogates, as in `os.fsdecode`."""
    return os.fsdecode(unquote_to_bytes(uri.removeprefix("file://")))
