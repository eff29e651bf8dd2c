"""Types of requests and answers. Written by tools/gen-clients from docs/openapi.json; do not edit."""
from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

# ruff: noqa: E501


class Applied(TypedDict):
    """How many paths a commit or an undo changed."""

    committed: NotRequired[bool]
    # The generation that an undo went back to
    to: NotRequired[int]
    added: int
    changed: int
    removed: int
    # How long the sandbox stood still
    frozenUs: int


class Approval(TypedDict):
    id: NotRequired[str]
    sandbox: NotRequired[str]
    askedAt: NotRequired[str]
    host: NotRequired[str]
    port: NotRequired[int]
    method: NotRequired[str]
    path: NotRequired[str]
    rule: NotRequired[str]
    tls: NotRequired[bool]
    why: NotRequired[str]


class ApprovalDecideAnswer(TypedDict):
    id: NotRequired[str]
    decision: NotRequired[str]


class ApprovalDecideBody(TypedDict):
    decision: Literal["allow_once", "allow_minutes", "allow_sandbox", "deny"]
    minutes: NotRequired[int]


class ApprovalListAnswer(TypedDict):
    approvals: NotRequired[list[Approval]]


class BuildLogEntry(TypedDict):
    timestamp: NotRequired[str]
    level: NotRequired[Literal["debug", "info", "warn", "error"]]
    message: NotRequired[str]
    # base, 1 to n, finalize
    step: NotRequired[str]


class BuildLogsAnswer(TypedDict):
    logs: NotRequired[list[BuildLogEntry]]


class BuildPromise(TypedDict):
    templateID: NotRequired[str]
    buildID: NotRequired[str]
    names: NotRequired[list[str]]
    aliases: NotRequired[list[str]]
    tags: NotRequired[list[str]]
    public: NotRequired[bool]


class BuildRequest(TypedDict):
    # NAME or NAME:TAG
    name: str
    tags: NotRequired[list[str]]
    cpuCount: NotRequired[int]
    memoryMB: NotRequired[int]
    # the old word for name
    alias: NotRequired[str]


class BuildStage(TypedDict):
    fromImage: NotRequired[str]
    fromTemplate: NotRequired[str]
    fromStage: NotRequired[int]
    steps: NotRequired[list[BuildStep]]


class BuildStart(TypedDict):
    fromImage: NotRequired[str]
    fromTemplate: NotRequired[str]
    fromImageRegistry: NotRequired[BuildStartFromImageRegistry]
    startCmd: NotRequired[str]
    readyCmd: NotRequired[str]
    force: NotRequired[bool]
    fromStage: NotRequired[int]
    # What is built before, to start from or to copy from; an extension of Hutch
    stages: NotRequired[list[BuildStage]]
    steps: NotRequired[list[BuildStep]]


class BuildStartFromImageRegistry(TypedDict):
    type: NotRequired[Literal["registry", "aws", "gcp"]]
    awsAccessKeyId: NotRequired[str]
    awsSecretAccessKey: NotRequired[str]
    awsRegion: NotRequired[str]
    serviceAccountJson: NotRequired[str]
    username: NotRequired[str]
    password: NotRequired[str]


class BuildStatus(TypedDict):
    templateID: NotRequired[str]
    buildID: NotRequired[str]
    status: NotRequired[Literal["waiting", "building", "ready", "error"]]
    logs: NotRequired[list[str]]
    logEntries: NotRequired[list[BuildLogEntry]]
    reason: NotRequired[BuildStatusReason]


class BuildStatusReason(TypedDict):
    message: NotRequired[str]
    step: NotRequired[str]


class BuildStep(TypedDict):
    type: Literal["COPY", "RUN", "ENV", "WORKDIR", "USER"]
    args: list[str]
    force: NotRequired[bool]
    # COPY: name of the upload, 64 hexadecimal digits
    filesHash: NotRequired[str]
    # COPY: the stage before this one whose files are copied, instead of an upload
    fromStage: NotRequired[int]


class BuildUploadPlaceAnswer(TypedDict):
    present: NotRequired[bool]
    url: NotRequired[str]


class CapabilitiesAnswer(TypedDict):
    version: NotRequired[str]
    dialect: NotRequired[str]
    envdVersion: NotRequired[str]
    tiers: NotRequired[list[str]]
    privilege: NotRequired[str]
    enforcement: NotRequired[str]
    layers: NotRequired[list[str]]
    features: NotRequired[dict[str, bool]]
    limits: NotRequired[dict[str, int]]


