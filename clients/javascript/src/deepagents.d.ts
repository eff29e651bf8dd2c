import type { Sandbox } from './index.js'

interface FileInfo { path: string; is_dir?: boolean; size?: number; modified_at?: string }
type FileError = 'file_not_found' | 'permission_denied' | 'is_directory' | 'invalid_path'

/** A glob as a RegExp on paths relative to the base: *, **, ?, [...], {a,b}. */
export function globToRegExp(glob: string): RegExp

/** deepagents' SandboxBackendProtocolV2 over a sandbox. The sandbox is yours: nothing here ends it. */
export class HutchBackend {
  /** timeout: seconds of a command (1800). outputBytes: what is kept of the output of one (4 MiB). */
  constructor(sandbox: Sandbox, options?: { timeout?: number; outputBytes?: number; grepExcludeDirs?: string[] })
  readonly id: string
  execute(command: string): Promise<{ output: string; exitCode: number | null; truncated: boolean }>
  uploadFiles(files: [string, Uint8Array][]): Promise<{ path: string; error: FileError | null }[]>
  downloadFiles(paths: string[]): Promise<{ path: string; content: Uint8Array | null; error: FileError | null }[]>
  ls(path: string): Promise<{ error?: string; files?: FileInfo[] }>
  read(filePath: string, offset?: number, limit?: number): Promise<{
    error?: string; content?: string | Uint8Array; mimeType?: string; totalLines?: number; startLine?: number; endLine?: number; nextOffset?: number
  }>
  readRaw(filePath: string): Promise<{ error?: string; data?: { content: string | Uint8Array; mimeType: string; created_at: string; modified_at: string } }>
  write(filePath: string, content: string): Promise<{ error?: string; path?: string; filesUpdate?: null }>
  edit(filePath: string, oldString: string, newString: string, replaceAll?: boolean): Promise<{ error?: string; path?: string; occurrences?: number; filesUpdate?: null }>
  delete(filePath: string): Promise<{ error?: string; path?: string; filesUpdate?: null }>
  grep(pattern: string, path?: string | null, glob?: string | null, maxCount?: number | null): Promise<{
    error?: string; matches?: { path: string; line: number; text: string }[]; truncated?: boolean
  }>
  glob(pattern: string, path?: string): Promise<{ error?: string; files?: FileInfo[]; truncated?: boolean }>
}
