"""A method for each route of a node. Written by tools/gen-clients from docs/openapi.json; do not edit."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal  # noqa: F401

from . import types as t
from .http import Content, Download, Http, Page, ServerEvent, quoted

# ruff: noqa: E501


class Api:
    """Every route of the node's API, as it is. Errors are `hutch_sdk.ApiError`."""

    def __init__(self, http: Http):
        self.http = http

    def health(self) -> None:
        """Is the node up?"""
        return self.http.none("GET", "/health")

    def sandbox_list(self, *, metadata: str | None = None, state: str | None = None, template: str | None = None, started_after: str | None = None, order: str | None = None, limit: int | None = None, next_token: str | None = None) -> Page[t.ListedSandbox]:
        """Sandboxes of the tenant, page by page."""
        return self.http.page("GET", "/v2/sandboxes", query={"metadata": metadata, "state": state, "template": template, "startedAfter": started_after, "order": order, "limit": limit, "nextToken": next_token})

    def sandbox_metrics_of_several(self, *, sandbox_ids: str) -> t.SandboxMetricsOfSeveralAnswer:
        """Latest sample of several sandboxes.

        sandbox_ids: At most 100 ids, separated by commas
        """
        return self.http.json("GET", "/sandboxes/metrics", query={"sandbox_ids": sandbox_ids})

    def sandbox_get(self, id: str) -> t.SandboxDetail:
        """One sandbox."""
        return self.http.json("GET", f"/sandboxes/{quoted(id)}")

    def sandbox_kill(self, id: str) -> None:
        """Kill a sandbox."""
        return self.http.none("DELETE", f"/sandboxes/{quoted(id)}")

    def sandbox_set_timeout(self, id: str, body: t.SandboxSetTimeoutBody) -> None:
        """Set the end to now + timeout."""
        return self.http.none("POST", f"/sandboxes/{quoted(id)}/timeout", body=body)

    def sandbox_connect(self, id: str, body: t.SandboxConnectBody | None = None) -> t.Sandbox:
        """Use a sandbox that exists, and wake it if it is paused; its end is never moved closer."""
        return self.http.json("POST", f"/v2/sandboxes/{quoted(id)}/connect", body=body if body is not None else {})

    def sandbox_metrics(self, id: str, *, start: int | None = None, end: int | None = None) -> list[t.Metric]:
        """Samples, one about every 5 s.

        start: Unix seconds
        end: Unix seconds
        """
        return self.http.json("GET", f"/sandboxes/{quoted(id)}/metrics", query={"start": start, "end": end})

    def sandbox_logs(self, id: str, *, cursor: int | None = None, limit: int | None = None, direction: str | None = None, level: str | None = None, search: str | None = None) -> t.SandboxLogsAnswer:
        """What happened to a sandbox, in either direction."""
        return self.http.json("GET", f"/v2/sandboxes/{quoted(id)}/logs", query={"cursor": cursor, "limit": limit, "direction": direction, "level": level, "search": search})

    def sandbox_pause(self, id: str, body: t.SandboxPauseBody | None = None) -> None:
        """Let a sandbox stand still; with memory false only its files are kept."""
        return self.http.none("POST", f"/sandboxes/{quoted(id)}/pause", body=body if body is not None else {})

    def snapshot_create(self, id: str, body: t.SnapshotCreateBody | None = None) -> t.Snapshot:
        """Keep the files of a sandbox, which runs on."""
        return self.http.json("POST", f"/sandboxes/{quoted(id)}/snapshots", body=body if body is not None else {})

    def sandbox_fork(self, id: str, body: t.SandboxForkBody | None = None) -> list[t.Forked]:
        """Make sandboxes with the files of a running one."""
        return self.http.json("POST", f"/sandboxes/{quoted(id)}/fork", body=body if body is not None else {})

    def snapshot_list(self, *, sandbox_id: str | None = None, name: str | None = None, limit: int | None = None, next_token: str | None = None) -> Page[t.Snapshot]:
        """The tenant's snapshots, newest first.

        sandbox_id: Only those made of this sandbox
        name: Only this one; may have a tag
        limit: 1 to 100
        next_token: Of the page before
        """
        return self.http.page("GET", "/snapshots", query={"sandboxID": sandbox_id, "name": name, "limit": limit, "nextToken": next_token})

    def build_promise(self, body: t.BuildRequest) -> t.BuildPromise:
        """Promise a template build."""
        return self.http.json("POST", "/v3/templates", body=body)

    def template_tag_add(self, body: t.TemplateTagAddBody) -> t.TemplateTagAddAnswer:
        """Tag a build."""
        return self.http.json("POST", "/templates/tags", body=body)

    def template_tag_remove(self, body: t.TemplateTagRemoveBody) -> None:
        """Remove tags."""
        return self.http.none("DELETE", "/templates/tags", body=body)

    def build_upload_place(self, id: str, hash: str) -> t.BuildUploadPlaceAnswer:
        """Where the files of a COPY step are to be uploaded."""
        return self.http.json("GET", f"/templates/{quoted(id)}/files/{quoted(hash)}")

    def build_start(self, id: str, build: str, body: t.BuildStart) -> None:
        """Start a build."""
        return self.http.none("POST", f"/v2/templates/{quoted(id)}/builds/{quoted(build)}", body=body)

    def build_status(self, id: str, build: str, *, logs_offset: int | None = None, limit: int | None = None, level: str | None = None) -> t.BuildStatus:
        """What a build has come to.

        logs_offset: index of the first entry
        limit: at most 100
        level: least level
        """
        return self.http.json("GET", f"/templates/{quoted(id)}/builds/{quoted(build)}/status", query={"logsOffset": logs_offset, "limit": limit, "level": level})

    def build_logs(self, id: str, build: str, *, cursor: int | None = None, limit: int | None = None, direction: str | None = None, level: str | None = None) -> t.BuildLogsAnswer:
        """The log of a build.

        cursor: milliseconds since 1970
        limit: at most 100
        direction: forward or backward
        level: least level
        """
        return self.http.json("GET", f"/templates/{quoted(id)}/builds/{quoted(build)}/logs", query={"cursor": cursor, "limit": limit, "direction": direction, "level": level})

    def openapi(self) -> dict[str, Any]:
        """This document."""
        return self.http.json("GET", "/v1/openapi.json")

    def capabilities(self) -> t.CapabilitiesAnswer:
        """What this node can do, and what it enforces."""
        return self.http.json("GET", "/v1/capabilities")

    def node_get(self) -> t.NodeGetAnswer:
        """Counts and templates (admin)."""
        return self.http.json("GET", "/v1/node")

    def sandbox_events(self, id: str, *, after: int | None = None, follow: bool | None = None, last_event_id: int | None = None) -> Iterator[ServerEvent]:
        """Events of a sandbox as server-sent events, ended ones too.

        after: The same, where no header can be set
        follow: false: the kept events, then the end of the answer
        last_event_id: Go on behind this event
        """
        return self.http.events("GET", f"/v1/sandboxes/{quoted(id)}/events", query={"after": after, "follow": follow}, headers={"Last-Event-ID": last_event_id})

    def tenant_list(self) -> t.TenantListAnswer:
        """All tenants (admin)."""
        return self.http.json("GET", "/v1/tenants")

    def tenant_put(self, body: t.TenantPutBody) -> t.TenantPutAnswer:
        """Make or change a tenant (admin)."""
        return self.http.json("POST", "/v1/tenants", body=body)

    def tenant_get(self, id: str) -> t.Tenant:
        """A tenant, its quota and what it uses (admin)."""
        return self.http.json("GET", f"/v1/tenants/{quoted(id)}")

    def tenant_update(self, id: str, body: t.TenantUpdateBody) -> None:
        """Change a tenant: what is not named stays (admin)."""
        return self.http.none("PATCH", f"/v1/tenants/{quoted(id)}", body=body)

    def tenant_remove(self, id: str) -> None:
        """Remove a tenant that has no sandboxes (admin)."""
        return self.http.none("DELETE", f"/v1/tenants/{quoted(id)}")

    def key_list(self) -> t.KeyListAnswer:
        """All API keys, without their secrets (admin)."""
        return self.http.json("GET", "/v1/keys")

    def key_create(self, body: t.KeyCreateBody) -> t.KeyCreateAnswer:
        """Make an API key (admin)."""
        return self.http.json("POST", "/v1/keys", body=body)

    def key_remove(self, id: str) -> None:
        """Remove an API key (admin)."""
        return self.http.none("DELETE", f"/v1/keys/{quoted(id)}")

    def stop_all(self) -> t.StopAllAnswer:
        """Kill every sandbox of the node (admin)."""
        return self.http.json("POST", "/v1/stop-all")

    def store_get(self) -> t.StoreGetAnswer:
        """What the store holds (admin)."""
        return self.http.json("GET", "/v1/store")

    def store_verify(self, *, stack: str | None = None) -> Iterator[t.StoreVerifyAnswer]:
        """Read everything in the store and compare it with its digests (admin).

        stack: Only this one
        """
        return self.http.lines("POST", "/v1/store/verify", query={"stack": stack})

    def store_gc(self, *, dry_run: bool | None = None) -> Iterator[t.StoreGcAnswer]:
        """Remove layers that nothing uses from the layer store (admin).

        dry_run: Only say what would go
        """
        return self.http.lines("POST", "/v1/store/gc", query={"dryRun": dry_run})

    def sandbox_create(self, body: t.NewNativeSandbox, *, idempotency_key: str | None = None) -> t.Sandbox:
        """Create a sandbox: no network and no public traffic unless asked for.

        idempotency_key: The same key again within 24 hours gives the same sandbox; 409 sandbox_ended once that has ended. A create that failed or was cut gives its key back.
        """
        return self.http.json("POST", "/v1/sandboxes", body=body, headers={"Idempotency-Key": idempotency_key})

    def network_get(self, id: str) -> t.SandboxNetwork:
        """The network of a sandbox."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/network")

    def network_replace(self, id: str, body: t.NetworkReplaceBody | t.GivenNetwork) -> t.SandboxNetwork:
        """Replace the network of a sandbox."""
        return self.http.json("PUT", f"/v1/sandboxes/{quoted(id)}/network", body=body)

    def network_update(self, id: str, body: t.NetworkUpdateBody) -> t.SandboxNetwork:
        """Change the network of a sandbox rule by rule."""
        return self.http.json("PATCH", f"/v1/sandboxes/{quoted(id)}/network", body=body)

    def network_denials(self, id: str, *, since: int | None = None) -> t.NetworkDenialsAnswer:
        """What was refused it."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/network/denials", query={"since": since})

    def network_usage(self) -> dict[str, Any]:
        """What all sandboxes of the tenant sent and received, in all and by host."""
        return self.http.json("GET", "/v1/network/usage")

    def network_stats(self, id: str) -> dict[str, Any]:
        """Counters, in all and by host."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/network/stats")

    def network_learned(self, id: str) -> t.NetworkLearnedAnswer:
        """The smallest document for what was seen in mode learn."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/network/learned")

    def network_check(self, id: str, body: t.NetworkCheckBody) -> t.NetworkCheckAnswer:
        """Would this request be let out?"""
        return self.http.json("POST", f"/v1/sandboxes/{quoted(id)}/network/check", body=body)

    def ports_get(self, id: str) -> t.Ports:
        """Who may see the ports of a sandbox."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/ports")

    def ports_update(self, id: str, body: t.PortSettings) -> t.Ports:
        """Change who may see the ports of a sandbox; what is left out stays."""
        return self.http.json("PUT", f"/v1/sandboxes/{quoted(id)}/ports", body=body)

    def port_link(self, id: str, port: int, body: t.PortLinkBody | None = None) -> t.PortLinkAnswer:
        """Make a signed link that opens one port for a while."""
        return self.http.json("POST", f"/v1/sandboxes/{quoted(id)}/ports/{quoted(port)}/link", body=body if body is not None else {})

    def port_links_revoke(self, id: str) -> None:
        """Revoke all links to the ports of a sandbox, and the cookies they left."""
        return self.http.none("DELETE", f"/v1/sandboxes/{quoted(id)}/links")

    def approval_list(self) -> t.ApprovalListAnswer:
        """Questions of sandboxes that wait for a decision."""
        return self.http.json("GET", "/v1/approvals")

    def approval_decide(self, id: str, body: t.ApprovalDecideBody) -> t.ApprovalDecideAnswer:
        """Decide a question."""
        return self.http.json("POST", f"/v1/approvals/{quoted(id)}", body=body)

    def secret_list(self) -> t.SecretListAnswer:
        """Secrets of the tenant, without their values."""
        return self.http.json("GET", "/v1/secrets")

    def secret_create(self, body: t.SecretCreateBody) -> t.Secret:
        """Make or change a secret."""
        return self.http.json("POST", "/v1/secrets", body=body)

    def secret_get(self, name: str) -> t.Secret:
        """One secret, without its value."""
        return self.http.json("GET", f"/v1/secrets/{quoted(name)}")

    def secret_put(self, name: str, body: t.SecretPutBody) -> t.Secret:
        """Make or change a secret."""
        return self.http.json("PUT", f"/v1/secrets/{quoted(name)}", body=body)

    def secret_remove(self, name: str) -> None:
        """Remove a secret."""
        return self.http.none("DELETE", f"/v1/secrets/{quoted(name)}")

    def history_get(self, id: str) -> t.History:
        """Generations of a sandbox's files, oldest first."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/history")

    def history_save(self, id: str, body: t.HistorySaveBody | None = None) -> t.Generation:
        """One more generation, now."""
        return self.http.json("POST", f"/v1/sandboxes/{quoted(id)}/history", body=body if body is not None else {})

    def history_diff(self, id: str, *, from_: int | None = None, to: int | None = None, path: str | None = None) -> t.Diff:
        """What changed between two generations, or between one and now.

        from_: a generation; the newest if left out
        to: a generation; left out: as it is now
        path: only at or below this path
        """
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/history/diff", query={"from": from_, "to": to, "path": path})

    def history_file(self, id: str, number: int, *, path: str | None = None) -> Download:
        """A file as it was.

        path: absolute path inside
        """
        return self.http.download("GET", f"/v1/sandboxes/{quoted(id)}/history/{quoted(number)}/file", query={"path": path})

    def history_undo(self, id: str, body: t.HistoryUndoBody | None = None) -> t.Applied:
        """Go back: the files become those of a generation. What there was is kept as one more, and what it is then as another."""
        return self.http.json("POST", f"/v1/sandboxes/{quoted(id)}/history/undo", body=body if body is not None else {})

    def tx_list(self, id: str) -> list[t.Transaction]:
        """Transactions that wait for a decision."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/tx")

    def tx_run(self, id: str, body: t.TxRunBody | None = None) -> t.TransactionResult:
        """Run a command on a private copy of the sandbox's files."""
        return self.http.json("POST", f"/v1/sandboxes/{quoted(id)}/tx", body=body if body is not None else {})

    def tx_get(self, id: str, tx: str) -> t.TransactionResult:
        """One transaction."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/tx/{quoted(tx)}")

    def tx_discard(self, id: str, tx: str) -> None:
        """Discard a transaction."""
        return self.http.none("DELETE", f"/v1/sandboxes/{quoted(id)}/tx/{quoted(tx)}")

    def tx_commit(self, id: str, tx: str) -> t.Applied:
        """Apply the changes of a transaction to the sandbox; 409 with the paths if one of them changed since."""
        return self.http.json("POST", f"/v1/sandboxes/{quoted(id)}/tx/{quoted(tx)}/commit")

    def template_list(self) -> t.TemplateListAnswer:
        """Templates."""
        return self.http.json("GET", "/v1/templates")

    def template_get(self, id: str) -> t.NativeTemplate:
        """One template."""
        return self.http.json("GET", f"/v1/templates/{quoted(id)}")

    def template_remove(self, id: str) -> None:
        """Remove a template, or one tag of it (NAME:TAG)."""
        return self.http.none("DELETE", f"/v1/templates/{quoted(id)}")

    def template_update(self, id: str, body: t.TemplateUpdateBody) -> None:
        """Change the settings of a template; what is not named stays."""
        return self.http.none("PATCH", f"/v1/templates/{quoted(id)}", body=body)

    def template_import(self, body: t.TemplateImportBody | Content, *, name: str | None = None, tag: str | None = None) -> Iterator[t.ImportLine]:
        """Import an image.

        name: of the template, with an archive
        tag: its tag
        """
        return self.http.lines("POST", "/v1/templates/import", body=body, query={"name": name, "tag": tag})

    def template_restore(self, body: Content, *, name: str, tag: str | None = None) -> Iterator[t.ImportLine]:
        """Restore an export.

        name: of the template
        tag: its tag
        """
        return self.http.lines("POST", "/v1/templates/restore", body=body, query={"name": name, "tag": tag})

    def template_export(self, id: str) -> Download:
        """Export a template or a snapshot."""
        return self.http.download("GET", f"/v1/templates/{quoted(id)}/export")

    def build_cancel(self, id: str, build: str) -> None:
        """Cancel a build."""
        return self.http.none("DELETE", f"/v1/templates/{quoted(id)}/builds/{quoted(build)}")

    def lifecycle_get(self, id: str) -> t.Lifecycle:
        """What happens to a sandbox by itself, and its state."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/lifecycle")

    def lifecycle_update(self, id: str, body: t.LifecycleUpdateBody) -> t.Lifecycle:
        """Change what happens to a sandbox by itself; what is left out stays."""
        return self.http.json("PATCH", f"/v1/sandboxes/{quoted(id)}/lifecycle", body=body)

    def volume_list(self) -> t.VolumeListAnswer:
        """Volumes of the tenant."""
        return self.http.json("GET", "/v1/volumes")

    def volume_create(self, body: t.VolumeCreateBody) -> t.NativeVolume:
        """Make a volume."""
        return self.http.json("POST", "/v1/volumes", body=body)

    def volume_get(self, id: str) -> t.NativeVolume:
        """One volume: what it uses, what limits it, who has it."""
        return self.http.json("GET", f"/v1/volumes/{quoted(id)}")

    def volume_update(self, id: str, body: t.VolumeUpdateBody) -> t.NativeVolume:
        """Give a volume another quota."""
        return self.http.json("PATCH", f"/v1/volumes/{quoted(id)}", body=body)

    def volume_remove(self, id: str) -> None:
        """Remove a volume and everything in it."""
        return self.http.none("DELETE", f"/v1/volumes/{quoted(id)}")

    def code_run(self, id: str, body: t.CodeRunBody | None = None) -> Iterator[dict[str, Any]]:
        """Run code in the sandbox's interpreter."""
        return self.http.lines("POST", f"/v1/sandboxes/{quoted(id)}/code", body=body if body is not None else {})

    def code_context_list(self, id: str) -> list[t.CodeContext]:
        """Contexts of the sandbox's interpreter."""
        return self.http.json("GET", f"/v1/sandboxes/{quoted(id)}/contexts")

    def code_context_create(self, id: str, body: t.CodeContextCreateBody | None = None) -> t.CodeContext:
        """Make a context, with variables and a directory of its own."""
        return self.http.json("POST", f"/v1/sandboxes/{quoted(id)}/contexts", body=body if body is not None else {})

    def code_context_restart(self, id: str, context: str) -> None:
        """Restart a context: its variables are lost."""
        return self.http.none("POST", f"/v1/sandboxes/{quoted(id)}/contexts/{quoted(context)}/restart")

    def code_context_remove(self, id: str, context: str) -> None:
        """Remove a context."""
        return self.http.none("DELETE", f"/v1/sandboxes/{quoted(id)}/contexts/{quoted(context)}")
