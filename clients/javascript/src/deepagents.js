/** A backend for deepagents: its files and commands are those of a sandbox of Hutch.
 *
 *     import { createDeepAgent } from 'deepagents'
 *     import { Hutch } from 'hutch-sdk'
 *     import { HutchBackend } from 'hutch-sdk/deepagents'
 *
 *     const sandbox = await new Hutch().create('base')
 *     const agent = createDeepAgent({ model, backend: new HutchBackend(sandbox) })
 *
 * ls, read, write, edit and glob are calls of the file API: no process is started for them. grep starts the sandbox's grep, without a shell. */
import { ApiError, BadRequest, CommandTimeout, Conflict, Forbidden, NotFound, RateLimited, Unauthenticated } from './errors.js'

const COUNT_BYTES = 1 << 20 // a file up to this size is read to its end, for the number of its lines
const READ_BYTES = 1 << 20 // of a page
const EDIT_BYTES = 16 << 20
const GREP_BYTES = 8 << 20
const GREP_SECONDS = 15
const GLOB_MOST = 10000
const GLOB_MS = 5000
const DEPTH = 64
const PRUNED = ['/proc', '/sys', '/dev'] // of a search that begins at /
const MIME = {
  png: 'image/png', jpg: 'image/jpeg', jpeg: 'image/jpeg', gif: 'image/gif', webp: 'image/webp', heic: 'image/heic', heif: 'image/heif',
  mp3: 'audio/mpeg', wav: 'audio/wav', aiff: 'audio/aiff', aac: 'audio/aac', ogg: 'audio/ogg', flac: 'audio/flac', mp4: 'video/mp4',
  webm: 'video/webm', mpeg: 'video/mpeg', mov: 'video/quicktime', avi: 'video/x-msvideo', flv: 'video/x-flv', mpg: 'video/mpeg',
  wmv: 'video/x-ms-wmv', '3gpp': 'video/3gpp', pdf: 'application/pdf', ppt: 'application/vnd.ms-powerpoint',
  pptx: 'application/vnd.openxmlformats-officedocument.presentationml.presentation'
}

const mimeOf = (path) => MIME[path.slice(path.lastIndexOf('.') + 1).toLowerCase()] ?? 'text/plain'
const words = (e, path) => e instanceof NotFound ? `'${path}' not found` : `'${path}': ${e.text}`

/** deepagents' word for what went wrong with a path. */
function reasonOf(e) {
  if (e instanceof NotFound) return 'file_not_found'
  if (e instanceof Forbidden || e instanceof Unauthenticated) return 'permission_denied'
  if ((e instanceof BadRequest || e instanceof Conflict) && /is a directory/i.test(e.text)) return 'is_directory'
  return 'invalid_path'
}

/** Calls fn; what the node refuses becomes the answer. */
async function orElse(fn, refused) {
  try {
    return await fn()
  } catch (e) {
    if (!(e instanceof ApiError)) throw e
    return refused(e)
  }
}

/** A glob as a RegExp on paths relative to the base: *, **, ?, [...], {a,b}. Names that begin with a dot match, too. */
export function globToRegExp(glob) {
  let out = ''
  let braces = 0
  for (let i = 0; i < glob.length; i++) {
    const c = glob[i]
    if (c === '*' && glob[i + 1] === '*') {
      const folder = glob[i + 2] === '/'
      out += folder ? '(?:.*/)?' : '.*'
      i += folder ? 2 : 1
    } else if (c === '*') out += '[^/]*'
    else if (c === '?') out += '[^/]'
    else if (c === '[' && glob.indexOf(']', i + 2) > 0) {
      const end = glob.indexOf(']', i + 2)
      out += `[${glob.slice(i + 1, end).replace(/^!/, '^').replace(/\\/g, '\\\\')}]`
      i = end
    } else if (c === '{' && glob.indexOf('}', i) > 0) {
      out += '(?:'
      braces++
    } else if (c === '}' && braces) {
      out += ')'
      braces--
    } else if (c === ',' && braces) out += '|'
    else out += c.replace(/[\\^$.|+(){}[\]]/g, '\\$&')
  }
  return new RegExp(`^${out}$`, 's')
}

