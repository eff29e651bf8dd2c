/** HTTP to a node: repetition of what may be repeated, errors as exceptions. It is the runtime's fetch and needs nothing else. */
import { ConnectionLost, HutchError, RateLimited, Unavailable, apiError } from './errors.js'

const PAUSE_MOST = 5000
const LINE_MOST = 64 << 20
const NOT_SENT = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'ENETUNREACH', 'EHOSTUNREACH', 'UND_ERR_CONNECT_TIMEOUT'])

export const quoted = (text) => encodeURIComponent(String(text))
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

function isThisMachine(host) {
  return host === 'localhost' || host.endsWith('.localhost') || host === '[::1]' || /^127(\.\d{1,3}){3}$/.test(host)
}

/** What lies below "fetch failed". */
function reasonOf(e) {
  const cause = e.cause ?? e
  return cause.code ? `${cause.code}: ${cause.message}` : cause.message || String(e)
}

/** A list with `nextToken`: what the call for the next page takes, undefined on the last one. */
export class Page extends Array {
  nextToken
}

/** Bytes of an answer: iterate over it, or read() all. close() it if it is not read to its end. */
export class Download {
  #reader
  #rest = new Uint8Array(0)
  #stop
  constructor(response, stop) {
    this.status = response.status
    this.headers = response.headers
    this.#reader = response.body?.getReader()
    this.#stop = stop
  }

  async #next() {
    if (!this.#reader) return undefined
    try {
      const { done, value } = await this.#reader.read()
      return done ? undefined : value
    } catch (e) {
      throw new ConnectionLost(`the answer broke off: ${reasonOf(e)}`, { cause: e })
    }
  }

