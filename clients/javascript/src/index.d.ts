import type * as t from './types.js'
import { Api } from './api.js'
export { Api }
export type { t as types }

export type Content = Uint8Array | ReadableStream<Uint8Array> | string

export class HutchError extends Error {}
/** The node could not be reached, or the connection broke and could not be taken up again. */
export class ConnectionLost extends HutchError {}
/** The node refused. */
export class ApiError extends HutchError {
  /** Of HTTP. */
  readonly status: number
  /** What the node says. */
  readonly text: string
  /** A word or number of the node. */
  readonly code: any
  /** The whole answer. */
  readonly body: any
  /** Seconds. */
  readonly retryAfter?: number
}
export class BadRequest extends ApiError {}
export class Unauthenticated extends ApiError {}
export class Forbidden extends ApiError {}
export class NotFound extends ApiError {}
export class Conflict extends ApiError {}
export class RateLimited extends ApiError {}
export class Unsupported extends ApiError {}
export class SandboxEnded extends ApiError {}
export class Unavailable extends ApiError {}
export class NoSpace extends ApiError {}
export class CommandFailed extends HutchError { readonly result: Result }
/** A command took longer than its time and was killed. */
export class CommandTimeout extends HutchError { readonly stdout: string; readonly stderr: string }

/** A list with what the call for the next page takes; undefined on the last one. */
export class Page<T> extends Array<T> { nextToken?: string }
export interface ServerEvent { id?: number; type: string; data: any }
/** Bytes of an answer: iterate over it, or read() all. close() it if it is not read to its end. */
export class Download implements AsyncIterable<Uint8Array> {
  readonly status: number
  readonly headers: Headers
  [Symbol.asyncIterator](): AsyncIterator<Uint8Array>
  /** All of it, or at most n bytes. */
  read(n?: number): Promise<Uint8Array>
  lines(): AsyncGenerator<string>
  close(): void
}

export interface Output { stream: 'stdout' | 'stderr' | 'pty'; data: Uint8Array; offset: number }
export class Result {
  /** 128 + the number of the signal if one ended it. */
  readonly exitCode: number
  readonly stdout: string
  readonly stderr: string
  readonly stdoutBytes: Uint8Array
  readonly stderrBytes: Uint8Array
  readonly signal?: number
  readonly usage: Record<string, number>
  /** Why it was killed. */
  readonly death?: Record<string, any>
  /** What was refused to it, with reason and the smallest grant. */
  readonly denials: Record<string, any>[]
  /** Of the files after it, if the sandbox keeps a history. */
  readonly generation?: number
  /** Bytes of each stream that were not kept. */
  readonly omitted: Record<string, number>
  readonly ok: boolean
  /** Itself; throws CommandFailed unless the exit code is 0. */
  check(): Result
}
export interface CommandOptions {
  user?: string
  cwd?: string
  env?: Record<string, string>
  /** Seconds, then it is killed. */
  timeout?: number
  /** What it may less than others (docs/rights.md). */
  rights?: t.Rights
  /** Keep the files after it. */
  generation?: boolean
}
interface Taking { keep?: number; onStdout?: (text: string) => void; onStderr?: (text: string) => void }
/** A command that runs. Iterate over it for its output, or wait() for its end; only one of them at a time. */
export class Command implements AsyncIterable<Output> {
  readonly pid: number
  readonly end?: Record<string, any>
  [Symbol.asyncIterator](): AsyncIterator<Output>
  wait(options?: Taking): Promise<Result>
  /** Writes to its standard input, or to its terminal. */
  send(data: string | Uint8Array): Promise<void>
  closeInput(): Promise<void>
  /** False if it had ended. */
  kill(signal?: 'KILL' | 'TERM' | 'HUP'): Promise<boolean>
  resize(cols: number, rows: number): Promise<void>
  /** Stops following it. The command goes on. */
  close(): void
}

export interface Entry {
  name: string; path: string; type: 'file' | 'directory' | 'symlink' | 'other'; size: number; mode: number; owner: string; group: string
  modified: string; target?: string; metadata: Record<string, string>
}
interface As { user?: string }
export class Files {
  open(path: string, options?: As & { start?: number; end?: number }): Promise<Download>
  read(path: string, options?: As & { start?: number; end?: number }): Promise<Uint8Array>
  readText(path: string, options?: As): Promise<string>
  /** Makes its directories. The file appears, or is replaced, when all of it has come. */
  write(path: string, content: Content, options?: As): Promise<void>
  stat(path: string, options?: As): Promise<Entry>
  exists(path: string, options?: As): Promise<boolean>
  entries(path: string, options?: As & { depth?: number }): Promise<Entry[]>
  makeDir(path: string, options?: As): Promise<Entry>
  move(source: string, destination: string, options?: As): Promise<Entry>
  remove(path: string, options?: As): Promise<void>
}

