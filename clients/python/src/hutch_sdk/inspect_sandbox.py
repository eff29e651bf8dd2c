"""A sandbox environment for Inspect: each sample gets a sandbox of Hutch.

    pip install './clients/python[inspect]'

    @task
    def mine():
        return Task(..., sandbox="hutch")                              # or ("hutch", "sandbox.yaml"), or
                                                                       # SandboxEnvironmentSpec("hutch", HutchConfig(template="my-template"))

The node is that of HUTCH_URL and HUTCH_API_KEY. A sample's sandbox ends with it; Ctrl-C ends those of a run, and what is left over ends by itself after
`timeout` seconds.
"""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, overload

import anyio.to_thread
import yaml
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from .client import Hutch
from .errors import ApiError, BadRequest, CommandTimeout, Conflict, Forbidden, HutchError, NotFound, SandboxEnded, Unauthenticated
from .sandbox import Sandbox

T = TypeVar("T")
LABEL = "inspect"
KILL = 'for e in $(grep -lsF "HUTCH_INSPECT=$1" /proc/[0-9]*/environ); do p=${e#/proc/}; kill -9 "${p%%/*}" 2>/dev/null; done'


class HutchConfig(BaseModel):
    """What a sample's sandbox is made with. network: rules, "public" or "off"; without it there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    template: str = "base"
    network: Any = None
    memory_mb: int | None = None
    env: dict[str, str] | None = None
    secrets: tuple[str, ...] = ()
    timeout: int = 3600


def config_of(given: SandboxEnvironmentConfigType | None) -> HutchConfig:
    if isinstance(given, HutchConfig):
        return given
    if isinstance(given, str):
        return HutchConfig(**(yaml.safe_load(Path(given).read_text()) or {}))
    return HutchConfig()


def refused(e: ApiError, what: str) -> Exception:
    """The exception that Inspect expects for what the node says of a path or a program."""
    text = f"{what}: {e.message}"
    if isinstance(e, NotFound):
        return FileNotFoundError(text)
    if isinstance(e, (BadRequest, Conflict)) and "is a directory" in e.message.lower():
        return IsADirectoryError(text)
    if isinstance(e, Forbidden) or "permission denied" in e.message.lower():
        return PermissionError(text)
    return e


async def in_thread(fn: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(fn, abandon_on_cancel=True)


@sandboxenv(name="hutch")
class HutchSandboxEnvironment(SandboxEnvironment):
    def __init__(self, sandbox: Sandbox):
        super().__init__()
        self.sandbox = sandbox
        self.user: str | None = None  # the template's; not asked for yet

    @classmethod
    def config_files(cls) -> list[str]:
        return ["sandbox.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return HutchConfig(**config)

    @classmethod
    async def sample_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        c = config_of(config)
        more: dict[str, Any] = {"memoryMB": c.memory_mb} if c.memory_mb else {}
        hutch = Hutch()
        made = await in_thread(lambda: hutch.create(c.template, timeout=c.timeout, env=c.env, network=c.network, secrets=c.secrets,
                                                    metadata={LABEL: task_name[:200]}, **more))
        return {"default": cls(made)}

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, environments: dict[str, SandboxEnvironment],
                             interrupted: bool) -> None:
        with anyio.CancelScope(shield=True):
            for e in environments.values():
                sandbox = e.as_type(cls).sandbox
                await in_thread(sandbox.kill)
                sandbox.hutch.close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """`inspect sandbox cleanup hutch [ID]`: ends sandboxes that an interrupted run left."""

        def clean() -> None:
            with Hutch() as hutch:
                for s in list(hutch.sandboxes()):
                    if LABEL in (s.get("metadata") or {}) and id in (None, s["sandboxID"]):
                        hutch.connect(s["sandboxID"]).kill()

        await in_thread(clean)

    # --- commands

    async def exec(self, cmd: list[str], input: str | bytes | None = None, cwd: str | None = None, env: dict[str, str] | None = None,
                   user: str | None = None, timeout: int | None = None, timeout_retry: bool = True, concurrency: bool = True) -> ExecResult[str]:
        """A command whose time is over is killed with everything that it started. Output above the limit is an error."""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        tries = [timeout, *([min(timeout, 60), min(timeout, 30)] if timeout and timeout_retry else [])]
        for seconds in tries:
            try:
                return await in_thread(lambda s=seconds: self.run(cmd, input, cwd, env, user, s, limit))  # type: ignore[misc]
            except TimeoutError:
                if seconds is tries[-1]:
                    raise
        raise AssertionError

    def run(self, cmd: list[str], data: str | bytes | None, cwd: str | None, env: dict[str, str] | None, user: str | None, timeout: int | None,
            limit: int) -> ExecResult[str]:
        mark = f"{id(cmd):x}-{timeout}"
        try:
            r = self.sandbox.run(cmd, stdin=data, cwd=cwd, env={**(env or {}), **({"HUTCH_INSPECT": mark} if timeout else {})}, user=user,
                                 timeout=timeout, keep=limit + 1)
        except CommandTimeout as e:
            self.sandbox.run(["/bin/sh", "-c", KILL, "sh", mark], user="root")
            raise TimeoutError(str(e)) from e
        except (NotFound, BadRequest, Forbidden, Unauthenticated) as e:
            error = refused(e, " ".join(cmd)[:200])
            if isinstance(error, PermissionError):
                raise error from e
            return ExecResult(False, 127 if isinstance(e, NotFound) else 126, "", e.message)
        except SandboxEnded as e:
            raise ConnectionError(f"the sandbox has ended: {e.message}") from e
        if len(r.stdout_bytes) > limit or len(r.stderr_bytes) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, r.stdout[:limit])
        return ExecResult(r.ok, r.exit_code, r.stdout, r.stderr)

    # --- files

    def check_mode(self, file: str, bit: int) -> None:
        """The file API works with more rights than the user of the sandbox, for whom a file may be closed."""
        e = self.sandbox.files.stat(file)
        if self.user is None:
            self.user = self.sandbox.run(["id", "-un"], check=True).stdout.strip()
        if e.type == "file" and self.user != "root" and not e.mode & (bit << 6 if e.owner == self.user else bit):
            raise PermissionError(f"{file}: permission denied")

    async def write_file(self, file: str, contents: str | bytes) -> None:
        def write() -> None:
            try:
                self.check_mode(file, 2)
            except NotFound:
                pass
            self.sandbox.files.write(file, contents)

        try:
            await in_thread(write)
        except ApiError as e:
            raise refused(e, file) from e

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> Union[str, bytes]:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE

        def read() -> bytes:
            self.check_mode(file, 4)
            with self.sandbox.files.open(file) as answer:
                return answer.read(limit + 1)

        try:
            data = await in_thread(read)
        except ApiError as e:
            raise refused(e, file) from e
        except HutchError as e:
            raise ConnectionError(str(e)) from e
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data
