/** Commands in a sandbox: started, followed, written to, ended. A connection that breaks is taken up again where it broke: a command goes on
 *  without its client, and the node keeps what it writes.
 *
 *  Underneath are calls of the Connect protocol to port 49983 of the sandbox (docs/e2b.md), as `hutch exec` makes them. */
import { CommandFailed, CommandTimeout, ConnectionLost, NotFound, SandboxEnded, Unavailable, apiError } from './errors.js'
import { sleep } from './http.js'

const ENVD = 49983
const PING_SECONDS = 20
const PATIENCE_MS = 30000
export const KEEP_BYTES = 16 << 20
const MESSAGE_BYTES = 64 << 20
const INPUT_BYTES = 1 << 20
const STATUS = {
  invalid_argument: 400, unauthenticated: 401, permission_denied: 403, not_found: 404, already_exists: 409, failed_precondition: 409,
  resource_exhausted: 429, unimplemented: 501, unavailable: 503, deadline_exceeded: 504
}
const STREAMS = ['stdout', 'stderr', 'pty']

/** The way to port 49983 of one sandbox. */
export class Inside {
  constructor(http, sandbox, token) {
    Object.assign(this, { http, sandbox, token })
  }

  request(method, path, { user, headers, ...more } = {}) {
    const h = { 'E2b-Sandbox-Id': this.sandbox, 'E2b-Sandbox-Port': ENVD }
    if (this.token) h['X-Access-Token'] = this.token
    if (user) h.Authorization = 'Basic ' + Buffer.from(`${user}:`).toString('base64')
    return this.http.request(method, path, { ...more, headers: { ...h, ...headers }, key: false })
  }

  /** A call with one answer: "filesystem.Filesystem/Stat". */
  async call(method, message, { user, repeatable = false } = {}) {
    const answer = await this.request('POST', '/' + method, { user, body: message, repeatable })
    return JSON.parse(Buffer.from(await answer.read()).toString() || '{}')
  }

  stream(method, message, { user, headers } = {}) {
    const data = Buffer.from(JSON.stringify(message))
    const head = Buffer.alloc(5)
    head.writeUInt32BE(data.length, 1)
    return this.request('POST', '/' + method, {
      user,
      headers: { 'Content-Type': 'application/connect+json', 'Connect-Protocol-Version': 1, 'Keepalive-Ping-Interval': PING_SECONDS, ...headers },
      content: new Uint8Array(Buffer.concat([head, data])),
      repeatable: false
    })
  }
}

/** How a command ended. `exitCode` is 128 + the number of the signal if one ended it, as shells say it. */
export class Result {
  constructor(fields) {
    Object.assign(this, fields)
  }

  get stdout() {
    return new TextDecoder().decode(this.stdoutBytes)
  }

  get stderr() {
    return new TextDecoder().decode(this.stderrBytes)
  }

  get ok() {
    return this.exitCode === 0
  }

  /** Itself; throws CommandFailed unless the exit code is 0. */
  check() {
    if (!this.ok) throw new CommandFailed(this)
    return this
  }
}

/** A command that runs. Iterate over it for its output, or wait() for its end; only one of them at a time. */
export class Command {
  constructor(inside, selector, answer, { user, terminal = false, timeout } = {}) {
    Object.assign(this, { inside, selector, answer, user, terminal, timeout })
    this.pid = selector.pid ?? 0
    this.next = { stdout: 0, stderr: 0, pty: 0 }
    this.end = undefined
    this.timedOut = undefined
  }

  // --- following it

  /** The next message of the stream; undefined: its regular end. */
  async message() {
    const head = Buffer.from(await this.answer.exactly(5))
    const n = head.readUInt32BE(1)
    if (n > MESSAGE_BYTES) throw new ConnectionLost(`a message of ${n} bytes; at most ${MESSAGE_BYTES} are expected`)
    const said = JSON.parse(Buffer.from(await this.answer.exactly(n)).toString() || '{}')
    if (!(head[0] & 2)) return said.event ?? {}
    this.answer.close()
    if (said.error?.code === 'deadline_exceeded') this.timedOut = said.error.message ?? 'the time of the command is over'
    else if (said.error) throw apiError(STATUS[said.error.code] ?? 500, said.error)
    return undefined
  }

