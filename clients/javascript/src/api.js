/** A method for each route of a node. Written by tools/gen-clients from docs/openapi.json; do not edit. */
import { quoted } from './http.js'

export class Api {
  constructor(http) {
    this.http = http
  }

  health() {
    return this.http.none('GET', '/health')
  }

  sandboxList({ metadata, state, template, startedAfter, order, limit, nextToken } = {}) {
    return this.http.page('GET', '/v2/sandboxes', { query: { metadata: metadata, state: state, template: template, startedAfter: startedAfter, order: order, limit: limit, nextToken: nextToken } })
  }

  sandboxMetricsOfSeveral({ sandboxIds } = {}) {
    return this.http.json('GET', '/sandboxes/metrics', { query: { sandbox_ids: sandboxIds } })
  }

  sandboxGet(id) {
    return this.http.json('GET', `/sandboxes/${quoted(id)}`)
  }

  sandboxKill(id) {
    return this.http.none('DELETE', `/sandboxes/${quoted(id)}`)
  }

  sandboxSetTimeout(id, body) {
    return this.http.none('POST', `/sandboxes/${quoted(id)}/timeout`, { body })
  }

  sandboxConnect(id, body) {
    return this.http.json('POST', `/v2/sandboxes/${quoted(id)}/connect`, { body: body ?? {} })
  }

  sandboxMetrics(id, { start, end } = {}) {
    return this.http.json('GET', `/sandboxes/${quoted(id)}/metrics`, { query: { start: start, end: end } })
  }

  sandboxLogs(id, { cursor, limit, direction, level, search } = {}) {
    return this.http.json('GET', `/v2/sandboxes/${quoted(id)}/logs`, { query: { cursor: cursor, limit: limit, direction: direction, level: level, search: search } })
  }

  sandboxPause(id, body) {
    return this.http.none('POST', `/sandboxes/${quoted(id)}/pause`, { body: body ?? {} })
  }

  snapshotCreate(id, body) {
    return this.http.json('POST', `/sandboxes/${quoted(id)}/snapshots`, { body: body ?? {} })
  }

  sandboxFork(id, body) {
    return this.http.json('POST', `/sandboxes/${quoted(id)}/fork`, { body: body ?? {} })
  }

  snapshotList({ sandboxID, name, limit, nextToken } = {}) {
    return this.http.page('GET', '/snapshots', { query: { sandboxID: sandboxID, name: name, limit: limit, nextToken: nextToken } })
  }

  buildPromise(body) {
    return this.http.json('POST', '/v3/templates', { body })
  }

  templateTagAdd(body) {
    return this.http.json('POST', '/templates/tags', { body })
  }

  templateTagRemove(body) {
    return this.http.none('DELETE', '/templates/tags', { body })
  }

  buildUploadPlace(id, hash) {
    return this.http.json('GET', `/templates/${quoted(id)}/files/${quoted(hash)}`)
  }

  buildStart(id, build, body) {
    return this.http.none('POST', `/v2/templates/${quoted(id)}/builds/${quoted(build)}`, { body })
  }

  buildStatus(id, build, { logsOffset, limit, level } = {}) {
    return this.http.json('GET', `/templates/${quoted(id)}/builds/${quoted(build)}/status`, { query: { logsOffset: logsOffset, limit: limit, level: level } })
  }

  buildLogs(id, build, { cursor, limit, direction, level } = {}) {
    return this.http.json('GET', `/templates/${quoted(id)}/builds/${quoted(build)}/logs`, { query: { cursor: cursor, limit: limit, direction: direction, level: level } })
  }

  openapi() {
    return this.http.json('GET', '/v1/openapi.json')
  }

  capabilities() {
    return this.http.json('GET', '/v1/capabilities')
  }

  nodeGet() {
    return this.http.json('GET', '/v1/node')
  }

  sandboxEvents(id, { after, follow, lastEventID } = {}) {
    return this.http.events('GET', `/v1/sandboxes/${quoted(id)}/events`, { query: { after: after, follow: follow }, headers: { 'Last-Event-ID': lastEventID } })
  }

  tenantList() {
    return this.http.json('GET', '/v1/tenants')
  }

  tenantPut(body) {
    return this.http.json('POST', '/v1/tenants', { body })
  }

  tenantGet(id) {
    return this.http.json('GET', `/v1/tenants/${quoted(id)}`)
  }

  tenantUpdate(id, body) {
    return this.http.none('PATCH', `/v1/tenants/${quoted(id)}`, { body })
  }

  tenantRemove(id) {
    return this.http.none('DELETE', `/v1/tenants/${quoted(id)}`)
  }

  keyList() {
    return this.http.json('GET', '/v1/keys')
  }

  keyCreate(body) {
    return this.http.json('POST', '/v1/keys', { body })
  }

  keyRemove(id) {
    return this.http.none('DELETE', `/v1/keys/${quoted(id)}`)
  }

  stopAll() {
    return this.http.json('POST', '/v1/stop-all')
  }

  storeGet() {
    return this.http.json('GET', '/v1/store')
  }

  storeVerify({ stack } = {}) {
    return this.http.lines('POST', '/v1/store/verify', { query: { stack: stack } })
  }

  storeGc({ dryRun } = {}) {
    return this.http.lines('POST', '/v1/store/gc', { query: { dryRun: dryRun } })
  }

  sandboxCreate(body, { idempotencyKey } = {}) {
    return this.http.json('POST', '/v1/sandboxes', { body, headers: { 'Idempotency-Key': idempotencyKey } })
  }