export interface Grant {
  id?: string; seconds?: number; uses?: number; ports?: number[]; access?: 'read-only' | 'read-write' | 'full'; methods?: string[]; paths?: string[]
  private?: string[]; secrets?: string[]
}
interface Network {
  get(): Promise<t.SandboxNetwork>
  replace(document: t.GivenNetwork, options?: { secrets?: string[]; expectedEpoch?: number }): Promise<t.SandboxNetwork>
  add(...rules: t.NetworkRule[]): Promise<t.SandboxNetwork>
  /** Grants these hosts and returns the id of the rule, which remove() takes. */
  allow(hosts: string | string[], options?: Grant): Promise<string>
  remove(...ids: string[]): Promise<t.SandboxNetwork>
  /** Would this request be let out? Nothing is sent. */
  check(url: string, method?: string): Promise<t.NetworkCheckAnswer>
  denials(since?: number): Promise<t.NetworkDenialsAnswer>
}
interface History {
  generations(): Promise<t.Generation[]>
  save(label?: string): Promise<t.Generation>
  diff(options?: { from?: number; to?: number; path?: string }): Promise<t.Diff>
  read(generation: number, path: string): Promise<Uint8Array>
  /** Takes the files back: to before the last command, or to a generation. */
  undo(to?: number): Promise<t.Applied>
}
interface Trial {
  readonly id: string
  readonly exitCode: number
  readonly stdout: string
  readonly stderr: string
  readonly changes: t.Change[]
  readonly result: t.TransactionResult
  commit(): Promise<t.Applied>
  discard(): Promise<void>
}

export class Sandbox {
  readonly id: string
  readonly api: Api
  readonly made: t.Sandbox
  readonly files: Files
  readonly network: Network
  readonly history: History
  /** A text is for /bin/sh -c, a list is program and arguments. */
  start(command: string | string[], options?: CommandOptions & { stdin?: boolean; pty?: { cols: number; rows: number } }): Promise<Command>
  run(command: string | string[], options?: CommandOptions & Taking & { stdin?: string | Uint8Array; check?: boolean }): Promise<Result>
  attach(pid: number): Command
  commands(): Promise<Record<string, any>[]>
  /** Runs a command on a copy of the files; nothing counts before commit(). */
  tryRun(command: string, options?: CommandOptions): Promise<Trial>
  trials(): Promise<t.Transaction[]>
  info(): Promise<t.SandboxDetail>
  setTimeout(seconds: number): Promise<void>
  pause(options?: { memory?: boolean }): Promise<void>
  fork(count?: number, options?: { timeout?: number }): Promise<Sandbox[]>
  snapshot(name?: string): Promise<t.Snapshot>
  kill(): Promise<boolean>
  url(port: number): Promise<string>
  link(port: number, options?: { seconds?: number; path?: string }): Promise<string>
  events(options?: { after?: number; follow?: boolean }): AsyncGenerator<ServerEvent>
}

interface Secrets {
  set(name: string, value?: string, options?: {
    hosts?: string[]; env?: string; methods?: string[]; paths?: string[]; inject?: Record<string, any>; spec?: t.SecretSpec
  }): Promise<t.Secret>
  get(name: string): Promise<t.Secret>
  all(): Promise<t.Secret[]>
  remove(name: string): Promise<void>
}
export class Hutch {
  /** timeout: milliseconds until an answer begins. plain: allow a key over http:// to another machine. */
  constructor(options?: { url?: string; key?: string; timeout?: number; retries?: number; plain?: boolean })
  readonly api: Api
  readonly secrets: Secrets
  create(template?: string, options?: Partial<t.NewNativeSandbox>): Promise<Sandbox>
  /** A sandbox that exists; a paused one goes on. */
  connect(id: string, options?: { timeout?: number }): Promise<Sandbox>
  sandboxes(options?: { state?: string; template?: string; metadata?: Record<string, string> }): AsyncGenerator<t.ListedSandbox>
}