const info = (e) => ({ path: e.type === 'directory' ? e.path + '/' : e.path, is_dir: e.type === 'directory', size: e.size, modified_at: e.modified })
const base = (path) => path.replace(/\/+$/, '')

/** timeout: seconds of a command. outputBytes: what is kept of the output of one. The sandbox is yours: nothing here ends it. */
export class HutchBackend {
  constructor(sandbox, { timeout = 1800, outputBytes = 4 << 20, grepExcludeDirs = ['.git'] } = {}) {
    Object.assign(this, { sandbox, id: sandbox.id, timeout, outputBytes, grepExcludeDirs })
  }

  // --- commands

  /** Runs it in /bin/sh; stdout and stderr as they came. Exit code 124 if its time is over. */
  async execute(command) {
    const parts = []
    let size = 0
    let truncated = false
    let running
    try {
      running = await this.sandbox.start(command, { timeout: this.timeout || undefined })
    } catch (e) {
      if (e instanceof CommandTimeout) return { output: e.message, exitCode: 124, truncated: false }
      throw e
    }
    try {
      for await (const { data } of running) {
        const some = data.subarray(0, Math.max(0, this.outputBytes - size))
        parts.push(some)
        size += some.length
        truncated ||= some.length < data.length
      }
    } finally {
      running.close()
    }
    let output = Buffer.concat(parts).toString()
    if (running.timedOut !== undefined) {
      return { output: `${output}\n[the command took longer than ${this.timeout} s and was killed]`, exitCode: 124, truncated }
    }
    const { exited = true, exitCode = 0, death, usage } = running.end ?? {}
    if (!exited && death?.cause && death.cause !== 'signal') output += `\n[killed: ${death.cause}]`
    truncated ||= Boolean(usage?.stdoutOmitted || usage?.stderrOmitted)
    return { output, exitCode: exited ? exitCode : 128 + (death?.signal ?? 0), truncated }
  }

  // --- files

  /** [[path, bytes], ...] */
  uploadFiles(files) {
    return Promise.all(files.map(async ([path, content]) => ({
      path, error: path.startsWith('/') ? await orElse(() => this.sandbox.files.write(path, content), reasonOf) ?? null : 'invalid_path'
    })))
  }

  downloadFiles(paths) {
    return Promise.all(paths.map((path) => path.startsWith('/')
      ? orElse(async () => ({ path, content: await this.sandbox.files.read(path), error: null }), (e) => ({ path, content: null, error: reasonOf(e) }))
      : { path, content: null, error: 'invalid_path' }))
  }

  ls(path) {
    return orElse(async () => ({ files: (await this.sandbox.files.entries(path)).sort((a, b) => (a.path < b.path ? -1 : 1)).map(info) }),
      (e) => ({ error: `Path ${words(e, path)}` }))
  }

  /** A page of lines, of which only what is needed is fetched; other than text as bytes, whole. */
  read(filePath, offset = 0, limit = 500) {
    return orElse(async () => {
      const mimeType = mimeOf(filePath)
      const answer = await this.sandbox.files.open(filePath)
      try {
        if (!mimeType.startsWith('text/')) return { content: await answer.read(), mimeType }
        return { ...await page(answer, filePath, Math.max(0, Math.floor(offset) || 0), Math.max(0, Math.floor(limit) || 0)), mimeType }
      } finally {
        answer.close()
      }
    }, (e) => ({ error: `File ${words(e, filePath)}` }))
  }

  readRaw(filePath) {
    return orElse(async () => {
      const { modified } = await this.sandbox.files.stat(filePath)
      const bytes = await this.sandbox.files.read(filePath)
      const mimeType = mimeOf(filePath)
      return { data: { content: mimeType.startsWith('text/') ? Buffer.from(bytes).toString() : bytes, mimeType, created_at: modified, modified_at: modified } }
    }, (e) => ({ error: `File ${words(e, filePath)}` }))
  }

