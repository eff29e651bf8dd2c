/** Types of requests and answers. Written by tools/gen-clients from docs/openapi.json; do not edit. */

/** How many paths a commit or an undo changed */
export interface Applied {
  committed?: boolean
  /** The generation that an undo went back to */
  to?: number
  added: number
  changed: number
  removed: number
  /** How long the sandbox stood still */
  frozenUs: number
}

export interface Approval {
  id?: string
  sandbox?: string
  askedAt?: string
  host?: string
  port?: number
  method?: string
  path?: string
  rule?: string
  tls?: boolean
  why?: string
}

export interface ApprovalDecideAnswer {
  id?: string
  decision?: string
}

export interface ApprovalDecideBody {
  decision: "allow_once" | "allow_minutes" | "allow_sandbox" | "deny"
  minutes?: number
}

export interface ApprovalListAnswer {
  approvals?: Approval[]
}

export interface BuildLogEntry {
  timestamp?: string
  level?: "debug" | "info" | "warn" | "error"
  message?: string
  /** base, 1 to n, finalize */
  step?: string
}

export interface BuildLogsAnswer {
  logs?: BuildLogEntry[]
}

export interface BuildPromise {
  templateID?: string
  buildID?: string
  names?: string[]
  aliases?: string[]
  tags?: string[]
  public?: boolean
}

export interface BuildRequest {
  /** NAME or NAME:TAG */
  name: string
  tags?: string[]
  cpuCount?: number
  memoryMB?: number
  /** the old word for name */
  alias?: string
}

export interface BuildStage {
  fromImage?: string
  fromTemplate?: string
  fromStage?: number
  steps?: BuildStep[]
}

export interface BuildStart {
  fromImage?: string
  fromTemplate?: string
  fromImageRegistry?: BuildStartFromImageRegistry
  startCmd?: string
  readyCmd?: string
  force?: boolean
  fromStage?: number
  /** What is built before, to start from or to copy from; an extension of Hutch */
  stages?: BuildStage[]
  steps?: BuildStep[]
}

export interface BuildStartFromImageRegistry {
  type?: "registry" | "aws" | "gcp"
  awsAccessKeyId?: string
  awsSecretAccessKey?: string
  awsRegion?: string
  serviceAccountJson?: string
  username?: string
  password?: string
}

export interface BuildStatus {
  templateID?: string
  buildID?: string
  status?: "waiting" | "building" | "ready" | "error"
  logs?: string[]
  logEntries?: BuildLogEntry[]
  reason?: BuildStatusReason
}

export interface BuildStatusReason {
  message?: string
  step?: string
}

export interface BuildStep {
  type: "COPY" | "RUN" | "ENV" | "WORKDIR" | "USER"
  args: string[]
  force?: boolean
  /** COPY: name of the upload, 64 hexadecimal digits */
  filesHash?: string
  /** COPY: the stage before this one whose files are copied, instead of an upload */
  fromStage?: number
}

export interface BuildUploadPlaceAnswer {
  present?: boolean
  url?: string
}

export interface CapabilitiesAnswer {
  version?: string
  dialect?: string
  envdVersion?: string
  tiers?: string[]
  privilege?: string
  enforcement?: string
  layers?: string[]
  features?: Record<string, boolean>
  limits?: Record<string, number>
}

/** What became of one path */
export interface Change {
  path: string
  change: "added" | "changed" | "removed"
  type: "file" | "directory" | "symlink" | "other"
  /** Only of what changed */
  what?: ("type" | "content" | "mode" | "owner" | "time" | "attributes")[]
  sizeBefore?: number
  size?: number
  modeBefore?: string
  mode?: string
}

export interface CodeContext {
  contextID: string
  language: string
  cwd: string
}

export interface CodeContextCreateBody {
  language?: string
  cwd?: string
  /** what the context's kernel may less than the sandbox: docs/rights.md. network, write */
  rights?: Record<string, any>
}

