/** The way to a node: sandboxes and secrets of the tenant that the key belongs to. */
import { Api } from './api.js'
import { HutchError } from './errors.js'
import { Http } from './http.js'
import { Sandbox } from './sandbox.js'

/** Values that sandboxes use and never hold (docs/secrets.md). Bind one to hosts, and name it when a sandbox is made. */
class Secrets {
  constructor(api) {
    this.api = api
  }

  /** Makes or changes one. spec is the whole of where it may go; hosts, methods, paths, env and inject are for the usual case. */
  set(name, value, { hosts, env, methods, paths, inject, spec } = {}) {
    if (!spec && (hosts || env || inject)) {
      const bind = { hosts: hosts ?? [], ...(methods ? { methods } : {}), ...(paths ? { paths } : {}) }
      spec = { ...(hosts ? { bind: [bind] } : {}), ...(env ? { env } : {}), ...(inject ? { inject } : {}) }
    }
    return this.api.secretPut(name, { ...(value === undefined ? {} : { value }), ...(spec ? { spec } : {}) })
  }

  /** Without its value, which nothing returns. */
  get(name) {
    return this.api.secretGet(name)
  }

  async all() {
    return (await this.api.secretList()).secrets ?? []
  }

  remove(name) {
    return this.api.secretRemove(name)
  }
}

/** A node. url and key default to HUTCH_URL and HUTCH_API_KEY, then to what `eval "$(hutch env)"` sets. plain: send the key over http:// to
 *  another machine. `api` has every route. */
export class Hutch {
  constructor({ url, key, timeout, retries, plain } = {}) {
    const env = globalThis.process?.env ?? {}
    key ??= env.HUTCH_API_KEY || env.E2B_API_KEY
    if (!key) throw new HutchError('no key: pass key, set HUTCH_API_KEY, or run eval "$(hutch env)"')
    this.http = new Http(url ?? (env.HUTCH_URL || env.E2B_API_URL || 'http://127.0.0.1:7070'), key, { timeout, retries, plain })
    this.api = new Api(this.http)
    this.secrets = new Secrets(this.api)
  }

  /** Makes a sandbox, without network and with private ports unless you ask for them. timeout: seconds until it ends, 0 for never. Further
   *  fields are those of NewNativeSandbox, such as memoryMB, volumes, publicPorts. A create whose answer is lost is repeated and makes no
   *  second sandbox. */
  async create(template = 'base', options = {}) {
    const body = Object.fromEntries(Object.entries({ template, ...options }).filter(([, v]) => v !== undefined))
    return new Sandbox(this, await this.api.sandboxCreate(body, { idempotencyKey: crypto.randomUUID() }))
  }

  /** A sandbox that exists; a paused one goes on. timeout: it lives at least so many seconds more. */
  async connect(id, { timeout } = {}) {
    return new Sandbox(this, await this.api.sandboxConnect(id, timeout === undefined ? {} : { timeout }))
  }

  /** All of the tenant, running and paused, page by page. */
  async * sandboxes({ state, template, metadata } = {}) {
    const labels = metadata ? String(new URLSearchParams(metadata)) : undefined
    for (let nextToken; ;) {
      const page = await this.api.sandboxList({ state, template, metadata: labels, nextToken })
      yield * page
      if (!(nextToken = page.nextToken)) return
    }
  }
}
