/** A method for each route of a node. Written by tools/gen-clients from docs/openapi.json; do not edit. */
import type * as t from './types.js'
import type { Content, Download, Page, ServerEvent } from './index.js'

/** Every route of the node's API, as it is. Errors are ApiError. */
export class Api {
  constructor(http: object)

  /** Is the node up? */
  health(): Promise<void>

  /** Sandboxes of the tenant, page by page. */
  sandboxList(options?: { metadata?: string; state?: string; template?: string; startedAfter?: string; order?: string; limit?: number; nextToken?: string }): Promise<Page<t.ListedSandbox>>

  /** Latest sample of several sandboxes. sandboxIds: At most 100 ids, separated by commas. */
  sandboxMetricsOfSeveral(options: { sandboxIds: string }): Promise<t.SandboxMetricsOfSeveralAnswer>

  /** One sandbox. */
  sandboxGet(id: string): Promise<t.SandboxDetail>

  /** Kill a sandbox. */
  sandboxKill(id: string): Promise<void>

  /** Set the end to now + timeout. */
  sandboxSetTimeout(id: string, body: t.SandboxSetTimeoutBody): Promise<void>

  /** Use a sandbox that exists, and wake it if it is paused; its end is never moved closer. */
  sandboxConnect(id: string, body?: t.SandboxConnectBody): Promise<t.Sandbox>

  /** Samples, one about every 5 s. start: Unix seconds. end: Unix seconds. */
  sandboxMetrics(id: string, options?: { start?: number; end?: number }): Promise<t.Metric[]>

  /** What happened to a sandbox, in either direction. */
  sandboxLogs(id: string, options?: { cursor?: number; limit?: number; direction?: string; level?: string; search?: string }): Promise<t.SandboxLogsAnswer>

  /** Let a sandbox stand still; with memory false only its files are kept. */
  sandboxPause(id: string, body?: t.SandboxPauseBody): Promise<void>

  /** Keep the files of a sandbox, which runs on. */
  snapshotCreate(id: string, body?: t.SnapshotCreateBody): Promise<t.Snapshot>

  /** Make sandboxes with the files of a running one. */
  sandboxFork(id: string, body?: t.SandboxForkBody): Promise<t.Forked[]>

  /** The tenant's snapshots, newest first. sandboxID: Only those made of this sandbox. name: Only this one; may have a tag. limit: 1 to 100. nextToken: Of the page before. */
  snapshotList(options?: { sandboxID?: string; name?: string; limit?: number; nextToken?: string }): Promise<Page<t.Snapshot>>

  /** Promise a template build. */
  buildPromise(body: t.BuildRequest): Promise<t.BuildPromise>

  /** Tag a build. */
  templateTagAdd(body: t.TemplateTagAddBody): Promise<t.TemplateTagAddAnswer>

  /** Remove tags. */
  templateTagRemove(body: t.TemplateTagRemoveBody): Promise<void>

  /** Where the files of a COPY step are to be uploaded. */
  buildUploadPlace(id: string, hash: string): Promise<t.BuildUploadPlaceAnswer>

  /** Start a build. */
  buildStart(id: string, build: string, body: t.BuildStart): Promise<void>

  /** What a build has come to. logsOffset: index of the first entry. limit: at most 100. level: least level. */
  buildStatus(id: string, build: string, options?: { logsOffset?: number; limit?: number; level?: string }): Promise<t.BuildStatus>

  /** The log of a build. cursor: milliseconds since 1970. limit: at most 100. direction: forward or backward. level: least level. */
  buildLogs(id: string, build: string, options?: { cursor?: number; limit?: number; direction?: string; level?: string }): Promise<t.BuildLogsAnswer>

  /** This document. */
  openapi(): Promise<Record<string, any>>

  /** What this node can do, and what it enforces. */
  capabilities(): Promise<t.CapabilitiesAnswer>

  /** Counts and templates (admin). */
  nodeGet(): Promise<t.NodeGetAnswer>