export interface CodeRunBody {
  code: string
  /** python (if left out), javascript, typescript, r, java or bash; not with contextID */
  language?: string
  /** if left out: the default context of the language */
  contextID?: string
  /** variables of this cell */
  env?: Record<string, string>
  /** seconds; 0 or left out: none */
  timeout?: number
  /** what the cell may less than the sandbox: docs/rights.md. network, write, timeoutSeconds, outputBytes */
  rights?: Record<string, any>
}

export interface Diff {
  from: number
  /** Not there if it is compared with now */
  to?: number
  changes: Change[]
  /** So many there are; 10,000 and 8 MiB of them are listed at most */
  total: number
  /** true if some are not listed */
  truncated?: boolean
}

/** Egress settings in E2B's words; see docs/e2b.md */
export interface EgressRules {
  allowOut?: string[]
  denyOut?: string[]
  /** host -> list of one {transform:{headers}}; values may hold ${e2b.secrets.NAME} */
  rules?: Record<string, Record<string, any>[]>
  egressProxy?: EgressRulesEgressProxy | null
  /** How a refused connection looks to the program: an answer in words, or a connection that fails */
  refusals?: "readable" | "closed"
  allow_internet_access?: boolean
}

export interface EgressRulesEgressProxy {
  address?: string
  username?: string
  /** sealed on arrival; no answer tells it */
  password?: string
}

export interface Error {
  /** The HTTP status */
  code: number
  message: string
  error_code?: string
}

export interface Forked {
  sandbox?: Sandbox
  error?: Error
  /** What it cost; memory never comes along */
  hutch?: ForkedHutch
}

/** What it cost; memory never comes along */
export interface ForkedHutch {
  memory?: boolean
  /** How long the sandbox stood still */
  frozenUs?: number
  bytes?: number
}

/** The files of a sandbox at one moment */
export interface Generation {
  number: number
  at: string
  /** The command after which it was made, or the label it was given */
  command: string
  /** Of what changed since the one before */
  bytes: number
  /** How long the sandbox stood still; only in the answer that made it */
  frozenUs?: number
}

/** A network document, or the word public or off; see docs/network.md */
export type GivenNetwork = NetworkDocument | "public" | "off"

export interface History {
  sandboxID: string
  /** One is made after each command */
  everyCommand: boolean
  /** So many are kept; the oldest go first */
  most: number
  generations: Generation[]
}

export interface HistorySaveBody {
  /** A label */
  command?: string
}

export interface HistoryUndoBody {
  /** left out: the one before the newest */
  to?: number
}

/** Requests: every given key must match */
export interface HttpMatch {
  methods?: string | string[]
  /** * within a segment, ** for any number of segments */
  paths?: string | string[]
  query?: Record<string, any>
  headers?: Record<string, any>
  content_types?: string | string[]
  max_request_bytes?: number | string
}

/** One line of the answer: progress, then a template or an error */
export interface ImportLine {
  progress?: ImportLineProgress
  template?: ImportLineTemplate
  error?: Error
}

export interface ImportLineProgress {
  done?: number
  total?: number
  text?: string
}

export interface ImportLineTemplate {
  id?: string
  name?: string
  tag?: string
  bytes?: number
}

export interface Isolation {
  tier?: string
  /** Layers that are missing under best-effort */
  degraded?: string
  /** What it may reach: nothing, what its rules say, or every public address */
  internet?: "off" | "rules" | "public"
  /** Whether its ports may be reached without a token; single ports may differ */
  ports?: "private" | "public"
  /** How a refused connection looks to the program: an answer in words, or a connection that fails */
  refusals?: "readable" | "closed"
}

export interface Key {
  id?: string
  tenant?: string
  name?: string
  /** The last digits */
  hint?: string
  scopes?: string[]
  createdAt?: string
  expiresAt?: string | null
  usedAt?: string | null
}

export interface KeyCreateAnswer {
  id?: string
  tenant?: string
  key?: string
  scopes?: string[]
}

export interface KeyCreateBody {
  tenant: string
  name?: string
  /** Without it: sandboxes and templates. read wins over all others: such a key changes nothing, and sees contents only with files */
  scopes?: ("sandboxes" | "templates" | "files" | "read" | "admin")[]
  expiresAt?: string
}

