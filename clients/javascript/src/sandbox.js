/** A sandbox: commands, files, network, history and transactions. */
import { Api } from './api.js'
import { HutchError, NotFound } from './errors.js'
import { Files } from './files.js'
import { Command, Inside, start } from './process.js'

const given = (o) => Object.fromEntries(Object.entries(o).filter(([, v]) => v !== undefined))

/** What the sandbox may reach. Every change is in force when the call returns. */
class Network {
  constructor(api, sandbox) {
    Object.assign(this, { api, sandbox })
  }

  get() {
    return this.api.networkGet(this.sandbox)
  }

  /** document: rules, or "public" or "off". */
  replace(document, { secrets, expectedEpoch } = {}) {
    return this.api.networkReplace(this.sandbox, given({ policy: document, secrets, expected_epoch: expectedEpoch }))
  }

  /** Adds rules; one with the id of another replaces it. */
  add(...rules) {
    return this.api.networkUpdate(this.sandbox, { add: rules })
  }

  /** Grants these hosts and returns the id of the rule, which remove() takes. seconds: until when, by the clock of this machine. uses: so
   *  many requests. */
  async allow(hosts, { id, seconds, uses, ports, access, methods, paths, private: reserved, secrets } = {}) {
    const list = [hosts].flat()
    if (!list.length) throw new HutchError('allow() needs a host, such as pypi.org or *.pypi.org')
    const http = methods || paths ? [given({ methods, paths })] : undefined
    const expires = seconds === undefined ? undefined : Math.floor(Date.now() / 1000 + seconds)
    const rule = given({ id: id ?? 'grant-' + crypto.randomUUID(), hosts: list, ports, access, http, private: reserved, secrets, uses, expires })
    await this.add(rule)
    return rule.id
  }

  remove(...ids) {
    return this.api.networkUpdate(this.sandbox, { remove: ids })
  }

  /** Would this request be let out? Nothing is sent. */
  check(url, method = 'GET') {
    return this.api.networkCheck(this.sandbox, { url, method })
  }

  /** What was refused, each with the smallest rule that would allow it. `next` is the since of the next call. */
  denials(since) {
    return this.api.networkDenials(this.sandbox, { since })
  }
}

/** Generations of the sandbox's files: after each command if it was made with history, and when asked for. */
class History {
  constructor(api, sandbox) {
    Object.assign(this, { api, sandbox })
  }

  async generations() {
    return (await this.api.historyGet(this.sandbox)).generations
  }

  /** Keeps one more, now. */
  save(label = '') {
    return this.api.historySave(this.sandbox, { command: label })
  }

  /** What changed from one generation (the newest) to another (to now). */
  diff({ from, to, path } = {}) {
    return this.api.historyDiff(this.sandbox, { from, to, path })
  }

  /** A file as it was. */
  async read(generation, path) {
    return (await this.api.historyFile(this.sandbox, generation, { path })).read()
  }

  /** Takes the files back: to before the last command, or to a generation. It can be undone, too. */
  undo(to) {
    return this.api.historyUndo(this.sandbox, given({ to }))
  }
}

/** A command that ran on a copy of the files. `result` has its output and its changes; nothing counts before commit(). */
class Trial {
  constructor(api, sandbox, result) {
    Object.assign(this, { api, sandbox, result, id: result.id, stdout: result.stdout, stderr: result.stderr, changes: result.changes })
    this.exitCode = result.exitCode ?? 128 + (result.signal ?? 0)
  }

  /** Conflict, with the paths in `body.conflicts`, if one of them changed in the sandbox meanwhile; then nothing is applied. */
  commit() {
    return this.api.txCommit(this.sandbox, this.id)
  }

  discard() {
    return this.api.txDiscard(this.sandbox, this.id)
  }
}

/** Made by Hutch.create() or Hutch.connect(). */
export class Sandbox {
  constructor(hutch, made) {
    Object.assign(this, { hutch, api: hutch.api, id: made.sandboxID, made })
    this.inside = new Inside(hutch.http, this.id, made.envdAccessToken)
    this.files = new Files(this.inside)
    this.network = new Network(this.api, this.id)
    this.history = new History(this.api, this.id)
  }