class Change(TypedDict):
    """What became of one path."""

    path: str
    change: Literal["added", "changed", "removed"]
    type: Literal["file", "directory", "symlink", "other"]
    # Only of what changed
    what: NotRequired[list[Literal["type", "content", "mode", "owner", "time", "attributes"]]]
    sizeBefore: NotRequired[int]
    size: NotRequired[int]
    modeBefore: NotRequired[str]
    mode: NotRequired[str]


class CodeContext(TypedDict):
    contextID: str
    language: str
    cwd: str


class CodeContextCreateBody(TypedDict):
    language: NotRequired[str]
    cwd: NotRequired[str]
    # what the context's kernel may less than the sandbox: docs/rights.md. network, write
    rights: NotRequired[dict[str, Any]]


class CodeRunBody(TypedDict):
    code: str
    # python (if left out), javascript, typescript, r, java or bash; not with contextID
    language: NotRequired[str]
    # if left out: the default context of the language
    contextID: NotRequired[str]
    # variables of this cell
    env: NotRequired[dict[str, str]]
    # seconds; 0 or left out: none
    timeout: NotRequired[float]
    # what the cell may less than the sandbox: docs/rights.md. network, write, timeoutSeconds, outputBytes
    rights: NotRequired[dict[str, Any]]


Diff = TypedDict("Diff", {
    "from": 'int',
    # Not there if it is compared with now
    "to": 'NotRequired[int]',
    "changes": 'list[Change]',
    # So many there are; 10,000 and 8 MiB of them are listed at most
    "total": 'int',
    # true if some are not listed
    "truncated": 'NotRequired[bool]',
})


class EgressRules(TypedDict):
    """Egress settings in E2B's words; see docs/e2b.md."""

    allowOut: NotRequired[list[str]]
    denyOut: NotRequired[list[str]]
    # host -> list of one {transform:{headers}}; values may hold ${e2b.secrets.NAME}
    rules: NotRequired[dict[str, list[dict[str, Any]]]]
    egressProxy: NotRequired[EgressRulesEgressProxy | None]
    # How a refused connection looks to the program: an answer in words, or a connection that fails
    refusals: NotRequired[Literal["readable", "closed"]]
    allow_internet_access: NotRequired[bool]


class EgressRulesEgressProxy(TypedDict):
    address: NotRequired[str]
    username: NotRequired[str]
    # sealed on arrival; no answer tells it
    password: NotRequired[str]


class Error(TypedDict):
    # The HTTP status
    code: int
    message: str
    error_code: NotRequired[str]


class Forked(TypedDict):
    sandbox: NotRequired[Sandbox]
    error: NotRequired[Error]
    # What it cost; memory never comes along
    hutch: NotRequired[ForkedHutch]


class ForkedHutch(TypedDict):
    """What it cost; memory never comes along."""

    memory: NotRequired[bool]
    # How long the sandbox stood still
    frozenUs: NotRequired[int]
    bytes: NotRequired[int]


class Generation(TypedDict):
    """The files of a sandbox at one moment."""

    number: int
    at: str
    # The command after which it was made, or the label it was given
    command: str
    # Of what changed since the one before
    bytes: int
    # How long the sandbox stood still; only in the answer that made it
    frozenUs: NotRequired[int]


class History(TypedDict):
    sandboxID: str
    # One is made after each command
    everyCommand: bool
    # So many are kept; the oldest go first
    most: int
    generations: list[Generation]


class HistorySaveBody(TypedDict):
    # A label
    command: NotRequired[str]


class HistoryUndoBody(TypedDict):
    # left out: the one before the newest
    to: NotRequired[int]


class HttpMatch(TypedDict):
    """Requests: every given key must match."""

    methods: NotRequired[str | list[str]]
    # * within a segment, ** for any number of segments
    paths: NotRequired[str | list[str]]
    query: NotRequired[dict[str, Any]]
    headers: NotRequired[dict[str, Any]]
    content_types: NotRequired[str | list[str]]
    max_request_bytes: NotRequired[int | str]


class ImportLine(TypedDict):
    """One line of the answer: progress, then a template or an error."""

    progress: NotRequired[ImportLineProgress]
    template: NotRequired[ImportLineTemplate]
    error: NotRequired[Error]


class ImportLineProgress(TypedDict):
    done: NotRequired[int]
    total: NotRequired[int]
    text: NotRequired[str]


class ImportLineTemplate(TypedDict):
    id: NotRequired[str]
    name: NotRequired[str]
    tag: NotRequired[str]
    bytes: NotRequired[int]


