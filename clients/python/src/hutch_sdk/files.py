"""Files of a sandbox. Paths begin at / or in the user's home directory; no path leads out of the sandbox."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import NotFound
from .http import Content, Download
from .process import Inside

TYPES = {"FILE_TYPE_FILE": "file", "FILE_TYPE_DIRECTORY": "directory", "FILE_TYPE_SYMLINK": "symlink"}


@dataclass(frozen=True)
class Entry:
    name: str
    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int
    owner: str
    group: str
    modified: str
    target: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


def entry(e: dict[str, Any]) -> Entry:
    return Entry(e["name"], e["path"], TYPES.get(e.get("type", ""), "other"), int(e.get("size", 0)), int(e.get("mode", 0)), e.get("owner", ""),  # type: ignore[arg-type]
                 e.get("group", ""), e.get("modifiedTime", ""), e.get("symlinkTarget"), e.get("metadata") or {})


class Files:
    """`user` of each call is whose rights count and whose home relative paths begin in; the template's user if left out."""

    def __init__(self, inside: Inside):
        self.inside = inside

    def open(self, path: str, *, start: int | None = None, end: int | None = None, user: str | None = None) -> Download:
        """A file, or its bytes from start to before end, to be read piece by piece."""
        headers = {} if start is None and end is None else {"Range": f"bytes={start or 0}-{'' if end is None else end - 1}"}
        return self.inside.request("GET", "/files", user, headers, query={"path": path})

    def read(self, path: str, *, start: int | None = None, end: int | None = None, user: str | None = None) -> bytes:
        with self.open(path, start=start, end=end, user=user) as answer:
            return answer.read()

    def read_text(self, path: str, *, user: str | None = None) -> str:
        return self.read(path, user=user).decode()

    def write(self, path: str, content: Content | str, *, user: str | None = None) -> None:
        """Writes a file and makes its directories. The file appears, or is replaced, when all of it has come. content: bytes, text, an
        open file, or an iterator of bytes."""
        data = content.encode() if isinstance(content, str) else content
        self.inside.request("POST", "/files", user, {"Content-Type": "application/octet-stream"}, query={"path": path}, content=data,
                            repeatable=True).read()

    def stat(self, path: str, *, user: str | None = None) -> Entry:
        return entry(self.inside.call("filesystem.Filesystem/Stat", {"path": path}, user, repeatable=True)["entry"])

    def exists(self, path: str, *, user: str | None = None) -> bool:
        try:
            self.stat(path, user=user)
            return True
        except NotFound:
            return False

    def entries(self, path: str, *, depth: int = 1, user: str | None = None) -> list[Entry]:
        """What is in a directory, and with depth 2 to 64 in those below it."""
        answer = self.inside.call("filesystem.Filesystem/ListDir", {"path": path, "depth": depth}, user, repeatable=True)
        return [entry(e) for e in answer.get("entries", [])]

    def make_dir(self, path: str, *, user: str | None = None) -> Entry:
        """Makes a directory and those above it. Conflict if it is there."""
        return entry(self.inside.call("filesystem.Filesystem/MakeDir", {"path": path}, user)["entry"])

    def move(self, source: str, destination: str, *, user: str | None = None) -> Entry:
        return entry(self.inside.call("filesystem.Filesystem/Move", {"source": source, "destination": destination}, user)["entry"])

    def remove(self, path: str, *, user: str | None = None) -> None:
        """Removes a file, or a directory with everything in it. What is not there is removed already: no error."""
        self.inside.call("filesystem.Filesystem/Remove", {"path": path}, user, repeatable=True)