  // --- commands

  /** Starts a command and returns while it runs. A text is for /bin/sh -c, a list is program and arguments. timeout: seconds, then it is
   *  killed. rights: what it may less than others (docs/rights.md). generation: keep the files after it. */
  start(command, options) {
    return start(this.inside, command, options)
  }

  /** Runs a command to its end. check: throw CommandFailed unless it ends with 0. CommandTimeout if its time is over. */
  async run(command, { stdin, check = false, keep, onStdout, onStderr, ...options } = {}) {
    const running = await this.start(command, { ...options, stdin: stdin !== undefined })
    const fed = stdin === undefined ? undefined : feed(running, stdin)
    try {
      const result = await running.wait({ keep, onStdout, onStderr })
      await fed
      return check ? result.check() : result
    } finally {
      running.close()
    }
  }

  /** Follows a command that runs already, or has just ended, from the first byte that the sandbox still has. */
  attach(pid) {
    return new Command(this.inside, { pid })
  }

  /** Those that run: pid, and config with cmd and args. */
  async commands() {
    return (await this.inside.call('process.Process/List', {}, { repeatable: true })).processes ?? []
  }

  // --- transactions

  /** Runs a command on a copy of the files. Look at `changes`, then commit() or discard(). */
  async tryRun(command, { user, cwd, env, timeout, rights } = {}) {
    const http = this.hutch.http.patient((timeout ?? 60) * 1000 + this.hutch.http.timeout) // the answer comes when the command has ended
    return new Trial(this.api, this.id, await new Api(http).txRun(this.id, given({ command, user, cwd, envs: env, timeout, rights })))
  }

  /** Those that wait for a decision. */
  trials() {
    return this.api.txList(this.id)
  }

  // --- life

  info() {
    return this.api.sandboxGet(this.id)
  }

  /** It ends so many seconds from now. */
  setTimeout(seconds) {
    return this.api.sandboxSetTimeout(this.id, { timeout: seconds })
  }

  /** Lets it stand still. connect() or traffic lets it go on. memory: false keeps only its files. */
  pause({ memory = true } = {}) {
    return this.api.sandboxPause(this.id, { memory })
  }

  /** Sandboxes with the files of this one. */
  async fork(count = 1, { timeout = 300 } = {}) {
    const forks = []
    for (const f of await this.api.sandboxFork(this.id, { count, timeout })) {
      if (!f.sandbox) {
        await Promise.all(forks.map((made) => made.kill()))
        throw new HutchError(`a fork was not made: ${f.error?.message ?? 'unknown'}`)
      }
      forks.push(new Sandbox(this.hutch, f.sandbox))
    }
    return forks
  }

  /** Keeps its files as a template. */
  snapshot(name) {
    return this.api.snapshotCreate(this.id, given({ name }))
  }

  /** False if it had ended. */
  async kill() {
    try {
      await this.api.sandboxKill(this.id)
      return true
    } catch (e) {
      if (e instanceof NotFound) return false
      throw e
    }
  }

  /** `await using` kills it. */
  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.kill()
  }

  // --- ports and events

  /** Of a port. It is private unless the sandbox was made with publicPorts or publicTraffic. */
  async url(port) {
    return (await this.api.portsGet(this.id)).url.replace('{port}', String(port))
  }

  /** A signed address that opens one port for a while. */
  async link(port, { seconds = 3600, path = '/' } = {}) {
    return (await this.api.portLink(this.id, port, { expiresIn: seconds, path })).url
  }

  /** What happens to it: created, exec_ended, denial, network.denied, died and others (docs/api.md). */
  events({ after, follow = true } = {}) {
    return this.api.sandboxEvents(this.id, { after, follow })
  }
}

/** Writes all of it to a command that may end before it has read it. */
async function feed(command, data) {
  try {
    await command.send(data)
    await command.closeInput()
  } catch (e) {
    if (!(e instanceof HutchError)) throw e // else the command has ended; its result says how
  }
}