class Isolation(TypedDict):
    tier: NotRequired[str]
    # Layers that are missing under best-effort
    degraded: NotRequired[str]
    # What it may reach: nothing, what its rules say, or every public address
    internet: NotRequired[Literal["off", "rules", "public"]]
    # Whether its ports may be reached without a token; single ports may differ
    ports: NotRequired[Literal["private", "public"]]
    # How a refused connection looks to the program: an answer in words, or a connection that fails
    refusals: NotRequired[Literal["readable", "closed"]]


class Key(TypedDict):
    id: NotRequired[str]
    tenant: NotRequired[str]
    name: NotRequired[str]
    # The last digits
    hint: NotRequired[str]
    scopes: NotRequired[list[str]]
    createdAt: NotRequired[str]
    expiresAt: NotRequired[str | None]
    usedAt: NotRequired[str | None]


class KeyCreateAnswer(TypedDict):
    id: NotRequired[str]
    tenant: NotRequired[str]
    key: NotRequired[str]
    scopes: NotRequired[list[str]]


class KeyCreateBody(TypedDict):
    tenant: str
    name: NotRequired[str]
    # Without it: sandboxes and templates. read wins over all others: such a key changes nothing, and sees contents
    # only with files
    scopes: NotRequired[list[Literal["sandboxes", "templates", "files", "read", "admin"]]]
    expiresAt: NotRequired[str]


class KeyListAnswer(TypedDict):
    keys: NotRequired[list[Key]]


class Lifecycle(TypedDict):
    state: NotRequired[Literal["running", "pausing", "frozen", "stored", "resuming"]]
    onTimeout: NotRequired[Literal["kill", "pause", "pause-files"]]
    # Woken by traffic
    autoResume: NotRequired[bool]
    # Paused after so many seconds without traffic; 0: never
    idleTimeout: NotRequired[int]
    timeout: NotRequired[int]
    bytes: NotRequired[int]
    stack: NotRequired[str]
    parent: NotRequired[str]


class LifecycleUpdateBody(TypedDict):
    onTimeout: NotRequired[Literal["kill", "pause", "pause-files"]]
    # Woken by traffic
    autoResume: NotRequired[bool]
    # Paused after so many seconds without traffic; 0: never
    idleTimeout: NotRequired[int]


class ListedSandbox(TypedDict):
    sandboxID: str
    templateID: str
    alias: NotRequired[str]
    clientID: str
    startedAt: str
    endAt: str
    cpuCount: int
    memoryMB: int
    diskSizeMB: int
    state: Literal["running", "paused"]
    envdVersion: str
    metadata: NotRequired[dict[str, str]]
    # What it has
    volumeMounts: NotRequired[list[ListedSandboxVolumeMountsItem]]


class ListedSandboxVolumeMountsItem(TypedDict):
    name: str
    path: str
    readOnly: NotRequired[bool]


class LogEntry(TypedDict):
    timestamp: NotRequired[str]
    level: NotRequired[Literal["debug", "info", "warn", "error"]]
    message: NotRequired[str]
    fields: NotRequired[dict[str, str]]


class Metric(TypedDict):
    timestamp: NotRequired[str]
    timestampUnix: NotRequired[int]
    cpuCount: NotRequired[int]
    cpuUsedPct: NotRequired[float]
    memUsed: NotRequired[int]
    memTotal: NotRequired[int]
    memCache: NotRequired[int]
    diskUsed: NotRequired[int]
    diskTotal: NotRequired[int]


class NativeTemplate(TypedDict):
    id: NotRequired[str]
    name: NotRequired[str]
    kind: NotRequired[Literal["directory", "built", "imported", "snapshot"]]
    # a tenant, or node
    owner: NotRequired[str]
    public: NotRequired[bool]
    state: NotRequired[str]
    text: NotRequired[str]
    bytes: NotRequired[int]
    spawned: NotRequired[int]
    createdAt: NotRequired[str]
    tags: NotRequired[list[NativeTemplateTagsItem]]
    # what its sandboxes start with
    config: NotRequired[dict[str, Any]]
    tag: NotRequired[str]
    # the reference that this tag was fetched as; not there for what was built or came as a file
    image: NotRequired[str]
    layers: NotRequired[int]
    ownBytes: NotRequired[int]
    ownEntries: NotRequired[int]


class NativeTemplateTagsItem(TypedDict):
    tag: NotRequired[str]
    buildID: NotRequired[str]
    createdAt: NotRequired[str]
    # the reference that it was fetched as; not there for what was built or came as a file
    image: NotRequired[str]