  /** A file that is not text comes as base64. */
  write(filePath, content) {
    const bytes = Buffer.from(content, mimeOf(filePath).startsWith('text/') ? 'utf8' : 'base64')
    return orElse(async () => {
      await this.sandbox.files.write(filePath, bytes)
      return { path: filePath, filesUpdate: null }
    }, (e) => ({ error: `Failed to write file ${words(e, filePath)}` }))
  }

  /** Replaces exact text. A file with CRLF is edited as the agent saw it, with LF, and stays one with CRLF. */
  edit(filePath, oldString, newString, replaceAll = false) {
    return orElse(async () => {
      const answer = await this.sandbox.files.open(filePath)
      const raw = await answer.read(EDIT_BYTES + 1)
      answer.close()
      if (raw.length > EDIT_BYTES) return { error: `Error: File '${filePath}' is larger than ${EDIT_BYTES} bytes` }
      let text
      try {
        text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(raw)
      } catch {
        return { error: `Error: File '${filePath}' is not a text file` }
      }
      if (!oldString && text) return { error: 'Error: oldString must not be empty unless the file is empty' }
      const forms = [(s) => s, (s) => s.replace(/\r?\n/g, '\r\n'), (s) => s.replace(/\r\n/g, '\n')]
      const form = forms.find((f) => text.includes(f(oldString)))
      if (!form) return { error: `Error: String not found in file: '${oldString}'` }
      const parts = oldString ? text.split(form(oldString)) : ['', '']
      const occurrences = parts.length - 1
      if (occurrences > 1 && !replaceAll) {
        return { error: `Error: String '${oldString}' appears multiple times (${occurrences}). Use replaceAll=true to replace all occurrences.` }
      }
      await this.sandbox.files.write(filePath, parts.join(form(newString)))
      return { path: filePath, occurrences, filesUpdate: null }
    }, (e) => ({ error: `Error: File ${words(e, filePath)}` }))
  }

  delete(filePath) {
    return orElse(async () => {
      await this.sandbox.files.stat(filePath)
      await this.sandbox.files.remove(filePath)
      return { path: filePath, filesUpdate: null }
    }, (e) => ({ error: `Error: ${words(e, filePath)}` }))
  }

  // --- searching

  /** Lines with this text, as it is, in text files below path; not in .git unless the search begins there. */
  grep(pattern, path = '/', glob = null, maxCount = null) {
    return orElse(async () => {
      const root = await this.sandbox.files.stat(path ?? '/')
      const options = this.grepExcludeDirs.filter((name) => name !== root.name).map((name) => `--exclude-dir=${name}`)
      if (root.path === '/') options.push(...PRUNED.map((p) => `--exclude-dir=${p}`))
      if (glob && /^[\w.*?-]+$/.test(glob)) options.push(`--include=${glob}`)
      let found
      // The first form is GNU's; a smaller grep knows the second.
      for (const argv of [['grep', '-rHnFIZ', ...options], ['grep', '-rHnF']]) {
        let code
        try {
          const command = await this.sandbox.start([...argv, '-e', pattern, '--', root.path], { timeout: GREP_SECONDS })
          found = await matches(command, root, glob, maxCount)
          if (found.truncated) await command.kill()
          command.close()
          code = command.end?.exitCode ?? 0
        } catch (e) {
          if (e instanceof CommandTimeout) return { matches: [], truncated: true }
          throw e
        }
        if (code < 2 || found.matches.length || found.truncated) return { matches: found.matches, truncated: found.truncated }
      }
      return { error: `Path '${root.path}': ${found.error ?? 'grep failed'}` }
    }, (e) => ({ error: `Path ${words(e, path ?? '/')}` }))
  }

  /** Regular files below path whose relative path fits, as absolute paths. */
  glob(pattern, path = '/') {
    return orElse(async () => {
      const wanted = globToRegExp(pattern.replace(/^\/+/, ''))
      const root = (await this.sandbox.files.stat(path)).path
      const depth = pattern.includes('**') || pattern.includes('{') ? DEPTH : pattern.replace(/^\/+/, '').split('/').length
      const { files, cut } = await this.#below(root, Math.min(depth, DEPTH))
      const from = base(root).length + 1
      const found = files.filter((e) => wanted.test(e.path.slice(from))).sort((a, b) => (a.path < b.path ? -1 : 1)).map(info)
      return { files: found.slice(0, GLOB_MOST), truncated: cut || found.length > GLOB_MOST }
    }, (e) => ({ error: `Path ${words(e, path)}` }))
  }

