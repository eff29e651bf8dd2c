"""A backend for deepagents: its files and commands are those of a sandbox of Hutch.

    from deepagents import create_deep_agent
    from hutch_sdk import Hutch
    from hutch_sdk.deepagents import HutchBackend

    with Hutch() as hutch, hutch.create("base") as sandbox:
        agent = create_deep_agent(model=..., backend=HutchBackend(sandbox))

ls, read, write, edit and glob are calls of the file API: no process is started for them, and the sandbox needs no Python. grep starts the
sandbox's grep, without a shell.
"""
from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import Iterator

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileInfo,
    FileOperationError,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    SandboxBackendProtocol,
    WriteResult,
)
from deepagents.backends.sandbox import MAX_BINARY_BYTES, MAX_OUTPUT_BYTES, TRUNCATION_MSG
from deepagents.backends.utils import compile_grep_include_glob

from .errors import ApiError, BadRequest, CommandTimeout, Conflict, Forbidden, NotFound, RateLimited, Unauthenticated
from .files import Entry
from .http import Download
from .process import Command
from .sandbox import Sandbox

COUNT_BYTES = 1 << 20  # a file up to this size is read to its end, for the number of its lines
EDIT_BYTES = 16 << 20
GREP_BYTES, GREP_SECONDS = 8 << 20, 15
GLOB_MOST, GLOB_SECONDS = 10_000, 5.0
DEPTH = 64
PRUNED = ("/proc", "/sys", "/dev")  # of a search that begins at /
# Never text for a model, whatever bytes are in it.
BINARY = frozenset(("png jpeg jpg webp gif heic heif mp4 mpeg mov avi flv mpg webm wmv 3gpp mkv mp3 wav aiff aac ogg flac pdf ppt pptx").split())


def reason(e: ApiError) -> FileOperationError | str:
    """The word of deepagents for what went wrong with a path, or what the node says."""
    if isinstance(e, NotFound):
        return "file_not_found"
    if isinstance(e, (Forbidden, Unauthenticated)):
        return "permission_denied"
    if isinstance(e, (BadRequest, Conflict)):
        return "is_directory" if "is a directory" in e.message.lower() else "invalid_path"
    return e.message


def words(e: ApiError, path: str) -> str:
    return f"'{path}' not found" if isinstance(e, NotFound) else f"'{path}': {e.message}"


class Raw(io.RawIOBase):
    """A Download as a file, so that io decodes it."""

    def __init__(self, answer: Download):
        self.answer = answer

    def readable(self) -> bool:
        return True

    def readinto(self, space: memoryview) -> int:  # type: ignore[override]
        data = self.answer.read(len(space))
        space[:len(data)] = data
        return len(data)


def decodes(head: bytes) -> bool:
    """Is the beginning of a file text? A character may be cut at its end."""
    try:
        head.decode()
    except UnicodeDecodeError as e:
        return e.reason == "unexpected end of data" and e.start >= len(head) - 3
    return True


