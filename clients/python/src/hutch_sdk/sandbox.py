"""A sandbox: commands, files, network, history and transactions."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import process, types
from .api import Api
from .errors import HutchError, NotFound
from .files import Files
from .http import ServerEvent
from .process import Command, Inside, Result

if TYPE_CHECKING:
    from .client import Hutch


class Network:
    """What the sandbox may reach. Every change is in force when the call returns."""

    def __init__(self, api: Api, sandbox: str):
        self.api, self.sandbox = api, sandbox

    def get(self) -> types.SandboxNetwork:
        return self.api.network_get(self.sandbox)

    def replace(self, document: types.GivenNetwork, *, secrets: Sequence[str] = (), expected_epoch: int | None = None) -> types.SandboxNetwork:
        """document: rules, or "public" or "off"."""
        body: types.NetworkReplaceBody = {"policy": document}
        if secrets:
            body["secrets"] = list(secrets)
        if expected_epoch is not None:
            body["expected_epoch"] = expected_epoch
        return self.api.network_replace(self.sandbox, body)

    def add(self, *rules: types.NetworkRule) -> types.SandboxNetwork:
        """Adds rules; one with the id of another replaces it."""
        return self.api.network_update(self.sandbox, {"add": list(rules)})

    def allow(self, *hosts: str, id: str | None = None, seconds: float | None = None, uses: int | None = None, ports: Sequence[int] = (),
              access: Literal["read-only", "read-write", "full"] | None = None, methods: Sequence[str] = (), paths: Sequence[str] = (),
              private: Sequence[str] = (), secrets: Sequence[str] = ()) -> str:
        """Grants these hosts and returns the id of the rule, which remove() takes. seconds: until when, by the clock of this
        machine. uses: so many requests."""
        if not hosts:
            raise HutchError("allow() needs a host, such as pypi.org or *.pypi.org")
        rule: dict[str, Any] = {"id": id or f"grant-{time.time_ns():x}", "hosts": list(hosts)}
        http = {k: list(v) for k, v in (("methods", methods), ("paths", paths)) if v}
        more = {"ports": list(ports), "access": access, "http": [http] if http else None, "private": list(private), "secrets": list(secrets),
                "uses": uses, "expires": int(time.time() + seconds) if seconds is not None else None}
        rule.update({k: v for k, v in more.items() if v})
        self.add(rule)  # type: ignore[arg-type]
        return rule["id"]

    def remove(self, *ids: str) -> types.SandboxNetwork:
        return self.api.network_update(self.sandbox, {"remove": list(ids)})

    def check(self, url: str, method: str = "GET") -> types.NetworkCheckAnswer:
        """Would this request be let out? Nothing is sent."""
        return self.api.network_check(self.sandbox, {"url": url, "method": method})

    def denials(self, since: int | None = None) -> types.NetworkDenialsAnswer:
        """What was refused, each with the smallest rule that would allow it. `next` is the since of the next call."""
        return self.api.network_denials(self.sandbox, since=since)


class History:
    """Generations of the sandbox's files: after each command if it was made with history=True, and when asked for."""

    def __init__(self, api: Api, sandbox: str):
        self.api, self.sandbox = api, sandbox

    def generations(self) -> list[types.Generation]:
        return self.api.history_get(self.sandbox)["generations"]

    def save(self, label: str = "") -> types.Generation:
        """Keeps one more, now."""
        return self.api.history_save(self.sandbox, {"command": label})

    def diff(self, start: int | None = None, end: int | None = None, path: str | None = None) -> types.Diff:
        """What changed from one generation (the newest) to another (to now)."""
        return self.api.history_diff(self.sandbox, from_=start, to=end, path=path)

    def read(self, generation: int, path: str) -> bytes:
        """A file as it was."""
        with self.api.history_file(self.sandbox, generation, path=path) as answer:
            return answer.read()

    def undo(self, to: int | None = None) -> types.Applied:
        """Takes the files back: to before the last command, or to a generation. It can be undone, too."""
        return self.api.history_undo(self.sandbox, {} if to is None else {"to": to})


class Trial:
    """A command that ran on a copy of the files. `result` has its output and its changes; nothing counts before commit()."""

    def __init__(self, api: Api, sandbox: str, result: types.TransactionResult):
        self.api, self.sandbox, self.result, self.id = api, sandbox, result, result["id"]

    @property
    def exit_code(self) -> int:
        return self.result.get("exitCode", 128 + self.result.get("signal", 0))

    @property
    def stdout(self) -> str:
        return self.result["stdout"]

    @property
    def stderr(self) -> str:
        return self.result["stderr"]

    @property
    def changes(self) -> list[types.Change]:
        return self.result["changes"]

    def commit(self) -> types.Applied:
        """Conflict, with the paths in `body["conflicts"]`, if one of them changed in the sandbox meanwhile; then nothing is applied."""
        return self.api.tx_commit(self.sandbox, self.id)

    def discard(self) -> None:
        self.api.tx_discard(self.sandbox, self.id)


