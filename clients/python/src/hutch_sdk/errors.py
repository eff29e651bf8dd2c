"""What can go wrong, as exceptions. All are HutchError."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .process import Result


class HutchError(Exception):
    """Anything that this package raises."""


class ConnectionLost(HutchError):
    """The node could not be reached, or the connection broke and could not be taken up again."""


class ApiError(HutchError):
    """The node refused. `status` is the HTTP status, `code` a word or number of the node, `body` the whole answer."""

    def __init__(self, status: int, message: str, code: Any = None, body: Any = None, retry_after: float | None = None):
        super().__init__(message)
        self.status, self.message, self.code, self.body, self.retry_after = status, message, code, body, retry_after

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


class BadRequest(ApiError):
    """400: a field, a parameter or a path is wrong; the message says which."""


class Unauthenticated(ApiError):
    """401: no key, or one that the node does not know."""


class Forbidden(ApiError):
    """403: the key or the user may not."""


class NotFound(ApiError):
    """404"""


class Conflict(ApiError):
    """409: not in this state, or it is there already."""


class RateLimited(ApiError):
    """429: a rate or a quota is used up."""


class Unsupported(ApiError):
    """501: this node or host cannot do that."""


class SandboxEnded(ApiError):
    """502: the sandbox is gone, or nothing listens on that port of it."""


class Unavailable(ApiError):
    """503: busy or starting; try again."""


class NoSpace(ApiError):
    """507"""


class CommandFailed(HutchError):
    """A command ended with another exit code than 0 and check=True was given. `result` is how it ended."""

    def __init__(self, result: Result):
        last = (result.stderr or result.stdout).strip().splitlines()[-1:]
        super().__init__(f"exit code {result.exit_code}" + (f": {last[0][:300]}" if last else ""))
        self.result = result


class CommandTimeout(HutchError):
    """A command took longer than its timeout and was killed. `stdout` and `stderr` are what it had written."""

    def __init__(self, message: str, stdout: str, stderr: str):
        super().__init__(message)
        self.stdout, self.stderr = stdout, stderr


BY_STATUS = {400: BadRequest, 401: Unauthenticated, 403: Forbidden, 404: NotFound, 409: Conflict, 429: RateLimited, 501: Unsupported,
             502: SandboxEnded, 503: Unavailable, 507: NoSpace}


def api_error(status: int, body: Any, retry_after: float | None = None) -> ApiError:
    """The exception for an answer: {"code", "message"} of a route, or the same of an RPC."""
    known = body if isinstance(body, dict) else {}
    message = known.get("message") or (body if isinstance(body, str) and body else f"HTTP status {status}")
    code = known.get("error_code") or known.get("code")
    return BY_STATUS.get(status, ApiError)(status, str(message), code, body, retry_after)