export interface KeyListAnswer {
  keys?: Key[]
}

export interface Lifecycle {
  state?: "running" | "pausing" | "frozen" | "stored" | "resuming"
  onTimeout?: "kill" | "pause" | "pause-files"
  /** Woken by traffic */
  autoResume?: boolean
  /** Paused after so many seconds without traffic; 0: never */
  idleTimeout?: number
  timeout?: number
  bytes?: number
  stack?: string
  parent?: string
}

export interface LifecycleUpdateBody {
  onTimeout?: "kill" | "pause" | "pause-files"
  /** Woken by traffic */
  autoResume?: boolean
  /** Paused after so many seconds without traffic; 0: never */
  idleTimeout?: number
}

export interface ListedSandbox {
  sandboxID: string
  templateID: string
  alias?: string
  clientID: string
  startedAt: string
  endAt: string
  cpuCount: number
  memoryMB: number
  diskSizeMB: number
  state: "running" | "paused"
  envdVersion: string
  metadata?: Record<string, string>
  /** What it has */
  volumeMounts?: ListedSandboxVolumeMountsItem[]
}

export interface ListedSandboxVolumeMountsItem {
  name: string
  path: string
  readOnly?: boolean
}

export interface LogEntry {
  timestamp?: string
  level?: "debug" | "info" | "warn" | "error"
  message?: string
  fields?: Record<string, string>
}

export interface Metric {
  timestamp?: string
  timestampUnix?: number
  cpuCount?: number
  cpuUsedPct?: number
  memUsed?: number
  memTotal?: number
  memCache?: number
  diskUsed?: number
  diskTotal?: number
}

export interface NativeTemplate {
  id?: string
  name?: string
  kind?: "directory" | "built" | "imported" | "snapshot"
  /** a tenant, or node */
  owner?: string
  public?: boolean
  state?: string
  text?: string
  bytes?: number
  spawned?: number
  createdAt?: string
  tags?: NativeTemplateTagsItem[]
  /** what its sandboxes start with */
  config?: Record<string, any>
  tag?: string
  /** the reference that this tag was fetched as; not there for what was built or came as a file */
  image?: string
  layers?: number
  ownBytes?: number
  ownEntries?: number
}

export interface NativeTemplateTagsItem {
  tag?: string
  buildID?: string
  createdAt?: string
  /** the reference that it was fetched as; not there for what was built or came as a file */
  image?: string
}

export interface NativeVolume {
  id: string
  name: string
  createdAt: string
  quota: NativeVolumeQuota
  /** sandboxes, living or paused; at most 16 of them */
  mountedBy: string[]
  /** how many there are */
  mounts: number
  used?: NativeVolumeUsed | null
  /** none, btrfs qgroup, project quota or image */
  enforcedBy?: string
  enforced?: NativeVolumeEnforced
  /** why it could not be measured */
  problem?: string
}

export interface NativeVolumeEnforced {
  bytes?: number | null
  entries?: number | null
}

export interface NativeVolumeQuota {
  bytes?: number | null
  entries?: number | null
}

export interface NativeVolumeUsed {
  bytes?: number
  entries?: number
}

export interface Network {
  allowPublicTraffic?: boolean
  maskRequestHost?: string
  httpsPorts?: number[]
  allowOut?: string[]
  denyOut?: string[]
  /** host -> list of one {transform:{headers}}; values may hold ${e2b.secrets.NAME} */
  rules?: Record<string, Record<string, any>[]>
  egressProxy?: NetworkEgressProxy | null
  /** How a refused connection looks to the program: an answer in words, or a connection that fails */
  refusals?: "readable" | "closed"
}

export interface NetworkCheckAnswer {
  verdict?: "allow" | "deny" | "ask"
  /** null if it is allowed */
  reason?: string | null
  /** null if no rule fits */
  rule?: string | null
  would_deny?: boolean
  /** A rule that would allow it */
  grant?: Record<string, any>
}

export interface NetworkCheckBody {
  url: string
  method?: string
}