  /** Events of a sandbox as server-sent events, ended ones too. after: The same, where no header can be set. follow: false: the kept events, then the end of the answer. lastEventID: Go on behind this event. */
  sandboxEvents(id: string, options?: { after?: number; follow?: boolean; lastEventID?: number }): AsyncGenerator<ServerEvent>

  /** All tenants (admin). */
  tenantList(): Promise<t.TenantListAnswer>

  /** Make or change a tenant (admin). */
  tenantPut(body: t.TenantPutBody): Promise<t.TenantPutAnswer>

  /** A tenant, its quota and what it uses (admin). */
  tenantGet(id: string): Promise<t.Tenant>

  /** Change a tenant: what is not named stays (admin). */
  tenantUpdate(id: string, body: t.TenantUpdateBody): Promise<void>

  /** Remove a tenant that has no sandboxes (admin). */
  tenantRemove(id: string): Promise<void>

  /** All API keys, without their secrets (admin). */
  keyList(): Promise<t.KeyListAnswer>

  /** Make an API key (admin). */
  keyCreate(body: t.KeyCreateBody): Promise<t.KeyCreateAnswer>

  /** Remove an API key (admin). */
  keyRemove(id: string): Promise<void>

  /** Kill every sandbox of the node (admin). */
  stopAll(): Promise<t.StopAllAnswer>

  /** What the store holds (admin). */
  storeGet(): Promise<t.StoreGetAnswer>

  /** Read everything in the store and compare it with its digests (admin). stack: Only this one. */
  storeVerify(options?: { stack?: string }): AsyncGenerator<t.StoreVerifyAnswer>

  /** Remove layers that nothing uses from the layer store (admin). dryRun: Only say what would go. */
  storeGc(options?: { dryRun?: boolean }): AsyncGenerator<t.StoreGcAnswer>

  /** Create a sandbox: no network and no public traffic unless asked for. idempotencyKey: The same key again within 24 hours gives the same sandbox; 409 sandbox_ended once that has ended. A create that failed or was cut gives its key back.. */
  sandboxCreate(body: t.NewNativeSandbox, options?: { idempotencyKey?: string }): Promise<t.Sandbox>

  /** The network of a sandbox. */
  networkGet(id: string): Promise<t.SandboxNetwork>

  /** Replace the network of a sandbox. */
  networkReplace(id: string, body: t.NetworkReplaceBody | t.GivenNetwork): Promise<t.SandboxNetwork>

  /** Change the network of a sandbox rule by rule. */
  networkUpdate(id: string, body: t.NetworkUpdateBody): Promise<t.SandboxNetwork>

  /** What was refused it. */
  networkDenials(id: string, options?: { since?: number }): Promise<t.NetworkDenialsAnswer>

  /** What all sandboxes of the tenant sent and received, in all and by host. */
  networkUsage(): Promise<Record<string, any>>

  /** Counters, in all and by host. */
  networkStats(id: string): Promise<Record<string, any>>

  /** The smallest document for what was seen in mode learn. */
  networkLearned(id: string): Promise<t.NetworkLearnedAnswer>

  /** Would this request be let out? */
  networkCheck(id: string, body: t.NetworkCheckBody): Promise<t.NetworkCheckAnswer>

  /** Who may see the ports of a sandbox. */
  portsGet(id: string): Promise<t.Ports>

  /** Change who may see the ports of a sandbox; what is left out stays. */
  portsUpdate(id: string, body: t.PortSettings): Promise<t.Ports>

  /** Make a signed link that opens one port for a while. */
  portLink(id: string, port: number, body?: t.PortLinkBody): Promise<t.PortLinkAnswer>

  /** Revoke all links to the ports of a sandbox, and the cookies they left. */
  portLinksRevoke(id: string): Promise<void>

  /** Questions of sandboxes that wait for a decision. */
  approvalList(): Promise<t.ApprovalListAnswer>

  /** Decide a question. */
  approvalDecide(id: string, body: t.ApprovalDecideBody): Promise<t.ApprovalDecideAnswer>

  /** Secrets of the tenant, without their values. */
  secretList(): Promise<t.SecretListAnswer>

  /** Make or change a secret. */
  secretCreate(body: t.SecretCreateBody): Promise<t.Secret>

