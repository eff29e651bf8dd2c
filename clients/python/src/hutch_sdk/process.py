"""Commands in a sandbox: started, followed, written to, ended. A connection that breaks is taken up again where it broke: a command goes on
without its client, and the node keeps what it writes.

Underneath are calls of the Connect protocol to port 49983 of the sandbox (docs/e2b.md), as `hutch exec` makes them.
"""
from __future__ import annotations

import base64
import json
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .errors import CommandFailed, CommandTimeout, ConnectionLost, NotFound, SandboxEnded, Unavailable, api_error
from .http import Download, Http

if TYPE_CHECKING:
    from .types import Rights

ENVD = 49983
PING_SECONDS = 20  # of silence, after which the node sends a sign of life
PATIENCE_SECONDS = 30.0  # for a broken connection
KEEP_BYTES = 16 << 20  # of each stream that run() keeps
MESSAGE_BYTES = 64 << 20
INPUT_BYTES = 1 << 20
STATUS = {"invalid_argument": 400, "unauthenticated": 401, "permission_denied": 403, "not_found": 404, "already_exists": 409,
          "failed_precondition": 409, "resource_exhausted": 429, "unimplemented": 501, "unavailable": 503, "deadline_exceeded": 504}


class Inside:
    """The way to port 49983 of one sandbox."""

    def __init__(self, http: Http, sandbox: str, token: str | None):
        self.http, self.sandbox, self.token = http, sandbox, token

    def headers(self, user: str | None = None) -> dict[str, str]:
        h = {"E2b-Sandbox-Id": self.sandbox, "E2b-Sandbox-Port": str(ENVD)}
        if self.token:
            h["X-Access-Token"] = self.token
        if user:
            h["Authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
        return h

    def request(self, method: str, path: str, user: str | None = None, headers: Mapping[str, Any] | None = None, **more: Any) -> Download:
        return self.http.request(method, path, headers={**self.headers(user), **(headers or {})}, key=False, **more)

    def call(self, method: str, message: Any, user: str | None = None, repeatable: bool = False) -> Any:
        """A call with one answer: "filesystem.Filesystem/Stat"."""
        return json.loads(self.request("POST", "/" + method, user, body=message, repeatable=repeatable).read() or b"{}")

    def stream(self, method: str, message: Any, user: str | None = None, headers: Mapping[str, Any] | None = None) -> Download:
        data = json.dumps(message).encode()
        h = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", "Keepalive-Ping-Interval": PING_SECONDS, **(headers or {})}
        return self.request("POST", "/" + method, user, h, content=struct.pack(">BI", 0, len(data)) + data, repeatable=False)


@dataclass(frozen=True)
class Output:
    """Bytes that a command wrote. `offset` counts from the beginning of its stream."""

    stream: Literal["stdout", "stderr", "pty"]
    data: bytes
    offset: int


@dataclass
class Result:
    """How a command ended. `exit_code` is 128 + the number of the signal if one ended it, as shells say it."""

    exit_code: int
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    signal: int | None = None
    usage: dict[str, int] = field(default_factory=dict)
    death: dict[str, Any] | None = None
    denials: list[dict[str, Any]] = field(default_factory=list)
    generation: int | None = None
    omitted: dict[str, int] = field(default_factory=dict)

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def check(self) -> Result:
        """Itself; raises CommandFailed unless the exit code is 0."""
        if not self.ok:
            raise CommandFailed(self)
        return self


class Command:
    """A command that runs. Iterate over it for its output, or wait() for its end; only one of them at a time.

    wait() keeps what it is given to keep of each stream, 16 MiB unless you say otherwise; `result.omitted` counts the rest."""

    def __init__(self, inside: Inside, selector: dict[str, Any], answer: Download | None, user: str | None = None, *, terminal: bool = False,
                 timeout: float | None = None):
        self.inside, self.selector, self.user, self.answer, self.terminal, self.timeout = inside, selector, user, answer, terminal, timeout
        self.pid: int = selector.get("pid", 0)
        self.next: dict[str, int] = {"stdout": 0, "stderr": 0, "pty": 0}
        self.end: dict[str, Any] | None = None
        self.timed_out: str | None = None
        self.kept: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray(), "pty": bytearray()}

    # --- following it

    def message(self) -> dict[str, Any] | None:
        """The next message of the stream; None: its regular end."""
        assert self.answer
        flags, n = struct.unpack(">BI", self.answer.exactly(5))
        if n > MESSAGE_BYTES:
            raise ConnectionLost(f"a message of {n} bytes; at most {MESSAGE_BYTES} are expected")
        said = json.loads(self.answer.exactly(n) or b"{}")
        if not flags & 2:
            return said.get("event") or {}
        self.answer.close()
        error = said.get("error")
        if error and error.get("code") == "deadline_exceeded":
            self.timed_out = error.get("message", "the time of the command is over")
        elif error:
            raise api_error(STATUS.get(error.get("code"), 500), error)
        return None

    def take_up(self) -> None:
        """Opens the stream again, where it broke."""
        stop, pause = time.monotonic() + PATIENCE_SECONDS, 0.1
        while True:
            try:
                self.answer = self.inside.stream("process.Process/Connect", {"process": self.selector, "offsets": self.next}, self.user)
                return
            except SandboxEnded:
                raise
            except (ConnectionLost, Unavailable) as e:
                if time.monotonic() > stop:
                    raise ConnectionLost(f"the command could not be reached again within {PATIENCE_SECONDS:.0f} s: {e}") from e
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    def __iter__(self) -> Iterator[Output]:
        """Its output as it comes. After the last piece `end` says how the command ended."""
        while self.end is None and self.timed_out is None:
            try:
                if self.answer is None:
                    self.take_up()
                event = self.message()
            except ConnectionLost:
                if self.answer is None:  # not even taken up again
                    raise
                self.answer = None
                continue
            except NotFound as e:
                raise ConnectionLost(f"the connection broke, and the command is not there any more: {e.message}") from e
            if event is None:
                break
            if "start" in event:
                self.pid = event["start"]["pid"]
                self.selector = {"pid": self.pid}
            elif "data" in event:
                yield from self.pieces(event["data"])
            elif "end" in event:
                self.end = event["end"]
                if self.timeout and (self.end.get("death") or {}).get("cause") == "time_limit":
                    self.timed_out = f"the command took longer than {self.timeout} s"  # it was taken up again in between

    def pieces(self, data: dict[str, Any]) -> Iterator[Output]:
        for name in ("stdout", "stderr", "pty"):
            if name in data:
                part, at = base64.b64decode(data[name]), int(data.get("offset", self.next[name]))
                if at + len(part) <= self.next[name]:
                    continue  # of before the connection broke
                part = part[max(0, self.next[name] - at):]
                yield Output(name, part, max(at, self.next[name]))
                self.next[name] = max(at, self.next[name]) + len(part)

    def wait(self, *, keep: int = KEEP_BYTES, on_stdout: Callable[[str], None] | None = None,
             on_stderr: Callable[[str], None] | None = None) -> Result:
        """Its end, with what it wrote. Raises CommandTimeout if its time was over before."""
        show = {"stdout": on_stdout, "pty": on_stdout, "stderr": on_stderr}
        omitted: dict[str, int] = {}
        for piece in self:
            kept = self.kept[piece.stream]
            room = max(0, keep - len(kept))
            kept += piece.data[:room]
            if len(piece.data) > room:
                omitted[piece.stream] = omitted.get(piece.stream, 0) + len(piece.data) - room
            if call := show[piece.stream]:
                call(piece.data.decode("utf-8", "replace"))
        out, err = bytes(self.kept["stdout"] or self.kept["pty"]), bytes(self.kept["stderr"])
        if self.timed_out is not None:
            raise CommandTimeout(self.timed_out, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
        if self.end is None:
            raise ConnectionLost("the node ended the stream of the command without saying how the command ended")
        usage = dict(self.end.get("usage") or {})
        for name in ("stdout", "stderr", "pty"):
            if lost := usage.pop(name + "Omitted", 0):
                omitted[name] = omitted.get(name, 0) + lost
        death = self.end.get("death")
        signal = (death or {}).get("signal") if not self.end.get("exited", True) else None
        code = self.end.get("exitCode", 0) if signal is None else 128 + int(signal)
        return Result(code, out, err, signal, usage, death, self.end.get("denials") or [], self.end.get("generation"), omitted)

    # --- doing something with it

    def send(self, data: bytes | str) -> None:
        """Writes to its standard input, or to its terminal."""
        data = data.encode() if isinstance(data, str) else data
        name = "pty" if self.terminal else "stdin"
        for at in range(0, len(data), INPUT_BYTES):
            part = base64.b64encode(data[at:at + INPUT_BYTES]).decode()
            self.inside.call("process.Process/SendInput", {"process": self.who(), "input": {name: part}})

    def close_input(self) -> None:
        self.inside.call("process.Process/CloseStdin", {"process": self.who()})

    def kill(self, signal: Literal["KILL", "TERM", "HUP"] = "KILL") -> bool:
        """False if it had ended."""
        try:
            self.inside.call("process.Process/SendSignal", {"process": self.who(), "signal": "SIGNAL_SIG" + signal}, repeatable=True)
            return True
        except NotFound:
            return False

    def resize(self, cols: int, rows: int) -> None:
        """Of its terminal."""
        self.inside.call("process.Process/Update", {"process": self.who(), "pty": {"size": {"cols": cols, "rows": rows}}}, repeatable=True)

    def who(self) -> dict[str, Any]:
        return {"pid": self.pid} if self.pid else self.selector

    def close(self) -> None:
        """Stops following it. The command goes on."""
        if self.answer:
            self.answer.close()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(inside: Inside, command: str | Sequence[str], *, user: str | None, cwd: str | None, env: Mapping[str, str] | None, stdin: bool,
          pty: tuple[int, int] | None, timeout: float | None, rights: Rights | None, generation: bool) -> Command:
    """Starts a command. Returns when it runs; raises what the node says if it cannot."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    tag = "sdk-" + secrets.token_hex(8)  # by which it is found again if the answer is lost
    message: dict[str, Any] = {"process": {"cmd": argv[0], "args": argv[1:], "envs": dict(env or {})}, "stdin": stdin, "tag": tag}
    if cwd:
        message["process"]["cwd"] = cwd
    if pty:
        message["pty"] = {"size": {"cols": pty[0], "rows": pty[1]}}
    headers: dict[str, Any] = {"Hutch-Generation": "true" if generation else None}
    if rights is not None:
        headers["Hutch-Rights"] = json.dumps(rights)
    if timeout:
        headers["Connect-Timeout-Ms"] = max(1, int(timeout * 1000))
    stop = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = inside.stream("process.Process/Start", message, user, headers)
        try:
            return follow(Command(inside, {"tag": tag}, answer, user, terminal=bool(pty), timeout=timeout))
        except Unavailable:  # the node refused: nothing was started
            if time.monotonic() > stop:
                raise
        time.sleep(0.2)


def follow(command: Command) -> Command:
    """Reads the first message, which says that the command runs. If it does not come, the command is looked for by its tag."""
    try:
        event = command.message()
    except ConnectionLost:
        try:
            command.take_up()
            event = command.message()
        except NotFound as e:
            raise ConnectionLost("the connection broke before the command was seen to start; it may not have run") from e
    if event and "start" in event:
        command.pid = event["start"]["pid"]
        command.selector = {"pid": command.pid}
    elif command.timed_out is None:
        raise ConnectionLost("the node did not say that the command started")
    return command