class NativeVolume(TypedDict):
    id: str
    name: str
    createdAt: str
    quota: NativeVolumeQuota
    # sandboxes, living or paused; at most 16 of them
    mountedBy: list[str]
    # how many there are
    mounts: int
    used: NotRequired[NativeVolumeUsed | None]
    # none, btrfs qgroup, project quota or image
    enforcedBy: NotRequired[str]
    enforced: NotRequired[NativeVolumeEnforced]
    # why it could not be measured
    problem: NotRequired[str]


class NativeVolumeEnforced(TypedDict):
    bytes: NotRequired[int | None]
    entries: NotRequired[int | None]


class NativeVolumeQuota(TypedDict):
    bytes: NotRequired[int | None]
    entries: NotRequired[int | None]


class NativeVolumeUsed(TypedDict):
    bytes: NotRequired[int]
    entries: NotRequired[int]


class Network(TypedDict):
    allowPublicTraffic: NotRequired[bool]
    maskRequestHost: NotRequired[str]
    httpsPorts: NotRequired[list[int]]
    allowOut: NotRequired[list[str]]
    denyOut: NotRequired[list[str]]
    # host -> list of one {transform:{headers}}; values may hold ${e2b.secrets.NAME}
    rules: NotRequired[dict[str, list[dict[str, Any]]]]
    egressProxy: NotRequired[NetworkEgressProxy | None]
    # How a refused connection looks to the program: an answer in words, or a connection that fails
    refusals: NotRequired[Literal["readable", "closed"]]


class NetworkCheckAnswer(TypedDict):
    verdict: NotRequired[Literal["allow", "deny", "ask"]]
    # null if it is allowed
    reason: NotRequired[str | None]
    # null if no rule fits
    rule: NotRequired[str | None]
    would_deny: NotRequired[bool]
    # A rule that would allow it
    grant: NotRequired[dict[str, Any]]


class NetworkCheckBody(TypedDict):
    url: str
    method: NotRequired[str]


class NetworkDenialsAnswer(TypedDict):
    denials: NotRequired[list[dict[str, Any]]]
    next: NotRequired[int]


class NetworkDocument(TypedDict):
    """What a sandbox may reach; docs/network-reference.md has every key."""

    version: NotRequired[Literal[1]]
    id: NotRequired[str]
    mode: NotRequired[Literal["enforce", "audit", "learn"]]
    default: NotRequired[Literal["deny", "public"]]
    order: NotRequired[Literal["deny-first", "allow-first"]]
    on_miss: NotRequired[Literal["deny", "ask"]]
    ask_hold: NotRequired[int]
    presets: NotRequired[str | list[str]]
    allow: NotRequired[str | list[str]]
    deny: NotRequired[str | list[str]]
    rules: NotRequired[list[NetworkRule]]
    limits: NotRequired[dict[str, Any]]
    dns: NotRequired[dict[str, Any]]
    tls: NotRequired[dict[str, Any]]
    deny_message: NotRequired[str]
    refusals: NotRequired[Literal["readable", "closed"]]
    upstream_proxy: NotRequired[str | dict[str, Any]]


class NetworkEgressProxy(TypedDict):
    address: NotRequired[str]
    username: NotRequired[str]
    # sealed on arrival; no answer tells it
    password: NotRequired[str]


class NetworkLearnedAnswer(TypedDict):
    policy: NotRequired[dict[str, Any]]


class NetworkReplaceBody(TypedDict):
    policy: GivenNetwork
    secrets: NotRequired[list[str]]
    expected_epoch: NotRequired[int]


class NetworkRule(TypedDict):
    """One rule of a network document; docs/network-reference.md has every key."""

    id: NotRequired[str]
    effect: NotRequired[Literal["allow", "deny"]]
    # a.b.c, *.b.c or .b.c
    hosts: NotRequired[str | list[str]]
    cidrs: NotRequired[str | list[str]]
    # 443, or 8000-8099
    ports: NotRequired[int | str | list[int | str]]
    proto: NotRequired[Literal["http", "tcp"]]
    # One of these must match
    http: NotRequired[HttpMatch | list[HttpMatch]]
    access: NotRequired[Literal["read-only", "read-write", "full"]]
    # Refused even if http allows it
    deny: NotRequired[HttpMatch | list[HttpMatch]]
    tls: NotRequired[Literal["auto", "intercept", "passthrough"]]
    # Ranges that are not public
    private: NotRequired[str | list[str]]
    # Secrets that such requests may carry
    secrets: NotRequired[str | list[str]]
    approval: NotRequired[Literal["none", "ask"]]
    limits: NotRequired[dict[str, Any]]
    # 2030-01-31T12:00:00Z, or seconds since 1970
    expires: NotRequired[str | int]
    # The rule ends after so many requests
    uses: NotRequired[int]
    cleartext: NotRequired[bool]
    broad: NotRequired[bool]
    repeats: NotRequired[bool]