export interface NetworkDenialsAnswer {
  denials?: Record<string, any>[]
  next?: number
}

/** What a sandbox may reach; docs/network-reference.md has every key */
export interface NetworkDocument {
  version?: 1
  id?: string
  mode?: "enforce" | "audit" | "learn"
  default?: "deny" | "public"
  order?: "deny-first" | "allow-first"
  on_miss?: "deny" | "ask"
  ask_hold?: number
  presets?: string | string[]
  allow?: string | string[]
  deny?: string | string[]
  rules?: NetworkRule[]
  limits?: Record<string, any>
  dns?: Record<string, any>
  tls?: Record<string, any>
  deny_message?: string
  refusals?: "readable" | "closed"
  upstream_proxy?: string | Record<string, any>
}

export interface NetworkEgressProxy {
  address?: string
  username?: string
  /** sealed on arrival; no answer tells it */
  password?: string
}

export interface NetworkLearnedAnswer {
  policy?: Record<string, any>
}

/** A network document, or the word public or off; see docs/network.md */
export type NetworkPolicy = Record<string, any> | "public" | "off"

export interface NetworkReplaceBody {
  policy: GivenNetwork
  secrets?: string[]
  expected_epoch?: number
}

/** One rule of a network document; docs/network-reference.md has every key */
export interface NetworkRule {
  id?: string
  effect?: "allow" | "deny"
  /** a.b.c, *.b.c or .b.c */
  hosts?: string | string[]
  cidrs?: string | string[]
  /** 443, or 8000-8099 */
  ports?: number | string | (number | string)[]
  proto?: "http" | "tcp"
  /** One of these must match */
  http?: HttpMatch | HttpMatch[]
  access?: "read-only" | "read-write" | "full"
  /** Refused even if http allows it */
  deny?: HttpMatch | HttpMatch[]
  tls?: "auto" | "intercept" | "passthrough"
  /** Ranges that are not public */
  private?: string | string[]
  /** Secrets that such requests may carry */
  secrets?: string | string[]
  approval?: "none" | "ask"
  limits?: Record<string, any>
  /** 2030-01-31T12:00:00Z, or seconds since 1970 */
  expires?: string | number
  /** The rule ends after so many requests */
  uses?: number
  cleartext?: boolean
  broad?: boolean
  repeats?: boolean
}

export interface NetworkUpdateBody {
  add?: NetworkRule[]
  remove?: string[]
  set?: Record<string, any>
  expected_epoch?: number
}

export interface NewNativeSandbox {
  template?: string
  /** A name that no other sandbox of the tenant has (409); it becomes the metadata `name` */
  name?: string
  memoryMB?: number
  /** What it may write */
  diskSizeMB?: number
  cpus?: number
  /** Seconds; 0: until killed, unless the node or the tenant has a limit */
  timeout?: number
  metadata?: Record<string, string>
  env?: Record<string, string>
  network?: GivenNetwork
  /** Names of secrets to use; what they are bound to is allowed */
  secrets?: string[]
  /** Its ports may be reached without a token */
  publicTraffic?: boolean
  /** Ports that are public although the sandbox is private */
  publicPorts?: number[]
  /** By port: the name a service is asked by. localhost: Host and Origin say localhost:PORT, as dev servers expect; preserve: always the visitor's. Without a word a service that is known to refuse other names is asked as localhost */
  portHosts?: Record<string, "preserve" | "localhost">
  onTimeout?: "kill" | "pause" | "pause-files"
  /** Woken by traffic */
  autoResume?: boolean
  /** Paused after so many seconds without traffic; 0: never */
  idleTimeout?: number
  /** Volumes of the tenant, by name or id, and where they are inside */
  volumes?: NewNativeSandboxVolumesItem[]
  /** Every command opens a generation of the files */
  history?: boolean
  /** Directories that the operator offers (volumes.host_dirs), and where they are inside */
  hostDirs?: NewNativeSandboxHostDirsItem[]
}

export interface NewNativeSandboxHostDirsItem {
  name: string
  path: string
  readOnly?: boolean
}