class HutchBackend(SandboxBackendProtocol):
    """timeout: seconds of a command for which the agent gives none. output_bytes: what is kept of the output of one. The sandbox is yours:
    nothing here ends it."""

    def __init__(self, sandbox: Sandbox, *, timeout: int = 1800, output_bytes: int = 4 << 20, grep_exclude_dirs: tuple[str, ...] = (".git",)):
        self.sandbox, self.timeout, self.output_bytes, self.grep_exclude_dirs = sandbox, timeout, output_bytes, grep_exclude_dirs

    @property
    def id(self) -> str:
        return self.sandbox.id

    # --- commands

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs it in /bin/sh; stdout and stderr as they came. Exit code 124 if its time is over."""
        seconds = self.timeout if timeout is None else timeout
        out, cut = bytearray(), False
        try:
            running = self.sandbox.start(command, timeout=seconds or None)
        except CommandTimeout as e:
            return ExecuteResponse(output=str(e), exit_code=124)
        with running:
            for piece in running:
                room = self.output_bytes - len(out)
                out += piece.data[:max(0, room)]
                cut |= len(piece.data) > room
        text = out.decode("utf-8", "replace")
        if running.timed_out is not None:
            return ExecuteResponse(output=f"{text}\n[the command took longer than {seconds} s and was killed]", exit_code=124, truncated=cut)
        end = running.end or {}
        if end.get("exited", True):
            code = end.get("exitCode")
        else:
            death = end.get("death") or {}
            code = 128 + int(death.get("signal", 0))
            text += f"\n[killed: {death.get('cause', 'signal')}]" if death.get("cause") not in (None, "signal") else ""
        lost = (end.get("usage") or {}).get("stdoutOmitted") or (end.get("usage") or {}).get("stderrOmitted")
        return ExecuteResponse(output=text, exit_code=code, truncated=cut or bool(lost))

    # --- files

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self.upload(path, content)) for path, content in files]

    def upload(self, path: str, content: bytes) -> FileOperationError | str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self.sandbox.files.write(path, content)
        except ApiError as e:
            return reason(e)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self.download(path) for path in paths]

    def download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self.sandbox.files.read(path))
        except ApiError as e:
            return FileDownloadResponse(path=path, error=reason(e))

    def ls(self, path: str) -> LsResult:
        try:
            entries = self.sandbox.files.entries(path)
        except ApiError as e:
            return LsResult(error=f"Path {words(e, path)}")
        return LsResult(entries=[info(e) for e in sorted(entries, key=lambda e: e.path)])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """A page of lines, of which only what is needed is fetched; other than text as base64, whole."""
        try:
            with self.sandbox.files.open(file_path) as answer:
                return page(answer, file_path, max(int(offset), 0), max(int(limit), 0))
        except ApiError as e:
            return ReadResult(error=f"File {words(e, file_path)}")

    def write(self, file_path: str, content: str) -> WriteResult:
        try:
            self.sandbox.files.write(file_path, content.encode())
        except ApiError as e:
            return WriteResult(error=f"Failed to write file {words(e, file_path)}")
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:  # noqa: FBT001, FBT002
        """Replaces exact text. A file with CRLF is edited as the agent saw it, with LF, and stays one with CRLF."""
        if not old_string:
            return EditResult(error="Error: old_string must not be empty; use write to make a file")
        try:
            with self.sandbox.files.open(file_path) as answer:
                raw = answer.read(EDIT_BYTES + 1)
            if len(raw) > EDIT_BYTES:
                return EditResult(error=f"Error: File '{file_path}' is larger than {EDIT_BYTES} bytes")
            text = raw.decode()
        except UnicodeDecodeError:
            return EditResult(error=f"Error: File '{file_path}' is not a text file")
        except ApiError as e:
            return EditResult(error=f"Error: File {words(e, file_path)}")
        for change in (lambda s: s, lambda s: s.replace("\r\n", "\n").replace("\n", "\r\n"), lambda s: s.replace("\r\n", "\n")):
            old, new = change(old_string), change(new_string)
            count = text.count(old)
            if count:
                break
        if count == 0:
            return EditResult(error=f"Error: String not found in file: '{old_string}'")
        if count > 1 and not replace_all:
            return EditResult(error=f"Error: String '{old_string}' appears multiple times ({count}). Use replace_all=True to replace all occurrences.")
        written = self.write(file_path, text.replace(old, new))
        return EditResult(error=written.error) if written.error else EditResult(path=file_path, occurrences=count)

    def delete(self, file_path: str) -> DeleteResult:
        try:
            self.sandbox.files.stat(file_path)
            self.sandbox.files.remove(file_path)
        except ApiError as e:
            return DeleteResult(error=f"Error: {words(e, file_path)}")
        return DeleteResult(path=file_path)

    # --- searching

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None) -> GrepResult:
        """Lines with this text, as it is, in text files below path; not in .git unless the search begins there."""
        try:
            wanted = compile_grep_include_glob(glob) if glob else None
            root = self.sandbox.files.stat(path or ".")
        except ValueError as e:
            return GrepResult(error=str(e))
        except ApiError as e:
            return GrepResult(error=f"Path {words(e, path or '.')}")
        options = [f"--exclude-dir={name}" for name in self.grep_exclude_dirs if name != root.name]
        if glob and re.fullmatch(r"[\w.*?-]+", glob):
            options.append(f"--include={glob}")  # a superset of what `wanted` keeps
        # The first form is GNU's; a smaller grep knows the second.
        for argv in (["grep", "-rHnFIZ", *options], ["grep", "-rHnF"]):
            try:
                command = self.sandbox.start([*argv, "-e", pattern, "--", root.path], timeout=GREP_SECONDS)
                with command:
                    found = matches(command, root, wanted, max_count)
                    if found.truncated:
                        command.kill()
            except CommandTimeout:
                return GrepResult(matches=[], truncated=True)
            except ApiError as e:
                return GrepResult(error=f"grep: {e.message}")
            code = (command.end or {}).get("exitCode", 0)
            if code < 2 or found.matches or found.truncated:
                return found
        return GrepResult(error=f"Path '{root.path}': {found.error or f'grep ended with {code}'}")

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Regular files below path whose name or path fits, as absolute paths."""
        try:
            wanted = compile_grep_include_glob(pattern)
            root = self.sandbox.files.stat(path or "/").path
            segments = pattern.strip("/").split("/")
            depth = len(segments) if "/" in pattern and "**" not in segments and "{" not in pattern else DEPTH
            files, cut = self.below(root, min(depth, DEPTH))
        except ValueError as e:
            return GlobResult(error=str(e))
        except ApiError as e:
            return GlobResult(error=f"Path {words(e, path or '/')}")
        below = len(root.rstrip("/")) + 1
        found = sorted((info(e) for e in files if wanted(e.path[below:])), key=lambda i: i["path"])
        cut |= len(found) > GLOB_MOST
        return GlobResult(matches=found[:GLOB_MOST], truncated=cut, truncation_reason="budget" if cut else None)

    def below(self, root: str, depth: int) -> tuple[list[Entry], bool]:
        """The files below a directory, and whether there may be more: of a tree that is too large for one answer, as many as come in time."""
        if root != "/":
            try:
                return [e for e in self.sandbox.files.entries(root, depth=depth) if e.type == "file"], False
            except RateLimited:
                pass  # too many for one answer
        files, todo, stop = [], [(root, depth)], time.monotonic() + GLOB_SECONDS
        while todo:
            if time.monotonic() > stop:
                return files, True
            folder, left = todo.pop(0)
            try:
                entries = self.sandbox.files.entries(folder)
            except (NotFound, Forbidden, RateLimited):
                if folder == root:
                    raise
                continue  # removed meanwhile, or not for this user
            files += [e for e in entries if e.type == "file"]
            if left > 1:
                todo += [(e.path, left - 1) for e in entries if e.type == "directory" and e.path not in PRUNED]
        return files, False