  async * [Symbol.asyncIterator]() {
    try {
      if (this.#rest.length) yield this.#take(this.#rest.length)
      for (let piece; (piece = await this.#next());) yield piece
    } finally {
      this.close()
    }
  }

  #take(n) {
    const some = this.#rest.subarray(0, n)
    this.#rest = this.#rest.subarray(n)
    return some
  }

  async #fill(n) {
    const parts = [this.#rest]
    let have = this.#rest.length
    for (let piece; have < n && (piece = await this.#next());) {
      parts.push(piece)
      have += piece.length
    }
    if (parts.length > 1) this.#rest = new Uint8Array(Buffer.concat(parts))
    return have >= n
  }

  /** All of it, or at most n bytes. */
  async read(n = Infinity) {
    await this.#fill(n)
    return this.#take(Math.min(n, this.#rest.length))
  }

  /** n bytes; ConnectionLost if there are fewer. */
  async exactly(n) {
    if (!await this.#fill(n)) throw new ConnectionLost('the answer broke off')
    return this.#take(n)
  }

  /** Lines without their ends, as text. */
  async * lines() {
    const decoder = new TextDecoder()
    let text = ''
    for await (const piece of this) {
      text += decoder.decode(piece, { stream: true })
      const lines = text.split('\n')
      text = lines.pop()
      if (text.length > LINE_MOST) throw new HutchError(`a line of more than ${LINE_MOST} characters`)
      yield * lines
    }
    if (text) yield text
  }

  close() {
    this.#reader?.cancel().catch(() => {})
    this.#reader = undefined
    this.#stop?.()
  }
}

export class Http {
  /** timeout: milliseconds until an answer begins. retries: of requests that may be repeated. plain: allow a key over http:// to another
   *  machine. */
  constructor(url, key, { timeout = 60000, retries = 4, plain = false } = {}) {
    let at
    try {
      at = new URL(url)
    } catch {}
    if (!at || !/^https?:$/.test(at.protocol) || at.pathname !== '/' || at.search) {
      throw new HutchError(`'${url}' is not the URL of a node; it looks like https://node.example or http://127.0.0.1:7070`)
    }
    if (at.protocol === 'http:' && !plain && !isThisMachine(at.hostname)) {
      throw new HutchError(`${url} would send the key in clear to another machine; use https://, or plain: true if the network is trusted`)
    }
    Object.assign(this, { origin: at.origin, key, timeout, retries })
  }

  /** The same way with another timeout. */
  patient(timeout) {
    return new Http(this.origin, this.key, { timeout, retries: this.retries, plain: true })
  }

  /** One attempt. An answer that is an error is thrown. */
  async #send(method, path, headers, body) {
    const stop = new AbortController()
    const timer = setTimeout(() => stop.abort(new Error(`no answer within ${this.timeout} ms`)), this.timeout)
    let response
    try {
      response = await fetch(this.origin + path, {
        method, headers, body, signal: stop.signal, redirect: 'error', ...(body instanceof ReadableStream ? { duplex: 'half' } : {})
      })
    } finally {
      clearTimeout(timer)
    }
    if (response.ok) return new Download(response, () => stop.abort())
    let said = await response.text().catch(() => '')
    try {
      said = JSON.parse(said)
    } catch {
      said = said.trim().slice(0, 2000)
    }
    const after = response.headers.get('retry-after') ?? ''
    throw apiError(response.status, said, /^\d+$/.test(after) ? Number(after) : undefined)
  }

  /** body is sent as JSON, content as it is: bytes, text, or a ReadableStream. A request is repeated if no connection was made or the node
   *  asks for it (429 and 503 with Retry-After); GET, PUT, DELETE and what has an Idempotency-Key also after a broken connection. */
  async request(method, path, { query, headers, body, content, key = true, repeatable } = {}) {
    const given = Object.entries(query ?? {}).filter(([, v]) => v !== undefined && v !== null).map(([k, v]) => [k, String(v)])
    if (given.length) path += (path.includes('?') ? '&' : '?') + new URLSearchParams(given)
    const h = Object.fromEntries(Object.entries(headers ?? {}).filter(([, v]) => v !== undefined && v !== null).map(([k, v]) => [k, String(v)]))
    if (key) h['X-API-KEY'] = this.key
    if (body instanceof Uint8Array || body instanceof ReadableStream) [content, body] = [body, undefined] // a route that takes JSON or bytes
    if (body !== undefined) {
      h['Content-Type'] = 'application/json'
      content = JSON.stringify(body)
    } else if (content !== undefined) h['Content-Type'] ??= 'application/octet-stream'
    repeatable ??= ['GET', 'PUT', 'DELETE'].includes(method) || 'Idempotency-Key' in h
    const whole = !(content instanceof ReadableStream)
    for (let attempt = 1; ; attempt++) {
      const again = whole && attempt <= this.retries
      let pause = 100 * 2 ** attempt
      try {
        return await this.#send(method, path, h, content)
      } catch (e) {
        if (e instanceof RateLimited || e instanceof Unavailable) {
          if (!again || !(repeatable || e.retryAfter !== undefined)) throw e
          pause = e.retryAfter !== undefined ? e.retryAfter * 1000 : pause
        } else if (e instanceof HutchError) throw e
        else if (!again || !(repeatable || NOT_SENT.has(e.cause?.code)) || e.name === 'AbortError' || /^no answer within/.test(e.message)) {
          throw new ConnectionLost(`${method} ${path}: ${reasonOf(e)}`, { cause: e })
        }
      }
      await sleep(Math.min(pause, PAUSE_MOST))
    }
  }

  // --- forms of answers

  async none(method, path, more) {
    await (await this.request(method, path, more)).read()
  }

  async json(method, path, more) {
    return JSON.parse(Buffer.from(await (await this.request(method, path, more)).read()).toString())
  }

  async page(method, path, more) {
    const answer = await this.request(method, path, more)
    const page = Page.from(JSON.parse(Buffer.from(await answer.read()).toString()))
    page.nextToken = answer.headers.get('x-next-token') ?? undefined
    return page
  }

  download(method, path, more) {
    return this.request(method, path, more)
  }

  /** The values of an answer with one per line. The request is sent by the first step. */
  async * lines(method, path, more) {
    for await (const line of (await this.request(method, path, more)).lines()) if (line.trim()) yield JSON.parse(line)
  }

  /** Server-sent events: {id, type, data}. The request is sent by the first step. */
  async * events(method, path, more = {}) {
    const answer = await this.request(method, path, { ...more, headers: { Accept: 'text/event-stream', ...more.headers } })
    let field = {}
    for await (const line of answer.lines()) {
      const at = line.indexOf(':')
      const name = at < 0 ? line.trim() : line.slice(0, at)
      if (name) field[name] = line.slice(at + 1).replace(/^ /, '').replace(/\r$/, '')
      else if (!line.trim() && 'data' in field) {
        yield { id: /^\d+$/.test(field.id ?? '') ? Number(field.id) : undefined, type: field.event ?? 'message', data: JSON.parse(field.data) }
        field = {}
      } // a line that begins with a colon keeps the connection alive
    }
  }
}
