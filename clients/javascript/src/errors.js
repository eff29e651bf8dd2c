/** What can go wrong. All are HutchError. */
export class HutchError extends Error {
  constructor(message, options) {
    super(message, options)
    this.name = this.constructor.name
  }
}

/** The node could not be reached, or the connection broke and could not be taken up again. */
export class ConnectionLost extends HutchError {}

/** The node refused. `status` is the HTTP status, `code` a word or number of the node, `body` the whole answer. */
export class ApiError extends HutchError {
  constructor(status, text, code, body, retryAfter) {
    super(`${status}: ${text}`)
    Object.assign(this, { status, text, code, body, retryAfter })
  }
}
export class BadRequest extends ApiError {}
export class Unauthenticated extends ApiError {}
export class Forbidden extends ApiError {}
export class NotFound extends ApiError {}
export class Conflict extends ApiError {}
export class RateLimited extends ApiError {}
export class Unsupported extends ApiError {}
/** 502: the sandbox is gone, or nothing listens on that port of it. */
export class SandboxEnded extends ApiError {}
export class Unavailable extends ApiError {}
export class NoSpace extends ApiError {}

/** A command ended with another exit code than 0, and `check` was given. `result` is how it ended. */
export class CommandFailed extends HutchError {
  constructor(result) {
    const last = (result.stderr || result.stdout).trim().split('\n').pop()
    super(`exit code ${result.exitCode}${last ? `: ${last.slice(0, 300)}` : ''}`)
    this.result = result
  }
}

/** A command took longer than its time and was killed. `stdout` and `stderr` are what it had written. */
export class CommandTimeout extends HutchError {
  constructor(message, stdout, stderr) {
    super(message)
    Object.assign(this, { stdout, stderr })
  }
}

const byStatus = {
  400: BadRequest, 401: Unauthenticated, 403: Forbidden, 404: NotFound, 409: Conflict, 429: RateLimited, 501: Unsupported,
  502: SandboxEnded, 503: Unavailable, 507: NoSpace
}

/** The error for an answer: {"code", "message"} of a route, or the same of an RPC. */
export function apiError(status, body, retryAfter) {
  const known = body && typeof body === 'object' && !Array.isArray(body) ? body : {}
  const text = known.message || (typeof body === 'string' && body) || `HTTP status ${status}`
  return new (byStatus[status] ?? ApiError)(status, String(text), known.error_code ?? known.code, body, retryAfter)
}