class NetworkUpdateBody(TypedDict):
    add: NotRequired[list[NetworkRule]]
    remove: NotRequired[list[str]]
    set: NotRequired[dict[str, Any]]
    expected_epoch: NotRequired[int]


class NewNativeSandbox(TypedDict):
    template: NotRequired[str]
    # A name that no other sandbox of the tenant has (409); it becomes the metadata `name`
    name: NotRequired[str]
    memoryMB: NotRequired[int]
    # What it may write
    diskSizeMB: NotRequired[int]
    cpus: NotRequired[float]
    # Seconds; 0: until killed, unless the node or the tenant has a limit
    timeout: NotRequired[int]
    metadata: NotRequired[dict[str, str]]
    env: NotRequired[dict[str, str]]
    network: NotRequired[GivenNetwork]
    # Names of secrets to use; what they are bound to is allowed
    secrets: NotRequired[list[str]]
    # Its ports may be reached without a token
    publicTraffic: NotRequired[bool]
    # Ports that are public although the sandbox is private
    publicPorts: NotRequired[list[int]]
    # By port: the name a service is asked by. localhost: Host and Origin say localhost:PORT, as dev servers expect;
    # preserve: always the visitor's. Without a word a service that is known to refuse other names is asked as
    # localhost
    portHosts: NotRequired[dict[str, Literal["preserve", "localhost"]]]
    onTimeout: NotRequired[Literal["kill", "pause", "pause-files"]]
    # Woken by traffic
    autoResume: NotRequired[bool]
    # Paused after so many seconds without traffic; 0: never
    idleTimeout: NotRequired[int]
    # Volumes of the tenant, by name or id, and where they are inside
    volumes: NotRequired[list[NewNativeSandboxVolumesItem]]
    # Every command opens a generation of the files
    history: NotRequired[bool]
    # Directories that the operator offers (volumes.host_dirs), and where they are inside
    hostDirs: NotRequired[list[NewNativeSandboxHostDirsItem]]


class NewNativeSandboxHostDirsItem(TypedDict):
    name: str
    path: str
    readOnly: NotRequired[bool]


class NewNativeSandboxVolumesItem(TypedDict):
    name: str
    path: str
    readOnly: NotRequired[bool]


class NodeGetAnswer(TypedDict):
    version: NotRequired[str]
    domain: NotRequired[str]
    uptimeMs: NotRequired[int]
    sandboxes: NotRequired[NodeGetAnswerSandboxes]
    templates: NotRequired[list[NodeGetAnswerTemplatesItem]]


class NodeGetAnswerSandboxes(TypedDict):
    creating: NotRequired[int]
    running: NotRequired[int]
    killing: NotRequired[int]
    max: NotRequired[int]


class NodeGetAnswerTemplatesItem(TypedDict):
    name: NotRequired[str]
    state: NotRequired[str]
    text: NotRequired[str]
    spawned: NotRequired[int]


class PortLinkAnswer(TypedDict):
    url: str
    expiresAt: str


class PortLinkBody(TypedDict):
    # Seconds
    expiresIn: NotRequired[int]
    # Where it leads, percent-encoded
    path: NotRequired[str]


class PortSettings(TypedDict):
    # Every port is public
    publicTraffic: NotRequired[bool]
    # Ports that are public although the sandbox is private
    publicPorts: NotRequired[list[int]]
    # By port: the name a service is asked by. localhost: Host and Origin say localhost:PORT, as dev servers expect;
    # preserve: always the visitor's. Without a word a service that is known to refuse other names is asked as
    # localhost
    portHosts: NotRequired[dict[str, Literal["preserve", "localhost"]]]


class Ports(TypedDict):
    sandboxID: str
    # Every port is public
    publicTraffic: bool
    # Ports that are public although the sandbox is private
    publicPorts: list[int]
    # By port: the name a service is asked by. localhost: Host and Origin say localhost:PORT, as dev servers expect;
    # preserve: always the visitor's. Without a word a service that is known to refuse other names is asked as
    # localhost
    portHosts: dict[str, Literal["preserve", "localhost"]]
    # Of any port, with {port} in its place
    url: str
    # Only after a change, of a sandbox that is private
    trafficAccessToken: NotRequired[str]