  /** The files below a directory, and whether there may be more: of a tree that is too large for one answer, as many as come in time. */
  async #below(root, depth) {
    if (root !== '/') {
      try {
        return { files: (await this.sandbox.files.entries(root, { depth })).filter((e) => e.type === 'file'), cut: false }
      } catch (e) {
        if (!(e instanceof RateLimited)) throw e // too many for one answer
      }
    }
    const files = []
    const todo = [[root, depth]]
    for (const stop = Date.now() + GLOB_MS; todo.length;) {
      if (Date.now() > stop) return { files, cut: true }
      const [folder, left] = todo.shift()
      let entries
      try {
        entries = await this.sandbox.files.entries(folder)
      } catch (e) {
        if (folder === root || !(e instanceof NotFound || e instanceof Forbidden || e instanceof RateLimited)) throw e
        continue // removed meanwhile, or not for this user
      }
      files.push(...entries.filter((e) => e.type === 'file'))
      if (left > 1) todo.push(...entries.filter((e) => e.type === 'directory' && !PRUNED.includes(e.path)).map((e) => [e.path, left - 1]))
    }
    return { files, cut: false }
  }
}

/** Lines offset to offset + limit, as far as they fit; the number of all lines if they are counted or the end was seen. */
async function page(answer, path, offset, limit) {
  const count = Number(answer.headers.get('content-length') ?? 0) <= COUNT_BYTES
  if (limit === 0) return { content: '' }
  const lines = []
  let number = 0
  let room = READ_BYTES
  let after = false
  let cut = false
  for await (const line of answer.lines()) {
    const at = number++
    if (at < offset) continue
    if (at >= offset + limit || cut) {
      after = true
      if (!count) break
      continue
    }
    lines.push(line.length > room ? line.slice(0, room) : line.replace(/\r$/, ''))
    cut = line.length > room
    room -= line.length
  }
  if (!number && !offset) return { content: '', totalLines: 0 }
  if (!lines.length) return { error: `File '${path}': line offset ${offset} exceeds file length (${number} lines)` }
  const endLine = offset + lines.length
  const totalLines = after && !count ? undefined : number
  return {
    content: lines.join('\n') + (cut ? '\n[the line is longer and was cut]' : ''), startLine: offset + 1, endLine, totalLines,
    nextOffset: totalLines === undefined || endLine < totalLines ? endLine : undefined
  }
}

/** Reads what grep prints: path NUL line:text, or path:line:text. */
async function matches(command, root, glob, most) {
  const found = []
  const wanted = glob ? globToRegExp(glob) : undefined
  const from = root.type === 'directory' ? base(root.path).length + 1 : root.path.length - root.name.length
  const fits = (path) => !wanted || root.type !== 'directory' || wanted.test(glob.includes('/') ? path.slice(from) : path.slice(path.lastIndexOf('/') + 1))
  const decoder = new TextDecoder()
  let rest = ''
  let error = ''
  let seen = 0
  for await (const { stream, data } of command) {
    if (stream === 'stderr') {
      error += Buffer.from(data).toString().slice(0, 2000 - error.length)
      continue
    }
    seen += data.length
    const lines = (rest + decoder.decode(data, { stream: true })).split('\n')
    rest = lines.pop()
    for (const line of lines) {
      const m = /^([^\0]+)\0(\d+):(.*)$/s.exec(line) ?? /^(.+?):(\d+):(.*)$/s.exec(line)
      if (!m || !fits(m[1])) continue
      if (most !== null && most !== undefined && found.length === most) return { matches: found, truncated: true }
      found.push({ path: m[1], line: Number(m[2]), text: m[3] })
    }
    if (seen > GREP_BYTES) return { matches: found, truncated: true }
  }
  return { matches: found, truncated: command.timedOut !== undefined, error: error.trim().split('\n')[0] || undefined }
}
