"""HTTP to a node: connections that are used again, repetition of what may be repeated, errors as exceptions. Standard library only.

An Http may be used by many threads at once; a Download, an iterator of lines or events by one.
"""
from __future__ import annotations

import copy
import http.client
import ipaddress
import json
import select
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Generic, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from .errors import ConnectionLost, HutchError, RateLimited, Unavailable, api_error

Content = bytes | BinaryIO | Iterable[bytes]
T = TypeVar("T")
BROKEN = (OSError, http.client.HTTPException)
IDLE_SECONDS, IDLE_MOST = 30.0, 16  # connections that wait for the next request
ERROR_BYTES = 1 << 20
LINE_BYTES = 64 << 20  # of a line or an event
PAUSE_MOST = 5.0


def quoted(text: object) -> str:
    return quote(str(text), safe="")


class Page(list[T], Generic[T]):
    """A list with `next_token`: what the call for the next page takes, None on the last one."""

    next_token: str | None = None


@dataclass(frozen=True)
class ServerEvent:
    id: int | None
    type: str
    data: Any


class NotSent(OSError):
    """No connection was made, so that nothing can have happened."""


class Download:
    """Bytes of an answer: iterate over it, or read() all. Close it, or use it in `with`, if it is not read to its end."""

    def __init__(self, owner: Http, connection: http.client.HTTPConnection, response: http.client.HTTPResponse):
        self.owner, self.response = owner, response
        self.connection: http.client.HTTPConnection | None = connection
        self.status, self.headers = response.status, response.headers

    def read(self, n: int = -1) -> bytes:
        try:
            data = self.response.read(None if n < 0 else n)
        except BROKEN as e:
            self.close()
            raise ConnectionLost(f"the answer broke off: {e}") from e
        if self.response.isclosed():
            self.release()
        return data

    def exactly(self, n: int) -> bytes:
        """n bytes; ConnectionLost if there are fewer."""
        data = self.read(n)
        while len(data) < n:
            more = self.read(n - len(data))
            if not more:
                self.close()
                raise ConnectionLost("the answer broke off")
            data += more
        return data

    def readline(self) -> bytes:
        try:
            return self.response.readline(LINE_BYTES)
        except BROKEN as e:
            self.close()
            raise ConnectionLost(f"the answer broke off: {e}") from e

    def __iter__(self) -> Iterator[bytes]:
        try:
            while data := self.read(1 << 16):
                yield data
        finally:
            self.close()

    def release(self) -> None:
        """It was read to its end: the connection can be used again."""
        if self.connection is not None:
            connection, self.connection = self.connection, None
            self.owner.put_back(connection, not self.response.will_close)

    def close(self) -> None:
        if self.connection is not None:
            self.response.close()
            connection, self.connection = self.connection, None
            connection.close()

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Http:
    """url: of the node. key: of its API. ca: a file with the only authority that counts. plain: allow a key over http:// to another
    machine. timeout: seconds without a byte. retries: of requests that may be repeated."""

    def __init__(self, url: str, key: str, *, ca: str | None = None, timeout: float = 60.0, retries: int = 4, plain: bool = False):
        at = urlsplit(url)
        if at.scheme not in ("http", "https") or not at.hostname or at.path.rstrip("/") or at.query:
            raise HutchError(f"{url!r} is not the URL of a node; it looks like https://node.example or http://127.0.0.1:7070")
        if at.scheme == "http" and not plain and not is_this_machine(at.hostname):
            raise HutchError(f"{url} would send the key in clear to another machine; use https://, or plain=True if the network is trusted")
        self.host, self.port, self.timeout, self.retries, self.key = at.hostname, at.port, timeout, retries, key
        self.tls = ssl.create_default_context(cafile=ca) if at.scheme == "https" else None
        self.idle: list[tuple[float, http.client.HTTPConnection]] = []
        self.lock = threading.Lock()

    # --- connections

    def connection(self) -> http.client.HTTPConnection:
        """One that waits and that the node has not closed, or a new one."""
        while True:
            with self.lock:
                if not self.idle:
                    break
                since, c = self.idle.pop()
            if c.sock and time.monotonic() - since < IDLE_SECONDS and not select.select([c.sock], [], [], 0)[0]:
                return c
            c.close()
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout, context=self.tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)

    def put_back(self, c: http.client.HTTPConnection, alive: bool) -> None:
        with self.lock:
            if alive and len(self.idle) < IDLE_MOST:
                self.idle.append((time.monotonic(), c))
                return
        c.close()

    def close(self) -> None:
        with self.lock:
            idle, self.idle = self.idle, []
        for _, c in idle:
            c.close()

    def patient(self, timeout: float) -> Http:
        """The same way with another timeout and connections of its own; close() it."""
        other = copy.copy(self)
        other.timeout, other.idle, other.lock = timeout, [], threading.Lock()
        return other

    # --- requests

    def send(self, method: str, path: str, headers: dict[str, str], body: Content | None) -> Download:
        """One attempt. An answer that is an error raises."""
        c = self.connection()
        try:
            if c.sock is None:
                try:
                    c.connect()
                except ssl.SSLCertVerificationError:
                    raise
                except OSError as e:
                    raise NotSent(str(e)) from e
            try:
                c.request(method, path, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the node may have answered while it was still being sent to
            r = c.getresponse()
        except BaseException:
            c.close()
            raise
        answer = Download(self, c, r)
        if 200 <= r.status < 300:
            return answer
        try:
            text = answer.read(ERROR_BYTES)
        except ConnectionLost:
            text = b""
        answer.close()
        try:
            said: Any = json.loads(text)
        except ValueError:
            said = text.decode("utf-8", "replace").strip()[:2000]
        after = r.headers.get("Retry-After", "")
        raise api_error(r.status, said, float(after) if after.isdigit() else None)

    def request(self, method: str, path: str, *, query: dict[str, Any] | None = None, headers: dict[str, Any] | None = None, body: Any = None,
                content: Any = None, key: bool = True, repeatable: bool | None = None) -> Download:
        """body is sent as JSON, content as it is. A request is repeated if no connection was made or the node asks for it (429 and 503 with
        Retry-After); GET, PUT, DELETE and what has an Idempotency-Key also after a broken connection."""
        given = {k: text_of(v) for k, v in (query or {}).items() if v is not None}
        if given:
            path += ("&" if "?" in path else "?") + urlencode(given)
        h = {k: str(v) for k, v in (headers or {}).items() if v is not None}
        if key:
            h["X-API-KEY"] = self.key
        if isinstance(body, (bytes, bytearray)) or (body is not None and not isinstance(body, (dict, list, str))):
            content, body = body, None  # a route that takes JSON or bytes
        if body is not None:
            h["Content-Type"], content = "application/json", json.dumps(body).encode()
        elif content is not None:
            h.setdefault("Content-Type", "application/octet-stream")
        if repeatable is None:
            repeatable = method in ("GET", "PUT", "DELETE") or "Idempotency-Key" in h
        whole = content is None or isinstance(content, (bytes, bytearray))  # else it can be sent only once
        attempt = 0
        while True:
            attempt += 1
            again = whole and attempt <= self.retries
            try:
                return self.send(method, path, h, content)
            except (RateLimited, Unavailable) as e:
                if not again or not (repeatable or e.retry_after is not None):
                    raise
                pause = e.retry_after if e.retry_after is not None else 0.1 * 2 ** attempt
            except NotSent as e:
                if not again:
                    raise ConnectionLost(f"{method} {path}: {e}") from e
                pause = 0.1 * 2 ** attempt
            except (TimeoutError, ssl.SSLCertVerificationError) as e:
                raise ConnectionLost(f"{method} {path}: {e}") from e
            except BROKEN as e:
                if not (again and repeatable):
                    raise ConnectionLost(f"{method} {path}: {type(e).__name__}: {e}") from e
                pause = 0.1 * 2 ** attempt
            time.sleep(min(pause, PAUSE_MOST))

    # --- forms of answers

    def none(self, method: str, path: str, **more: Any) -> None:
        self.request(method, path, **more).read()

    def json(self, method: str, path: str, **more: Any) -> Any:
        return json.loads(self.request(method, path, **more).read())

    def page(self, method: str, path: str, **more: Any) -> Any:
        answer = self.request(method, path, **more)
        page: Page[Any] = Page(json.loads(answer.read()))
        page.next_token = answer.headers.get("X-Next-Token")
        return page

    def download(self, method: str, path: str, **more: Any) -> Download:
        return self.request(method, path, **more)

    def lines(self, method: str, path: str, **more: Any) -> Iterator[Any]:
        """The values of an answer with one per line. The request is sent by the first step."""
        with self.request(method, path, **more) as answer:
            while line := answer.readline():
                if line.strip():
                    yield json.loads(line)

    def events(self, method: str, path: str, **more: Any) -> Iterator[ServerEvent]:
        """Server-sent events. The request is sent by the first step."""
        with self.request(method, path, headers={"Accept": "text/event-stream", **(more.pop("headers", None) or {})}, **more) as answer:
            field: dict[str, str] = {}
            while line := answer.readline():
                name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
                if name:
                    field[name] = value.removeprefix(" ")
                elif "data" in field:
                    number = field.get("id", "")
                    yield ServerEvent(int(number) if number.isdigit() else None, field.get("event", "message"), json.loads(field["data"]))
                    field = {}
                # A line that begins with a colon keeps the connection alive.


def text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