class Quota(TypedDict):
    """0 is no limit."""

    sandboxes: NotRequired[int]
    cpuMilli: NotRequired[int]
    memoryBytes: NotRequired[int]
    diskBytes: NotRequired[int]
    requestsPerSecond: NotRequired[int]
    burst: NotRequired[int]
    maxTimeoutSeconds: NotRequired[int]
    snapshots: NotRequired[int]
    # Bytes of snapshots, paused sandboxes, templates, histories, transactions and quotas of volumes; 0: the node's
    # kept.bytes. Was called stateBytes, which is still understood
    storageBytes: NotRequired[int]
    # Files, directories and links of the same; 0: the node's kept.entries
    storageEntries: NotRequired[int]


class Rights(TypedDict):
    """What one command and its children may less than others in the sandbox (docs/rights.md)."""

    network: NotRequired[Literal["off", "on"]]
    # "none", "all", or the paths below which files may be changed
    write: NotRequired[Literal["none", "all"] | list[str]]
    # own: a user of its own
    user: NotRequired[Literal["own", "same"]]
    timeoutSeconds: NotRequired[int]
    outputBytes: NotRequired[int]
    # memory of the command and all that it starts, within that of the sandbox
    memoryMB: NotRequired[int]


class Sandbox(TypedDict):
    sandboxID: str
    templateID: str
    alias: NotRequired[str]
    clientID: str
    envdVersion: str
    envdAccessToken: NotRequired[str]
    trafficAccessToken: NotRequired[str | None]
    domain: NotRequired[str | None]
    hutch: NotRequired[Isolation]


class SandboxConnectBody(TypedDict):
    timeout: NotRequired[int]
    # false: start from the files, whatever memory was kept
    memory: NotRequired[bool]


class SandboxDetail(TypedDict):
    sandboxID: str
    templateID: str
    alias: NotRequired[str]
    clientID: str
    startedAt: str
    endAt: str
    cpuCount: int
    memoryMB: int
    diskSizeMB: int
    state: Literal["running", "paused"]
    envdVersion: str
    metadata: NotRequired[dict[str, str]]
    volumeMounts: NotRequired[list[dict[str, Any]]]
    envdAccessToken: NotRequired[str]
    domain: NotRequired[str | None]
    allowInternetAccess: NotRequired[bool]
    network: NotRequired[Network]
    lifecycle: NotRequired[SandboxDetailLifecycle]
    hutch: NotRequired[Isolation]


class SandboxDetailLifecycle(TypedDict):
    autoResume: NotRequired[bool]
    onTimeout: NotRequired[str]


class SandboxForkBody(TypedDict):
    count: NotRequired[int]
    timeout: NotRequired[int]


class SandboxLogsAnswer(TypedDict):
    logs: NotRequired[list[LogEntry]]


class SandboxMetricsOfSeveralAnswer(TypedDict):
    sandboxes: NotRequired[dict[str, Metric]]


class SandboxNetwork(TypedDict):
    sandbox: NotRequired[str]
    epoch: NotRequired[int]
    enforced: NotRequired[bool]
    # How a refused connection looks to the program: an answer in words, or a connection that fails
    refusals: NotRequired[Literal["readable", "closed"]]
    policy: NotRequired[NetworkPolicy]
    effective: NotRequired[dict[str, Any]]
    e2b: NotRequired[EgressRules]
    placeholders: NotRequired[dict[str, str]]
    usage: NotRequired[dict[str, Any]]


class SandboxPauseBody(TypedDict):
    memory: NotRequired[bool]


class SandboxSetTimeoutBody(TypedDict):
    timeout: int


class Secret(TypedDict):
    name: NotRequired[str]
    id: NotRequired[str]
    revision: NotRequired[int]
    # Where it may go; see docs/secrets.md
    spec: NotRequired[dict[str, Any]]
    metadata: NotRequired[dict[str, Any]]
    createdAt: NotRequired[str]
    updatedAt: NotRequired[str]


class SecretBinding(TypedDict):
    """Where the value of a secret may go."""

    hosts: list[str]
    ports: NotRequired[list[int | str]]
    methods: NotRequired[list[str]]
    paths: NotRequired[list[str]]


class SecretCreateBody(TypedDict):
    name: str
    value: NotRequired[str]
    spec: NotRequired[SecretSpec]
    metadata: NotRequired[dict[str, Any]]


class SecretListAnswer(TypedDict):
    secrets: NotRequired[list[Secret]]


