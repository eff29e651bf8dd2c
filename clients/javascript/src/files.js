/** Files of a sandbox. Paths begin at / or in the user's home directory; no path leads out of the sandbox. */
import { NotFound } from './errors.js'

const TYPES = { FILE_TYPE_FILE: 'file', FILE_TYPE_DIRECTORY: 'directory', FILE_TYPE_SYMLINK: 'symlink' }

function entry(e) {
  return {
    name: e.name, path: e.path, type: TYPES[e.type] ?? 'other', size: Number(e.size ?? 0), mode: Number(e.mode ?? 0), owner: e.owner ?? '',
    group: e.group ?? '', modified: e.modifiedTime ?? '', target: e.symlinkTarget, metadata: e.metadata ?? {}
  }
}

/** `user` of each call is whose rights count and whose home relative paths begin in; the template's user if left out. */
export class Files {
  constructor(inside) {
    this.inside = inside
  }

  /** A file, or its bytes from start to before end, to be read piece by piece. */
  open(path, { start, end, user } = {}) {
    const headers = start === undefined && end === undefined ? {} : { Range: `bytes=${start ?? 0}-${end === undefined ? '' : end - 1}` }
    return this.inside.request('GET', '/files', { user, headers, query: { path } })
  }

  async read(path, options) {
    return (await this.open(path, options)).read()
  }

  async readText(path, options) {
    return Buffer.from(await this.read(path, options)).toString()
  }

  /** Writes a file and makes its directories. The file appears, or is replaced, when all of it has come. content: text, bytes, or a
   *  ReadableStream of bytes. */
  async write(path, content, { user } = {}) {
    const answer = await this.inside.request('POST', '/files', {
      user, headers: { 'Content-Type': 'application/octet-stream' }, query: { path }, content: typeof content === 'string' ? Buffer.from(content) : content,
      repeatable: true
    })
    await answer.read()
  }

  async stat(path, { user } = {}) {
    return entry((await this.inside.call('filesystem.Filesystem/Stat', { path }, { user, repeatable: true })).entry)
  }

  async exists(path, options) {
    try {
      await this.stat(path, options)
      return true
    } catch (e) {
      if (e instanceof NotFound) return false
      throw e
    }
  }

  /** What is in a directory, and with depth 2 to 64 in those below it. */
  async entries(path, { depth = 1, user } = {}) {
    const answer = await this.inside.call('filesystem.Filesystem/ListDir', { path, depth }, { user, repeatable: true })
    return (answer.entries ?? []).map(entry)
  }

  /** Makes a directory and those above it. Conflict if it is there. */
  async makeDir(path, { user } = {}) {
    return entry((await this.inside.call('filesystem.Filesystem/MakeDir', { path }, { user })).entry)
  }

  async move(source, destination, { user } = {}) {
    return entry((await this.inside.call('filesystem.Filesystem/Move', { source, destination }, { user })).entry)
  }

  /** Removes a file, or a directory with everything in it. What is not there is removed already: no error. */
  async remove(path, { user } = {}) {
    await this.inside.call('filesystem.Filesystem/Remove', { path }, { user, repeatable: true })
  }
}
