"""The way to a node: sandboxes and secrets of the tenant that the key belongs to."""
from __future__ import annotations

import os
import secrets as random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from . import types
from .api import Api
from .errors import HutchError
from .http import Http
from .sandbox import Sandbox


class Secrets:
    """Values that sandboxes use and never hold (docs/secrets.md). Bind one to hosts, and name it when a sandbox is made."""

    def __init__(self, api: Api):
        self.api = api

    def set(self, name: str, value: str | None = None, *, hosts: Sequence[str] = (), env: str | None = None, methods: Sequence[str] = (),
            paths: Sequence[str] = (), inject: Mapping[str, Any] | None = None, spec: types.SecretSpec | None = None) -> types.Secret:
        """Makes or changes one. spec is the whole of where it may go; hosts, methods, paths, env and inject are for the usual case."""
        if spec is None and (hosts or env or inject):
            bind: types.SecretBinding = {"hosts": list(hosts)}
            if methods:
                bind["methods"] = list(methods)
            if paths:
                bind["paths"] = list(paths)
            spec = {}
            if hosts:
                spec["bind"] = [bind]
            if env:
                spec["env"] = env
            if inject:
                spec["inject"] = dict(inject)
        body: types.SecretPutBody = {}
        if value is not None:
            body["value"] = value
        if spec is not None:
            body["spec"] = spec
        return self.api.secret_put(name, body)

    def get(self, name: str) -> types.Secret:
        """Without its value, which nothing returns."""
        return self.api.secret_get(name)

    def all(self) -> list[types.Secret]:
        return self.api.secret_list().get("secrets", [])

    def remove(self, name: str) -> None:
        self.api.secret_remove(name)


class Hutch:
    """A node. url and key default to HUTCH_URL and HUTCH_API_KEY, then to what `eval "$(hutch env)"` sets. ca: a file with the only
    authority that counts (HUTCH_CA). plain: send the key over http:// to another machine. `api` has every route."""

    def __init__(self, url: str | None = None, key: str | None = None, *, ca: str | None = None, timeout: float = 60.0, retries: int = 4,
                 plain: bool = False):
        env = os.environ
        key = key or env.get("HUTCH_API_KEY") or env.get("E2B_API_KEY")
        if not key:
            raise HutchError('no key: pass key=, set HUTCH_API_KEY, or run eval "$(hutch env)"')
        url = url or env.get("HUTCH_URL") or env.get("E2B_API_URL") or "http://127.0.0.1:7070"
        self.http = Http(url, key, ca=ca or env.get("HUTCH_CA"), timeout=timeout, retries=retries, plain=plain)
        self.api = Api(self.http)
        self.secrets = Secrets(self.api)

    def create(self, template: str = "base", *, timeout: int | None = None, name: str | None = None, env: Mapping[str, str] | None = None,
               metadata: Mapping[str, str] | None = None, network: types.GivenNetwork | None = None, secrets: Sequence[str] = (),
               history: bool | None = None, **more: Any) -> Sandbox:
        """Makes a sandbox, without network and with private ports unless you ask for them. timeout: seconds until it ends, 0 for
        never. more: further fields of types.NewNativeSandbox, such as memoryMB, volumes, publicPorts. A create whose answer is lost is
        repeated and makes no second sandbox."""
        body = {"template": template, "timeout": timeout, "name": name, "env": dict(env) if env else None,
                "metadata": dict(metadata) if metadata else None, "network": network, "secrets": list(secrets) or None, "history": history, **more}
        given = {k: v for k, v in body.items() if v is not None}
        return Sandbox(self, self.api.sandbox_create(given, idempotency_key=random.token_hex(16)))  # type: ignore[arg-type]

    def connect(self, id: str, *, timeout: int | None = None) -> Sandbox:
        """A sandbox that exists; a paused one goes on. timeout: it lives at least so many seconds more."""
        return Sandbox(self, self.api.sandbox_connect(id, {} if timeout is None else {"timeout": timeout}))

    def sandboxes(self, *, state: str | None = None, template: str | None = None, metadata: Mapping[str, str] | None = None) -> Iterator[types.ListedSandbox]:
        """All of the tenant, running and paused, page by page."""
        token, labels = None, urlencode(dict(metadata)) if metadata else None
        while True:
            page = self.api.sandbox_list(state=state, template=template, metadata=labels, next_token=token)
            yield from page
            token = page.next_token
            if not token:
                return

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Hutch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
