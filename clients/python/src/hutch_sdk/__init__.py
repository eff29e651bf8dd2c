"""A client of Hutch: sandboxes with everything that a node can do.

    from hutch_sdk import Hutch

    with Hutch() as hutch, hutch.create("base") as sandbox:
        print(sandbox.run("echo hello").stdout)
"""
from . import types
from .api import Api
from .client import Hutch, Secrets
from .errors import (
    ApiError,
    BadRequest,
    CommandFailed,
    CommandTimeout,
    Conflict,
    ConnectionLost,
    Forbidden,
    HutchError,
    NoSpace,
    NotFound,
    RateLimited,
    SandboxEnded,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from .files import Entry, Files
from .http import Download, Page, ServerEvent
from .process import Command, Output, Result
from .sandbox import History, Network, Sandbox, Trial

__version__ = "0.1.0"
__all__ = [
    "Api", "ApiError", "BadRequest", "Command", "CommandFailed", "CommandTimeout", "Conflict", "ConnectionLost", "Download", "Entry", "Files",
    "Forbidden", "History", "Hutch", "HutchError", "Network", "NoSpace", "NotFound", "Output", "Page", "RateLimited", "Result", "Sandbox",
    "SandboxEnded", "Secrets", "ServerEvent", "Trial", "Unauthenticated", "Unavailable", "Unsupported", "types",
]