class Sandbox:
    """Made by Hutch.create() or Hutch.connect(). Used in `with`, it is killed at the end."""

    def __init__(self, hutch: Hutch, made: types.Sandbox):
        self.hutch, self.api, self.id, self.made = hutch, hutch.api, made["sandboxID"], made
        self.inside = Inside(hutch.http, self.id, made.get("envdAccessToken"))
        self.files = Files(self.inside)
        self.network = Network(self.api, self.id)
        self.history = History(self.api, self.id)

    # --- commands

    def start(self, command: str | Sequence[str], *, user: str | None = None, cwd: str | None = None, env: Mapping[str, str] | None = None,
              stdin: bool = False, pty: tuple[int, int] | None = None, timeout: float | None = None, rights: types.Rights | None = None,
              generation: bool = False) -> Command:
        """Starts a command and returns while it runs. A text is for /bin/sh -c, a list is program and arguments. timeout: seconds,
        then it is killed. rights: what it may less than others (docs/rights.md). generation: keep the files after it."""
        return process.start(self.inside, command, user=user, cwd=cwd, env=env, stdin=stdin, pty=pty, timeout=timeout, rights=rights,
                             generation=generation)

    def run(self, command: str | Sequence[str], *, stdin: bytes | str | None = None, check: bool = False, keep: int = process.KEEP_BYTES,
            on_stdout: Callable[[str], None] | None = None, on_stderr: Callable[[str], None] | None = None, user: str | None = None,
            cwd: str | None = None, env: Mapping[str, str] | None = None, timeout: float | None = None, rights: types.Rights | None = None,
            generation: bool = False) -> Result:
        """Runs a command to its end. check: raise CommandFailed unless it ends with 0. CommandTimeout if its time is over."""
        running = self.start(command, user=user, cwd=cwd, env=env, stdin=stdin is not None, timeout=timeout, rights=rights, generation=generation)
        feeder = threading.Thread(target=feed, args=(running, stdin), daemon=True) if stdin is not None else None
        if feeder:
            feeder.start()
        with running:
            result = running.wait(keep=keep, on_stdout=on_stdout, on_stderr=on_stderr)
        if feeder:
            feeder.join(5)
        return result.check() if check else result

    def attach(self, pid: int) -> Command:
        """Follows a command that runs already, or has just ended, from the first byte that the sandbox still has."""
        return Command(self.inside, {"pid": pid}, None)

    def commands(self) -> list[dict[str, Any]]:
        """Those that run: pid, and config with cmd and args."""
        return self.inside.call("process.Process/List", {}, repeatable=True).get("processes", [])

    # --- transactions

    def try_run(self, command: str, *, user: str | None = None, cwd: str | None = None, env: Mapping[str, str] | None = None,
                timeout: int | None = None, rights: types.Rights | None = None) -> Trial:
        """Runs a command on a copy of the files. Look at `changes`, then commit() or discard()."""
        given = {"command": command, "user": user, "cwd": cwd, "envs": dict(env) if env else None, "timeout": timeout, "rights": rights}
        wait = (timeout or 60) + self.hutch.http.timeout  # the answer comes when the command has ended
        http = self.hutch.http.patient(wait)
        try:
            return Trial(self.api, self.id, Api(http).tx_run(self.id, {k: v for k, v in given.items() if v is not None}))  # type: ignore[arg-type]
        finally:
            http.close()

    def trials(self) -> list[types.Transaction]:
        """Those that wait for a decision."""
        return self.api.tx_list(self.id)

    # --- life

    def info(self) -> types.SandboxDetail:
        return self.api.sandbox_get(self.id)

    def set_timeout(self, seconds: int) -> None:
        """It ends so many seconds from now."""
        self.api.sandbox_set_timeout(self.id, {"timeout": seconds})

    def pause(self, *, memory: bool = True) -> None:
        """Lets it stand still. connect() or traffic lets it go on. memory=False: only its files are kept."""
        self.api.sandbox_pause(self.id, {"memory": memory})

    def fork(self, count: int = 1, *, timeout: int = 300) -> list[Sandbox]:
        """Sandboxes with the files of this one."""
        forks: list[Sandbox] = []
        for f in self.api.sandbox_fork(self.id, {"count": count, "timeout": timeout}):
            if "sandbox" not in f:
                for made in forks:
                    made.kill()
                raise HutchError(f"a fork was not made: {f.get('error', {}).get('message', 'unknown')}")
            forks.append(Sandbox(self.hutch, f["sandbox"]))
        return forks

    def snapshot(self, name: str | None = None) -> types.Snapshot:
        """Keeps its files as a template."""
        return self.api.snapshot_create(self.id, {"name": name} if name else {})

    def kill(self) -> bool:
        """False if it had ended."""
        try:
            self.api.sandbox_kill(self.id)
            return True
        except NotFound:
            return False

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # --- ports and events

    def url(self, port: int) -> str:
        """Of a port. It is private unless the sandbox was made with publicPorts or publicTraffic."""
        return self.api.ports_get(self.id)["url"].replace("{port}", str(port))

    def link(self, port: int, *, seconds: int = 3600, path: str = "/") -> str:
        """A signed address that opens one port for a while."""
        return self.api.port_link(self.id, port, {"expiresIn": seconds, "path": path})["url"]

    def events(self, *, after: int | None = None, follow: bool = True) -> Iterator[ServerEvent]:
        """What happens to it: created, exec_ended, denial, network.denied, died and others (docs/api.md)."""
        return self.api.sandbox_events(self.id, after=after, follow=follow)


def feed(command: Command, data: bytes | str) -> None:
    """Writes all of it to a command that may end before it has read it."""
    try:
        command.send(data)
        command.close_input()
    except HutchError:
        pass  # the command has ended; its result says how