  /** One secret, without its value. */
  secretGet(name: string): Promise<t.Secret>

  /** Make or change a secret. */
  secretPut(name: string, body: t.SecretPutBody): Promise<t.Secret>

  /** Remove a secret. */
  secretRemove(name: string): Promise<void>

  /** Generations of a sandbox's files, oldest first. */
  historyGet(id: string): Promise<t.History>

  /** One more generation, now. */
  historySave(id: string, body?: t.HistorySaveBody): Promise<t.Generation>

  /** What changed between two generations, or between one and now. from: a generation; the newest if left out. to: a generation; left out: as it is now. path: only at or below this path. */
  historyDiff(id: string, options?: { from?: number; to?: number; path?: string }): Promise<t.Diff>

  /** A file as it was. path: absolute path inside. */
  historyFile(id: string, number: number, options?: { path?: string }): Promise<Download>

  /** Go back: the files become those of a generation. What there was is kept as one more, and what it is then as another. */
  historyUndo(id: string, body?: t.HistoryUndoBody): Promise<t.Applied>

  /** Transactions that wait for a decision. */
  txList(id: string): Promise<t.Transaction[]>

  /** Run a command on a private copy of the sandbox's files. */
  txRun(id: string, body?: t.TxRunBody): Promise<t.TransactionResult>

  /** One transaction. */
  txGet(id: string, tx: string): Promise<t.TransactionResult>

  /** Discard a transaction. */
  txDiscard(id: string, tx: string): Promise<void>

  /** Apply the changes of a transaction to the sandbox; 409 with the paths if one of them changed since. */
  txCommit(id: string, tx: string): Promise<t.Applied>

  /** Templates. */
  templateList(): Promise<t.TemplateListAnswer>

  /** One template. */
  templateGet(id: string): Promise<t.NativeTemplate>

  /** Remove a template, or one tag of it (NAME:TAG). */
  templateRemove(id: string): Promise<void>

  /** Change the settings of a template; what is not named stays. */
  templateUpdate(id: string, body: t.TemplateUpdateBody): Promise<void>

  /** Import an image. name: of the template, with an archive. tag: its tag. */
  templateImport(body: t.TemplateImportBody | Content, options?: { name?: string; tag?: string }): AsyncGenerator<t.ImportLine>

  /** Restore an export. name: of the template. tag: its tag. */
  templateRestore(body: Content, options: { name: string; tag?: string }): AsyncGenerator<t.ImportLine>

  /** Export a template or a snapshot. */
  templateExport(id: string): Promise<Download>

  /** Cancel a build. */
  buildCancel(id: string, build: string): Promise<void>

  /** What happens to a sandbox by itself, and its state. */
  lifecycleGet(id: string): Promise<t.Lifecycle>

  /** Change what happens to a sandbox by itself; what is left out stays. */
  lifecycleUpdate(id: string, body: t.LifecycleUpdateBody): Promise<t.Lifecycle>

  /** Volumes of the tenant. */
  volumeList(): Promise<t.VolumeListAnswer>

  /** Make a volume. */
  volumeCreate(body: t.VolumeCreateBody): Promise<t.NativeVolume>

  /** One volume: what it uses, what limits it, who has it. */
  volumeGet(id: string): Promise<t.NativeVolume>

  /** Give a volume another quota. */
  volumeUpdate(id: string, body: t.VolumeUpdateBody): Promise<t.NativeVolume>

  /** Remove a volume and everything in it. */
  volumeRemove(id: string): Promise<void>

  /** Run code in the sandbox's interpreter. */
  codeRun(id: string, body?: t.CodeRunBody): AsyncGenerator<Record<string, any>>

  /** Contexts of the sandbox's interpreter. */
  codeContextList(id: string): Promise<t.CodeContext[]>

  /** Make a context, with variables and a directory of its own. */
  codeContextCreate(id: string, body?: t.CodeContextCreateBody): Promise<t.CodeContext>

  /** Restart a context: its variables are lost. */
  codeContextRestart(id: string, context: string): Promise<void>

  /** Remove a context. */
  codeContextRemove(id: string, context: string): Promise<void>
}