  /** Opens the stream again, where it broke. */
  async takeUp() {
    const stop = Date.now() + PATIENCE_MS
    for (let pause = 100; ; pause = Math.min(2 * pause, 2000)) {
      try {
        this.answer = await this.inside.stream('process.Process/Connect', { process: this.selector, offsets: this.next }, { user: this.user })
        return
      } catch (e) {
        if (e instanceof SandboxEnded || !(e instanceof ConnectionLost || e instanceof Unavailable)) throw e
        if (Date.now() > stop) throw new ConnectionLost(`the command could not be reached again within ${PATIENCE_MS / 1000} s: ${e.message}`)
      }
      await sleep(pause)
    }
  }

  /** Its output as it comes: {stream, data, offset}. After the last piece `end` says how the command ended. */
  async * [Symbol.asyncIterator]() {
    while (this.end === undefined && this.timedOut === undefined) {
      let event
      try {
        if (!this.answer) await this.takeUp()
        event = await this.message()
      } catch (e) {
        if (e instanceof NotFound) throw new ConnectionLost(`the connection broke, and the command is not there any more: ${e.text}`)
        if (!(e instanceof ConnectionLost) || !this.answer) throw e
        this.answer = undefined
        continue
      }
      if (event === undefined) break
      if (event.start) {
        this.pid = event.start.pid
        this.selector = { pid: this.pid }
      } else if (event.data) yield * this.#pieces(event.data)
      else if (event.end) {
        this.end = event.end
        if (this.timeout && this.end.death?.cause === 'time_limit') this.timedOut = `the command took longer than ${this.timeout} s`
      }
    }
  }