def info(e: Entry) -> FileInfo:
    return {"path": e.path, "is_dir": e.type == "directory", "size": e.size, "modified_at": e.modified}


def binary(answer: Download, path: str, head: bytes, size: int) -> ReadResult:
    if size > MAX_BINARY_BYTES:
        return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes")
    return ReadResult(file_data={"content": base64.b64encode(head + answer.read()).decode(), "encoding": "base64"})


def page(answer: Download, path: str, offset: int, limit: int) -> ReadResult:
    size = int(answer.headers.get("Content-Length", "0"))
    head = answer.read(8192)
    if path.rpartition(".")[2].lower() in BINARY or not decodes(head):
        return binary(answer, path, head, size)
    if not head:
        return ReadResult(file_data={"content": "", "encoding": "utf-8"})
    if limit == 0:
        return ReadResult(file_data={"content": "", "encoding": "utf-8"}, no_lines_requested=True)
    text = io.TextIOWrapper(io.BufferedReader(Joined(head, answer), 1 << 16), "utf-8", "replace", newline=None)
    return window(text, path, offset, limit, size <= COUNT_BYTES)


class Joined(Raw):
    """What was read of a Download already, and the rest of it."""

    def __init__(self, head: bytes, answer: Download):
        super().__init__(answer)
        self.head = head

    def readinto(self, space: memoryview) -> int:  # type: ignore[override]
        if self.head:
            data, self.head = self.head[:len(space)], self.head[len(space):]
            space[:len(data)] = data
            return len(data)
        return super().readinto(space)


def pieces(text: io.TextIOWrapper) -> Iterator[tuple[int, str]]:
    """(number of the line from 0, a piece of it). A line without an end is not collected in memory."""
    number = 0
    while piece := text.readline(1 << 16):
        yield number, piece
        number += piece.endswith("\n")


def window(text: io.TextIOWrapper, path: str, offset: int, limit: int, count: bool) -> ReadResult:
    """Lines offset to offset + limit, as far as they fit; the number of all lines if they are counted or the end was seen."""
    room, parts, last, after, seen = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode()), [], -1, False, -1
    cut = False
    for number, piece in pieces(text):
        seen = number
        if number < offset:
            continue
        if number >= offset + limit or cut:
            after = True
            if not count:
                break
            continue
        data = piece.encode()
        if len(data) > room:
            data, cut = data[:room], True
        parts.append(data.decode("utf-8", "ignore"))
        room -= len(data)
        last = number
    if last < 0:
        return ReadResult(error=f"Line offset {offset} exceeds file length ({seen + 1} lines)")
    total = None if after and not count else seen + 1
    content = "".join(parts).removesuffix("\n") + (TRUNCATION_MSG if cut else "")
    # A line that was cut counts as shown: nothing can continue in the middle of one.
    return ReadResult(file_data={"content": content, "encoding": "utf-8"}, total_lines=total, start_line=offset + 1, end_line=last + 1,
                      next_offset=last + 1 if total is None or last + 1 < total else None)


def matches(command: Command, root: Entry, wanted, most: int | None) -> GrepResult:
    """Reads what grep prints: path NUL line:text, or path:line:text."""
    found: list[GrepMatch] = []
    rest, errors, seen = b"", b"", 0
    below = len(root.path.rstrip("/")) + 1 if root.type == "directory" else len(root.path) - len(root.name)
    for piece in command:
        if piece.stream == "stderr":
            errors += piece.data[:max(0, 2000 - len(errors))]
            continue
        seen += len(piece.data)
        *lines, rest = (rest + piece.data).split(b"\n")
        for line in lines:
            m = re.match(rb"([^\0]+)\0(\d+):(.*)|(.+?):(\d+):(.*)", line, re.S)
            if not m:
                continue
            name, number, text = (m[1], m[2], m[3]) if m[1] else (m[4], m[5], m[6])
            path = name.decode("utf-8", "replace")
            if wanted and root.type == "directory" and not wanted(path[below:]):
                continue
            if most is not None and len(found) == most:
                return GrepResult(matches=found, truncated=True)
            found.append({"path": path, "line": int(number), "text": text.decode("utf-8", "replace")})
        if seen > GREP_BYTES or len(rest) > GREP_BYTES:
            return GrepResult(matches=found, truncated=True)
    first = errors.decode("utf-8", "replace").strip().splitlines()[:1]
    return GrepResult(matches=found, truncated=command.timed_out is not None, error=first[0] if first and not found else None)