export interface NewNativeSandboxVolumesItem {
  name: string
  path: string
  readOnly?: boolean
}

export interface NodeGetAnswer {
  version?: string
  domain?: string
  uptimeMs?: number
  sandboxes?: NodeGetAnswerSandboxes
  templates?: NodeGetAnswerTemplatesItem[]
}

export interface NodeGetAnswerSandboxes {
  creating?: number
  running?: number
  killing?: number
  max?: number
}

export interface NodeGetAnswerTemplatesItem {
  name?: string
  state?: string
  text?: string
  spawned?: number
}

export interface PortLinkAnswer {
  url: string
  expiresAt: string
}

export interface PortLinkBody {
  /** Seconds */
  expiresIn?: number
  /** Where it leads, percent-encoded */
  path?: string
}

export interface PortSettings {
  /** Every port is public */
  publicTraffic?: boolean
  /** Ports that are public although the sandbox is private */
  publicPorts?: number[]
  /** By port: the name a service is asked by. localhost: Host and Origin say localhost:PORT, as dev servers expect; preserve: always the visitor's. Without a word a service that is known to refuse other names is asked as localhost */
  portHosts?: Record<string, "preserve" | "localhost">
}

export interface Ports {
  sandboxID: string
  /** Every port is public */
  publicTraffic: boolean
  /** Ports that are public although the sandbox is private */
  publicPorts: number[]
  /** By port: the name a service is asked by. localhost: Host and Origin say localhost:PORT, as dev servers expect; preserve: always the visitor's. Without a word a service that is known to refuse other names is asked as localhost */
  portHosts: Record<string, "preserve" | "localhost">
  /** Of any port, with {port} in its place */
  url: string
  /** Only after a change, of a sandbox that is private */
  trafficAccessToken?: string
}

/** 0 is no limit */
export interface Quota {
  sandboxes?: number
  cpuMilli?: number
  memoryBytes?: number
  diskBytes?: number
  requestsPerSecond?: number
  burst?: number
  maxTimeoutSeconds?: number
  snapshots?: number
  /** Bytes of snapshots, paused sandboxes, templates, histories, transactions and quotas of volumes; 0: the node's kept.bytes. Was called stateBytes, which is still understood */
  storageBytes?: number
  /** Files, directories and links of the same; 0: the node's kept.entries */
  storageEntries?: number
}

/** What one command and its children may less than others in the sandbox (docs/rights.md) */
export interface Rights {
  network?: "off" | "on"
  /** "none", "all", or the paths below which files may be changed */
  write?: "none" | "all" | string[]
  /** own: a user of its own */
  user?: "own" | "same"
  timeoutSeconds?: number
  outputBytes?: number
  /** memory of the command and all that it starts, within that of the sandbox */
  memoryMB?: number
}

export interface Sandbox {
  sandboxID: string
  templateID: string
  alias?: string
  clientID: string
  envdVersion: string
  envdAccessToken?: string
  trafficAccessToken?: string | null
  domain?: string | null
  hutch?: Isolation
}

export interface SandboxConnectBody {
  timeout?: number
  /** false: start from the files, whatever memory was kept */
  memory?: boolean
}

export interface SandboxDetail {
  sandboxID: string
  templateID: string
  alias?: string
  clientID: string
  startedAt: string
  endAt: string
  cpuCount: number
  memoryMB: number
  diskSizeMB: number
  state: "running" | "paused"
  envdVersion: string
  metadata?: Record<string, string>
  volumeMounts?: Record<string, any>[]
  envdAccessToken?: string
  domain?: string | null
  allowInternetAccess?: boolean
  network?: Network
  lifecycle?: SandboxDetailLifecycle
  hutch?: Isolation
}

export interface SandboxDetailLifecycle {
  autoResume?: boolean
  onTimeout?: string
}

export interface SandboxForkBody {
  count?: number
  timeout?: number
}

export interface SandboxLogsAnswer {
  logs?: LogEntry[]
}

export interface SandboxMetricsOfSeveralAnswer {
  sandboxes?: Record<string, Metric>
}