  * #pieces(data) {
    for (const stream of STREAMS) {
      if (!(stream in data)) continue
      const part = new Uint8Array(Buffer.from(data[stream], 'base64'))
      const at = Number(data.offset ?? this.next[stream])
      const from = Math.max(at, this.next[stream])
      if (at + part.length <= this.next[stream]) continue // of before the connection broke
      this.next[stream] = at + part.length
      yield { stream, data: part.subarray(from - at), offset: from }
    }
  }

  /** Its end, with what it wrote: the first `keep` bytes of each stream. Throws CommandTimeout if its time was over before. */
  async wait({ keep = KEEP_BYTES, onStdout, onStderr } = {}) {
    const kept = { stdout: [], stderr: [], pty: [] }
    const size = { stdout: 0, stderr: 0, pty: 0 }
    const decoder = { stdout: new TextDecoder(), stderr: new TextDecoder(), pty: new TextDecoder() }
    const show = { stdout: onStdout, pty: onStdout, stderr: onStderr }
    const omitted = {}
    for await (const { stream, data } of this) {
      const room = Math.max(0, keep - size[stream])
      if (room) kept[stream].push(data.subarray(0, room))
      size[stream] += Math.min(room, data.length)
      if (data.length > room) omitted[stream] = (omitted[stream] ?? 0) + data.length - room
      show[stream]?.(decoder[stream].decode(data, { stream: true }))
    }
    const stdoutBytes = new Uint8Array(Buffer.concat(kept.stdout.length ? kept.stdout : kept.pty))
    const stderrBytes = new Uint8Array(Buffer.concat(kept.stderr))
    const text = (bytes) => new TextDecoder().decode(bytes)
    if (this.timedOut !== undefined) throw new CommandTimeout(this.timedOut, text(stdoutBytes), text(stderrBytes))
    if (this.end === undefined) throw new ConnectionLost('the node ended the stream of the command without saying how the command ended')
    const usage = { ...this.end.usage }
    for (const stream of STREAMS) {
      const lost = usage[stream + 'Omitted']
      delete usage[stream + 'Omitted']
      if (lost) omitted[stream] = (omitted[stream] ?? 0) + lost
    }
    const { death, denials = [], generation } = this.end
    const signal = this.end.exited === false ? death?.signal ?? 0 : undefined
    const exitCode = signal === undefined ? this.end.exitCode ?? 0 : 128 + signal
    return new Result({ exitCode, stdoutBytes, stderrBytes, signal, usage, death, denials, generation, omitted })
  }

  // --- doing something with it

  #who() {
    return this.pid ? { pid: this.pid } : this.selector
  }

  /** Writes to its standard input, or to its terminal. */
  async send(data) {
    const bytes = Buffer.from(data)
    for (let at = 0; at < bytes.length; at += INPUT_BYTES) {
      const part = bytes.subarray(at, at + INPUT_BYTES).toString('base64')
      await this.inside.call('process.Process/SendInput', { process: this.#who(), input: { [this.terminal ? 'pty' : 'stdin']: part } })
    }
  }

  async closeInput() {
    await this.inside.call('process.Process/CloseStdin', { process: this.#who() })
  }

  /** False if it had ended. */
  async kill(signal = 'KILL') {
    try {
      await this.inside.call('process.Process/SendSignal', { process: this.#who(), signal: 'SIGNAL_SIG' + signal }, { repeatable: true })
      return true
    } catch (e) {
      if (e instanceof NotFound) return false
      throw e
    }
  }

  /** Of its terminal. */
  async resize(cols, rows) {
    await this.inside.call('process.Process/Update', { process: this.#who(), pty: { size: { cols, rows } } }, { repeatable: true })
  }

  /** Stops following it. The command goes on. */
  close() {
    this.answer?.close()
  }
}

/** Starts a command. Returns when it runs; throws what the node says if it cannot. */
export async function start(inside, command, { user, cwd, env, stdin = false, pty, timeout, rights, generation } = {}) {
  const argv = typeof command === 'string' ? ['/bin/sh', '-c', command] : [...command]
  const tag = 'sdk-' + crypto.randomUUID() // by which it is found again if the answer is lost
  const message = { process: { cmd: argv[0], args: argv.slice(1), envs: { ...env }, ...(cwd ? { cwd } : {}) }, stdin, tag }
  if (pty) message.pty = { size: { cols: pty.cols, rows: pty.rows } }
  const headers = {
    'Hutch-Generation': generation ? 'true' : undefined,
    'Hutch-Rights': rights ? JSON.stringify(rights) : undefined,
    'Connect-Timeout-Ms': timeout ? Math.max(1, Math.floor(timeout * 1000)) : undefined
  }
  for (const stop = Date.now() + PATIENCE_MS; ; await sleep(200)) {
    const answer = await inside.stream('process.Process/Start', message, { user, headers })
    try {
      return await follow(new Command(inside, { tag }, answer, { user, terminal: Boolean(pty), timeout }))
    } catch (e) {
      if (!(e instanceof Unavailable) || Date.now() > stop) throw e // else the node refused: nothing was started
    }
  }
}

/** Reads the first message, which says that the command runs. If it does not come, the command is looked for by its tag. */
async function follow(command) {
  let event
  try {
    event = await command.message()
  } catch (e) {
    if (!(e instanceof ConnectionLost)) throw e
    try {
      await command.takeUp()
      event = await command.message()
    } catch (later) {
      if (later instanceof NotFound) throw new ConnectionLost('the connection broke before the command was seen to start; it may not have run')
      throw later
    }
  }
  if (event?.start) {
    command.pid = event.start.pid
    command.selector = { pid: command.pid }
  } else if (command.timedOut === undefined) throw new ConnectionLost('the node did not say that the command started')
  return command
}