class SecretPutBody(TypedDict):
    value: NotRequired[str]
    spec: NotRequired[SecretSpec]
    metadata: NotRequired[dict[str, Any]]


class SecretSpec(TypedDict):
    """Where a secret may go and how it is put into a request; docs/secrets.md has every key."""

    bind: NotRequired[list[SecretBinding]]
    inject: NotRequired[dict[str, Any]]
    # The variable that holds the placeholder inside
    env: NotRequired[str]
    placeholder: NotRequired[str]
    on_violation: NotRequired[Literal["block", "log"]]
    redact_response: NotRequired[bool]
    allow_plaintext: NotRequired[bool]


class Snapshot(TypedDict):
    snapshotID: str
    names: list[str]
    # What it cost; memory never comes along
    hutch: NotRequired[SnapshotHutch]


class SnapshotCreateBody(TypedDict):
    name: NotRequired[str]


class SnapshotHutch(TypedDict):
    """What it cost; memory never comes along."""

    memory: NotRequired[bool]
    # How long the sandbox stood still
    frozenUs: NotRequired[int]
    bytes: NotRequired[int]


class StopAllAnswer(TypedDict):
    stopped: NotRequired[int]
    failed: NotRequired[int]


class StoreGcAnswer(TypedDict):
    progress: NotRequired[StoreGcAnswerProgress]
    error: NotRequired[StoreGcAnswerError]
    removed: NotRequired[StoreGcAnswerRemoved]
    later: NotRequired[StoreGcAnswerLater]
    lines: NotRequired[list[str]]


class StoreGcAnswerError(TypedDict):
    code: NotRequired[int]
    message: NotRequired[str]


class StoreGcAnswerLater(TypedDict):
    bytes: NotRequired[int]
    entries: NotRequired[int]


class StoreGcAnswerProgress(TypedDict):
    done: NotRequired[int]
    total: NotRequired[int]


class StoreGcAnswerRemoved(TypedDict):
    bytes: NotRequired[int]
    entries: NotRequired[int]


class StoreGetAnswer(TypedDict):
    layers: NotRequired[StoreGetAnswerLayers]
    unused: NotRequired[StoreGetAnswerUnused]
    uploads: NotRequired[StoreGetAnswerUploads]
    stacks: NotRequired[list[StoreGetAnswerStacksItem]]
    # Where sandboxes write, and why there
    files: NotRequired[StoreGetAnswerFiles]
    # If the node keeps its files in a pool. heldBytes: cannot be written, because the disk under the pool is too
    # full; diskBytes: what the pool occupies there
    pool: NotRequired[StoreGetAnswerPool]


class StoreGetAnswerFiles(TypedDict):
    """Where sandboxes write, and why there."""

    driver: NotRequired[str]
    why: NotRequired[str]


class StoreGetAnswerLayers(TypedDict):
    bytes: NotRequired[int]
    entries: NotRequired[int]
    sharedBytes: NotRequired[int]


class StoreGetAnswerPool(TypedDict):
    """If the node keeps its files in a pool. heldBytes: cannot be written, because the disk under the pool is too full; diskBytes: what the pool occupies there."""

    usedBytes: NotRequired[int]
    freeBytes: NotRequired[int]
    heldBytes: NotRequired[int]
    maxBytes: NotRequired[int]
    diskBytes: NotRequired[int]
    readOnly: NotRequired[bool]


class StoreGetAnswerStacksItem(TypedDict):
    id: NotRequired[str]
    ownBytes: NotRequired[int]
    ownEntries: NotRequired[int]
    sharedBytes: NotRequired[int]
    sharedEntries: NotRequired[int]


class StoreGetAnswerUnused(TypedDict):
    bytes: NotRequired[int]
    entries: NotRequired[int]


class StoreGetAnswerUploads(TypedDict):
    bytes: NotRequired[int]
    entries: NotRequired[int]


class StoreVerifyAnswer(TypedDict):
    progress: NotRequired[StoreVerifyAnswerProgress]
    error: NotRequired[StoreVerifyAnswerError]
    problemCount: NotRequired[int]
    checkedBytes: NotRequired[int]
    # layers that had no digest yet, and have one now
    digestedLayers: NotRequired[int]
    problems: NotRequired[list[str]]


class StoreVerifyAnswerError(TypedDict):
    code: NotRequired[int]
    message: NotRequired[str]


class StoreVerifyAnswerProgress(TypedDict):
    done: NotRequired[int]
    total: NotRequired[int]