export interface SandboxNetwork {
  sandbox?: string
  epoch?: number
  enforced?: boolean
  /** How a refused connection looks to the program: an answer in words, or a connection that fails */
  refusals?: "readable" | "closed"
  policy?: NetworkPolicy
  effective?: Record<string, any>
  e2b?: EgressRules
  placeholders?: Record<string, string>
  usage?: Record<string, any>
}

export interface SandboxPauseBody {
  memory?: boolean
}

export interface SandboxSetTimeoutBody {
  timeout: number
}

export interface Secret {
  name?: string
  id?: string
  revision?: number
  /** Where it may go; see docs/secrets.md */
  spec?: Record<string, any>
  metadata?: Record<string, any>
  createdAt?: string
  updatedAt?: string
}

/** Where the value of a secret may go */
export interface SecretBinding {
  hosts: string[]
  ports?: (number | string)[]
  methods?: string[]
  paths?: string[]
}

export interface SecretCreateBody {
  name: string
  value?: string
  spec?: SecretSpec
  metadata?: Record<string, any>
}

export interface SecretListAnswer {
  secrets?: Secret[]
}

export interface SecretPutBody {
  value?: string
  spec?: SecretSpec
  metadata?: Record<string, any>
}

/** Where a secret may go and how it is put into a request; docs/secrets.md has every key */
export interface SecretSpec {
  bind?: SecretBinding[]
  inject?: Record<string, any>
  /** The variable that holds the placeholder inside */
  env?: string
  placeholder?: string
  on_violation?: "block" | "log"
  redact_response?: boolean
  allow_plaintext?: boolean
}

export interface Snapshot {
  snapshotID: string
  names: string[]
  /** What it cost; memory never comes along */
  hutch?: SnapshotHutch
}

export interface SnapshotCreateBody {
  name?: string
}

/** What it cost; memory never comes along */
export interface SnapshotHutch {
  memory?: boolean
  /** How long the sandbox stood still */
  frozenUs?: number
  bytes?: number
}

export interface StopAllAnswer {
  stopped?: number
  failed?: number
}

export interface StoreGcAnswer {
  progress?: StoreGcAnswerProgress
  error?: StoreGcAnswerError
  removed?: StoreGcAnswerRemoved
  later?: StoreGcAnswerLater
  lines?: string[]
}

export interface StoreGcAnswerError {
  code?: number
  message?: string
}

export interface StoreGcAnswerLater {
  bytes?: number
  entries?: number
}

export interface StoreGcAnswerProgress {
  done?: number
  total?: number
}

export interface StoreGcAnswerRemoved {
  bytes?: number
  entries?: number
}

export interface StoreGetAnswer {
  layers?: StoreGetAnswerLayers
  unused?: StoreGetAnswerUnused
  uploads?: StoreGetAnswerUploads
  stacks?: StoreGetAnswerStacksItem[]
  /** Where sandboxes write, and why there */
  files?: StoreGetAnswerFiles
  /** If the node keeps its files in a pool. heldBytes: cannot be written, because the disk under the pool is too full; diskBytes: what the pool occupies there */
  pool?: StoreGetAnswerPool
}

/** Where sandboxes write, and why there */
export interface StoreGetAnswerFiles {
  driver?: string
  why?: string
}

export interface StoreGetAnswerLayers {
  bytes?: number
  entries?: number
  sharedBytes?: number
}

/** If the node keeps its files in a pool. heldBytes: cannot be written, because the disk under the pool is too full; diskBytes: what the pool occupies there */
export interface StoreGetAnswerPool {
  usedBytes?: number
  freeBytes?: number
  heldBytes?: number
  maxBytes?: number
  diskBytes?: number
  readOnly?: boolean
}

export interface StoreGetAnswerStacksItem {
  id?: string
  ownBytes?: number
  ownEntries?: number
  sharedBytes?: number
  sharedEntries?: number
}

export interface StoreGetAnswerUnused {
  bytes?: number
  entries?: number
}

export interface StoreGetAnswerUploads {
  bytes?: number
  entries?: number
}