  networkGet(id) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/network`)
  }

  networkReplace(id, body) {
    return this.http.json('PUT', `/v1/sandboxes/${quoted(id)}/network`, { body })
  }

  networkUpdate(id, body) {
    return this.http.json('PATCH', `/v1/sandboxes/${quoted(id)}/network`, { body })
  }

  networkDenials(id, { since } = {}) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/network/denials`, { query: { since: since } })
  }

  networkUsage() {
    return this.http.json('GET', '/v1/network/usage')
  }

  networkStats(id) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/network/stats`)
  }

  networkLearned(id) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/network/learned`)
  }

  networkCheck(id, body) {
    return this.http.json('POST', `/v1/sandboxes/${quoted(id)}/network/check`, { body })
  }

  portsGet(id) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/ports`)
  }

  portsUpdate(id, body) {
    return this.http.json('PUT', `/v1/sandboxes/${quoted(id)}/ports`, { body })
  }

  portLink(id, port, body) {
    return this.http.json('POST', `/v1/sandboxes/${quoted(id)}/ports/${quoted(port)}/link`, { body: body ?? {} })
  }

  portLinksRevoke(id) {
    return this.http.none('DELETE', `/v1/sandboxes/${quoted(id)}/links`)
  }

  approvalList() {
    return this.http.json('GET', '/v1/approvals')
  }

  approvalDecide(id, body) {
    return this.http.json('POST', `/v1/approvals/${quoted(id)}`, { body })
  }

  secretList() {
    return this.http.json('GET', '/v1/secrets')
  }

  secretCreate(body) {
    return this.http.json('POST', '/v1/secrets', { body })
  }

  secretGet(name) {
    return this.http.json('GET', `/v1/secrets/${quoted(name)}`)
  }

  secretPut(name, body) {
    return this.http.json('PUT', `/v1/secrets/${quoted(name)}`, { body })
  }

  secretRemove(name) {
    return this.http.none('DELETE', `/v1/secrets/${quoted(name)}`)
  }

  historyGet(id) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/history`)
  }

  historySave(id, body) {
    return this.http.json('POST', `/v1/sandboxes/${quoted(id)}/history`, { body: body ?? {} })
  }

  historyDiff(id, { from, to, path } = {}) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/history/diff`, { query: { from: from, to: to, path: path } })
  }

  historyFile(id, number, { path } = {}) {
    return this.http.download('GET', `/v1/sandboxes/${quoted(id)}/history/${quoted(number)}/file`, { query: { path: path } })
  }

  historyUndo(id, body) {
    return this.http.json('POST', `/v1/sandboxes/${quoted(id)}/history/undo`, { body: body ?? {} })
  }

  txList(id) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/tx`)
  }

  txRun(id, body) {
    return this.http.json('POST', `/v1/sandboxes/${quoted(id)}/tx`, { body: body ?? {} })
  }

  txGet(id, tx) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/tx/${quoted(tx)}`)
  }

  txDiscard(id, tx) {
    return this.http.none('DELETE', `/v1/sandboxes/${quoted(id)}/tx/${quoted(tx)}`)
  }

  txCommit(id, tx) {
    return this.http.json('POST', `/v1/sandboxes/${quoted(id)}/tx/${quoted(tx)}/commit`)
  }

  templateList() {
    return this.http.json('GET', '/v1/templates')
  }

  templateGet(id) {
    return this.http.json('GET', `/v1/templates/${quoted(id)}`)
  }

  templateRemove(id) {
    return this.http.none('DELETE', `/v1/templates/${quoted(id)}`)
  }

  templateUpdate(id, body) {
    return this.http.none('PATCH', `/v1/templates/${quoted(id)}`, { body })
  }

  templateImport(body, { name, tag } = {}) {
    return this.http.lines('POST', '/v1/templates/import', { body, query: { name: name, tag: tag } })
  }

  templateRestore(body, { name, tag } = {}) {
    return this.http.lines('POST', '/v1/templates/restore', { body, query: { name: name, tag: tag } })
  }

  templateExport(id) {
    return this.http.download('GET', `/v1/templates/${quoted(id)}/export`)
  }

  buildCancel(id, build) {
    return this.http.none('DELETE', `/v1/templates/${quoted(id)}/builds/${quoted(build)}`)
  }

  lifecycleGet(id) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/lifecycle`)
  }

  lifecycleUpdate(id, body) {
    return this.http.json('PATCH', `/v1/sandboxes/${quoted(id)}/lifecycle`, { body })
  }

  volumeList() {
    return this.http.json('GET', '/v1/volumes')
  }

  volumeCreate(body) {
    return this.http.json('POST', '/v1/volumes', { body })
  }

  volumeGet(id) {
    return this.http.json('GET', `/v1/volumes/${quoted(id)}`)
  }

  volumeUpdate(id, body) {
    return this.http.json('PATCH', `/v1/volumes/${quoted(id)}`, { body })
  }

  volumeRemove(id) {
    return this.http.none('DELETE', `/v1/volumes/${quoted(id)}`)
  }

  codeRun(id, body) {
    return this.http.lines('POST', `/v1/sandboxes/${quoted(id)}/code`, { body: body ?? {} })
  }

  codeContextList(id) {
    return this.http.json('GET', `/v1/sandboxes/${quoted(id)}/contexts`)
  }

  codeContextCreate(id, body) {
    return this.http.json('POST', `/v1/sandboxes/${quoted(id)}/contexts`, { body: body ?? {} })
  }

  codeContextRestart(id, context) {
    return this.http.none('POST', `/v1/sandboxes/${quoted(id)}/contexts/${quoted(context)}/restart`)
  }

  codeContextRemove(id, context) {
    return this.http.none('DELETE', `/v1/sandboxes/${quoted(id)}/contexts/${quoted(context)}`)
  }
}