class TemplateImportBody(TypedDict):
    image: str
    name: NotRequired[str]
    tag: NotRequired[str]
    username: NotRequired[str]
    password: NotRequired[str]


class TemplateListAnswer(TypedDict):
    templates: NotRequired[list[NativeTemplate]]


class TemplateTagAddAnswer(TypedDict):
    buildID: NotRequired[str]
    tags: NotRequired[list[str]]


class TemplateTagAddBody(TypedDict):
    # NAME:TAG
    target: str
    tags: list[str]


class TemplateTagRemoveBody(TypedDict):
    name: str
    tags: list[str]


class TemplateUpdateBody(TypedDict):
    # Other tenants may use it
    public: NotRequired[bool]
    # Sandboxes made from it keep a generation of their files after every command
    history: NotRequired[bool]


class Tenant(TypedDict):
    id: NotRequired[str]
    name: NotRequired[str]
    quota: NotRequired[Quota]
    used: NotRequired[TenantUsed]
    # What is in force: the quota's, or else the node's; 0 is no limit
    limits: NotRequired[TenantLimits]


class TenantLimits(TypedDict):
    """What is in force: the quota's, or else the node's; 0 is no limit."""

    storageBytes: NotRequired[int]
    storageEntries: NotRequired[int]


class TenantListAnswer(TypedDict):
    tenants: NotRequired[list[Tenant]]


class TenantPutAnswer(TypedDict):
    id: NotRequired[str]


class TenantPutBody(TypedDict):
    id: str
    name: NotRequired[str]
    quota: NotRequired[Quota]


class TenantUpdateBody(TypedDict):
    name: NotRequired[str]
    quota: NotRequired[Quota]


class TenantUsed(TypedDict):
    sandboxes: NotRequired[int]
    cpuMilli: NotRequired[int]
    memoryBytes: NotRequired[int]
    diskBytes: NotRequired[int]
    # Snapshots and paused sandboxes; not in the list of all tenants
    snapshots: NotRequired[int]
    # Of all layers that what the tenant keeps is made of, each once, and quotas of volumes; not in the list of all
    # tenants
    storageBytes: NotRequired[int]
    # Files, directories and links, counted in the same way; not in the list of all tenants
    storageEntries: NotRequired[int]


class Transaction(TypedDict):
    id: str
    sandboxID: str
    command: str
    at: str
    exitCode: NotRequired[int]
    # instead of exitCode, of a command that was killed
    signal: NotRequired[int]
    wallMs: int
    state: Literal["open", "committing"]


class TransactionResult(TypedDict):
    """A transaction with its output and what it changed."""

    id: str
    sandboxID: str
    command: str
    at: str
    exitCode: NotRequired[int]
    # instead of exitCode, of a command that was killed
    signal: NotRequired[int]
    wallMs: int
    state: Literal["open", "committing"]
    stdout: str
    stderr: str
    # Bytes that were not kept
    outputOmitted: NotRequired[int]
    changes: list[Change]
    # So many there are; 10,000 and 8 MiB of them are listed at most
    total: int
    # true if some are not listed
    truncated: NotRequired[bool]
    # false: only files are copied
    memory: bool


class TxRunBody(TypedDict):
    # for sh -c
    command: str
    user: NotRequired[str]
    cwd: NotRequired[str]
    envs: NotRequired[dict[str, str]]
    # seconds, 60 if left out, 600 at most
    timeout: NotRequired[int]
    rights: NotRequired[Rights | None]


class VolumeCreateBody(TypedDict):
    name: str
    # Enforced, or the volume is refused (501). Without it the node's own (volumes.quota)
    quota: NotRequired[VolumeCreateBodyQuota]


class VolumeCreateBodyQuota(TypedDict):
    """Enforced, or the volume is refused (501). Without it the node's own (volumes.quota)."""

    # 0: none
    bytes: NotRequired[int]
    # 0: none
    entries: NotRequired[int]


class VolumeListAnswer(TypedDict):
    volumes: NotRequired[list[NativeVolume]]


class VolumeUpdateBody(TypedDict):
    # What is left out stays as it is
    quota: VolumeUpdateBodyQuota


class VolumeUpdateBodyQuota(TypedDict):
    """What is left out stays as it is."""

    # 0: none
    bytes: NotRequired[int]
    # 0: none
    entries: NotRequired[int]


# A network document, or the word public or off; see docs/network.md
GivenNetwork = NetworkDocument | Literal["public", "off"]

# A network document, or the word public or off; see docs/network.md
NetworkPolicy = dict[str, Any] | Literal["public", "off"]