export interface StoreVerifyAnswer {
  progress?: StoreVerifyAnswerProgress
  error?: StoreVerifyAnswerError
  problemCount?: number
  checkedBytes?: number
  /** layers that had no digest yet, and have one now */
  digestedLayers?: number
  problems?: string[]
}

export interface StoreVerifyAnswerError {
  code?: number
  message?: string
}

export interface StoreVerifyAnswerProgress {
  done?: number
  total?: number
}

export interface TemplateImportBody {
  image: string
  name?: string
  tag?: string
  username?: string
  password?: string
}

export interface TemplateListAnswer {
  templates?: NativeTemplate[]
}

export interface TemplateTagAddAnswer {
  buildID?: string
  tags?: string[]
}

export interface TemplateTagAddBody {
  /** NAME:TAG */
  target: string
  tags: string[]
}

export interface TemplateTagRemoveBody {
  name: string
  tags: string[]
}

export interface TemplateUpdateBody {
  /** Other tenants may use it */
  public?: boolean
  /** Sandboxes made from it keep a generation of their files after every command */
  history?: boolean
}

export interface Tenant {
  id?: string
  name?: string
  quota?: Quota
  used?: TenantUsed
  /** What is in force: the quota's, or else the node's; 0 is no limit */
  limits?: TenantLimits
}

/** What is in force: the quota's, or else the node's; 0 is no limit */
export interface TenantLimits {
  storageBytes?: number
  storageEntries?: number
}

export interface TenantListAnswer {
  tenants?: Tenant[]
}

export interface TenantPutAnswer {
  id?: string
}

export interface TenantPutBody {
  id: string
  name?: string
  quota?: Quota
}

export interface TenantUpdateBody {
  name?: string
  quota?: Quota
}

export interface TenantUsed {
  sandboxes?: number
  cpuMilli?: number
  memoryBytes?: number
  diskBytes?: number
  /** Snapshots and paused sandboxes; not in the list of all tenants */
  snapshots?: number
  /** Of all layers that what the tenant keeps is made of, each once, and quotas of volumes; not in the list of all tenants */
  storageBytes?: number
  /** Files, directories and links, counted in the same way; not in the list of all tenants */
  storageEntries?: number
}

export interface Transaction {
  id: string
  sandboxID: string
  command: string
  at: string
  exitCode?: number
  /** instead of exitCode, of a command that was killed */
  signal?: number
  wallMs: number
  state: "open" | "committing"
}

/** A transaction with its output and what it changed */
export interface TransactionResult {
  id: string
  sandboxID: string
  command: string
  at: string
  exitCode?: number
  /** instead of exitCode, of a command that was killed */
  signal?: number
  wallMs: number
  state: "open" | "committing"
  stdout: string
  stderr: string
  /** Bytes that were not kept */
  outputOmitted?: number
  changes: Change[]
  /** So many there are; 10,000 and 8 MiB of them are listed at most */
  total: number
  /** true if some are not listed */
  truncated?: boolean
  /** false: only files are copied */
  memory: boolean
}

export interface TxRunBody {
  /** for sh -c */
  command: string
  user?: string
  cwd?: string
  envs?: Record<string, string>
  /** seconds, 60 if left out, 600 at most */
  timeout?: number
  rights?: Rights | null
}

export interface VolumeCreateBody {
  name: string
  /** Enforced, or the volume is refused (501). Without it the node's own (volumes.quota) */
  quota?: VolumeCreateBodyQuota
}

/** Enforced, or the volume is refused (501). Without it the node's own (volumes.quota) */
export interface VolumeCreateBodyQuota {
  /** 0: none */
  bytes?: number
  /** 0: none */
  entries?: number
}

export interface VolumeListAnswer {
  volumes?: NativeVolume[]
}

export interface VolumeUpdateBody {
  /** What is left out stays as it is */
  quota: VolumeUpdateBodyQuota
}

/** What is left out stays as it is */
export interface VolumeUpdateBodyQuota {
  /** 0: none */
  bytes?: number
  /** 0: none */
  entries?: number
}
