// Our client in JavaScript (clients/javascript) and its backend for deepagents, against the node that the environment names. Prints TAP.
import assert from 'node:assert'
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { createDeepAgent } from 'deepagents'
import { BadRequest, CommandFailed, CommandTimeout, Conflict, ConnectionLost, Hutch, HutchError, NotFound, Unauthenticated } from 'hutch-sdk'
import { HutchBackend, globToRegExp } from 'hutch-sdk/deepagents'
import { call, final, script } from './scripted.mjs'
import { finish, rejects, test } from './tap.mjs'

const template = process.env.TEMPLATE
const hutch = new Hutch()
const box = await hutch.create(template, { timeout: 600, metadata: { own: 'js' } })

await test('commands: output, exit code, input, signals, environment, user', async () => {
  const r = await box.run('echo out; echo err >&2; exit 3')
  assert.deepEqual([r.exitCode, r.stdout, r.stderr, r.ok], [3, 'out\n', 'err\n', false])
  assert.ok(r.usage.wallMs >= 0)
  assert.equal((await box.run(['printf', '%s', 'no $HOME shell'])).stdout, 'no $HOME shell')
  assert.equal((await box.run('sort', { stdin: 'b\na\n' })).stdout, 'a\nb\n')
  assert.equal((await box.run('echo $A; pwd', { env: { A: 'ü' }, cwd: '/tmp' })).stdout, 'ü\n/tmp\n')
  assert.equal((await box.run('id -un', { user: 'root' })).stdout, 'root\n')
  assert.equal((await box.run('kill -9 $$')).exitCode, 137)
  assert.equal((await rejects(box.run('echo why >&2; exit 2', { check: true }), CommandFailed, /exit code 2: why/)).result.exitCode, 2)
  const late = await rejects(box.run('echo before; sleep 100', { timeout: 1 }), CommandTimeout, /./)
  assert.equal(late.stdout, 'before\n')
  const seen = []
  await box.run('for i in 1 2 3; do echo $i; sleep 0.05; done', { onStdout: (x) => seen.push(x) })
  assert.equal(seen.join(''), '1\n2\n3\n')
  const big = await box.run('head -c 3000000 /dev/zero', { keep: 1000 })
  assert.deepEqual([big.stdoutBytes.length, big.omitted.stdout], [1000, 2999000])
})

await test('a command that runs: followed, attached to, given input, ended; terminals', async () => {
  const c = await box.start('while read x; do echo "got $x"; done', { stdin: true })
  await c.send('a\n')
  await c.send('b\n')
  await c.closeInput()
  assert.equal((await c.wait()).stdout, 'got a\ngot b\n')
  const long = await box.start('echo first; sleep 100')
  for await (const piece of long) {
    assert.deepEqual([piece.stream, Buffer.from(piece.data).toString(), piece.offset], ['stdout', 'first\n', 0])
    break
  }
  long.close()
  assert.ok((await box.commands()).some((x) => x.pid === long.pid))
  const again = box.attach(long.pid)
  assert.equal(await again.kill('TERM'), true)
  const end = await again.wait()
  assert.deepEqual([end.stdout, end.exitCode], ['first\n', 143])
  assert.equal(await again.kill(), false)
  const t = await box.start('stty size; exit 4', { pty: { cols: 90, rows: 20 } })
  const shown = await t.wait()
  assert.deepEqual([shown.stdout.trim(), shown.exitCode], ['20 90', 4])
})

await test('a connection that breaks is taken up again: nothing is lost or doubled', async () => {
  const at = new URL(hutch.http.origin)
  const sockets = new Set()
  const { connect } = await import('node:net')
  const proxy = createServer((down) => {
    const up = connect(Number(at.port || 80), at.hostname)
    sockets.add(down)
    down.pipe(up).pipe(down)
    for (const s of [down, up]) s.on('error', () => {}).on('close', () => (down.destroy(), up.destroy()))
  })
  await new Promise((done) => proxy.listen(0, '127.0.0.1', done))
  const through = await new Hutch({ url: `http://127.0.0.1:${proxy.address().port}` }).connect(box.id)
  const cut = setInterval(() => sockets.forEach((s) => (s.destroy(), sockets.delete(s))), 300)
  const c = await through.start('for i in $(seq 1 60); do echo line $i; sleep 0.03; done')
  const r = await c.wait()
  clearInterval(cut)
  proxy.close()
  assert.equal(r.stdout, Array.from({ length: 60 }, (_, i) => `line ${i + 1}\n`).join(''))
})

await test('files: bytes, text, ranges, streams, directories, errors', async () => {
  const bytes = new Uint8Array(256).map((_, i) => i)
  await box.files.write('/tmp/f/bytes', bytes)
  assert.deepEqual([...await box.files.read('/tmp/f/bytes')], [...bytes])
  assert.deepEqual([...await box.files.read('/tmp/f/bytes', { start: 10, end: 12 })], [10, 11])
  await box.files.write('ü x', 'grüße')
  assert.equal(await box.files.readText('ü x'), 'grüße')
  await box.files.write('/tmp/f/stream', new ReadableStream({ start: (s) => (s.enqueue(Buffer.from('a')), s.enqueue(Buffer.from('b')), s.close()) }))
  assert.equal(await box.files.readText('/tmp/f/stream'), 'ab')
  const e = await box.files.stat('/tmp/f/bytes')
  assert.deepEqual([e.type, e.size, e.owner], ['file', 256, 'user'])
  assert.deepEqual((await box.files.entries('/tmp/f')).map((x) => x.name).sort(), ['bytes', 'stream'])
  await box.files.makeDir('/tmp/f/d')
  await rejects(box.files.makeDir('/tmp/f/d'), Conflict, /409/)
  await box.files.move('/tmp/f/stream', '/tmp/f/d/moved')
  await box.files.remove('/tmp/f/d')
  assert.equal(await box.files.exists('/tmp/f/d/moved'), false)
  await rejects(box.files.read('/tmp/none'), NotFound, /404/)
  await rejects(box.files.read('/tmp'), BadRequest, /directory/)
})

await test('network grants, secrets, rights of one command', async () => {
  await hutch.secrets.set('js-secret', 'value-of-it', { hosts: ['api.example'], env: 'API_KEY' })
  assert.ok((await hutch.secrets.all()).some((s) => s.name === 'js-secret'))
  const s = await hutch.create(template, { network: { rules: [{ id: 'r', hosts: ['api.example'], secrets: ['js-secret'] }] } })
  assert.doesNotMatch((await s.run('echo $API_KEY')).stdout, /value-of-it/)
  assert.equal((await s.network.check('https://pypi.org/simple/')).verdict, 'deny')
  const id = await s.network.allow('pypi.org', { access: 'read-only', seconds: 600 })
  assert.equal((await s.network.check('https://pypi.org/simple/')).verdict, 'allow')
  await s.network.remove(id)
  assert.equal((await s.network.check('https://pypi.org/simple/')).verdict, 'deny')
  const r = await s.run('touch /tmp/x', { rights: { network: 'off', write: 'none' } })
  assert.ok(r.exitCode !== 0 && r.denials.length > 0)
  await s.kill()
  await hutch.secrets.remove('js-secret')
})

await test('history, undo, trials, forks, snapshots, lists, pauses', async () => {
  const s = await hutch.create(template, { history: true, name: 'js-history' })
  await s.run('echo one >plan')
  await s.run('echo two >plan')
  const generations = await s.history.generations()
  assert.equal(Buffer.from(await s.history.read(generations[0].number, '/home/user/plan')).toString(), 'one\n')
  await s.history.undo()
  assert.equal(await s.files.readText('plan'), 'one\n')
  const trial = await s.tryRun('rm plan; echo three >plan2; exit 5')
  assert.deepEqual([trial.exitCode, trial.changes.length > 0, await s.files.exists('plan')], [5, true, true])
  await trial.commit()
  assert.deepEqual([await s.files.exists('plan'), await s.files.readText('plan2')], [false, 'three\n'])
  const [fork] = await s.fork()
  assert.equal(await fork.files.readText('plan2'), 'three\n')
  await fork.kill()
  const listed = []
  for await (const x of hutch.sandboxes({ metadata: { own: 'js' } })) listed.push(x.sandboxID)
  assert.deepEqual(listed, [box.id])
  await s.pause({ memory: false })
  const back = await hutch.connect(s.id)
  assert.equal(await back.files.readText('plan2'), 'three\n')
  assert.equal(await s.kill(), true)
  assert.equal(await s.kill(), false)
})

await test('what is wrong is said by name', async () => {
  assert.throws(() => new Hutch({ url: 'ftp://x' }), /is not the URL of a node/)
  assert.throws(() => new Hutch({ url: 'http://node.example' }), /would send the key in clear/)
  assert.throws(() => new Hutch({ url: 'http://127.0.0.1:1/path' }), HutchError)
  await rejects(new Hutch({ key: 'wrong' }).create(template), Unauthenticated, /401/)
  await rejects(hutch.create('no-such-template'), NotFound, /no-such-template/)
  const gone = createServer()
  await new Promise((done) => gone.listen(0, '127.0.0.1', done))
  const { port } = gone.address()
  await new Promise((done) => gone.close(done))
  await rejects(new Hutch({ url: `http://127.0.0.1:${port}`, retries: 1 }).create(template), ConnectionLost, /ECONNREFUSED/)
  await rejects(box.run('true', { cwd: '/none' }), BadRequest, /none/)
})

await test('the types fit the code', () => {
  writeFileSync(`${import.meta.dirname}/types-check.mts`, `import { Hutch, type Sandbox } from 'hutch-sdk'
import { HutchBackend } from 'hutch-sdk/deepagents'
import { createDeepAgent } from 'deepagents'
const box: Sandbox = await new Hutch().create('base', { timeout: 60, network: 'public' })
const code: number = (await box.run('true', { rights: { network: 'off' } })).exitCode
const wrong: string = (await box.files.stat('/')).name
// @ts-expect-error: there is no such member
box.nothing
createDeepAgent({ backend: new HutchBackend(box) as any })
console.log(code, wrong, (await box.history.generations())[0].number, (await box.api.sandboxList({ limit: 1 })).nextToken)
`)
  try {
    execFileSync('node_modules/.bin/tsc', ['--noEmit', '--strict', '--skipLibCheck', 'false', '--target', 'es2023', '--module', 'nodenext', '--types', 'node', 'types-check.mts'], { cwd: import.meta.dirname, encoding: 'utf8' })
  } catch (e) {
    const own = e.stdout.split('\n').filter((line) => !line.startsWith('node_modules/') || line.includes('hutch-sdk'))
    assert.deepEqual(own.filter((line) => line.trim() && !line.startsWith(' ')), [])
  }
})

// --- the backend for deepagents

await test('an agent writes, runs, edits, searches and reads in a sandbox', async () => {
  const model = script(
    call('write_file', 1, { file_path: '/home/user/src/hello.py', content: 'print(6 * 7)\n' }),
    call('execute', 2, { command: 'python3 /home/user/src/hello.py; id -un' }),
    call('edit_file', 3, { file_path: '/home/user/src/hello.py', old_string: '6 * 7', new_string: "'edited'" }),
    call('execute', 4, { command: 'python3 /home/user/src/hello.py; exit 3' }),
    call('grep', 5, { pattern: 'edited', path: '/home/user/src' }),
    call('glob', 6, { pattern: '**/*.py', path: '/home/user' }),
    call('read_file', 7, { file_path: '/home/user/src/hello.py' }),
    call('ls', 8, { path: '/home/user' }),
    final('done'))
  const result = await createDeepAgent({ model, backend: new HutchBackend(box) }).invoke({ messages: [{ role: 'user', content: 'work' }] })
  const told = result.messages.filter((m) => m.getType() === 'tool').map((m) => typeof m.content === 'string' ? m.content : JSON.stringify(m.content))
  assert.equal(told.length, 8, told.join('\n---\n'))
  assert.match(told[1], /42\nuser/)
  assert.match(told[3], /edited/)
  assert.match(told[4], /hello\.py/)
  assert.match(told[5], /\/home\/user\/src\/hello\.py/)
  assert.match(told[6], /'edited'/)
  assert.match(told[7], /\/home\/user\/src/)
  assert.equal(await box.files.readText('src/hello.py'), "print('edited')\n")
})

const b = new HutchBackend(box, { timeout: 2, outputBytes: 1000 })

await test('backend: commands', async () => {
  assert.deepEqual(await b.execute('echo out; exit 3'), { output: 'out\n', exitCode: 3, truncated: false })
  const cut = await b.execute("head -c 5000 /dev/zero | tr '\\0' x")
  assert.deepEqual([cut.output.length, cut.exitCode, cut.truncated], [1000, 0, true])
  const late = await b.execute('echo before; sleep 100')
  assert.equal(late.exitCode, 124)
  assert.match(late.output, /^before\n/)
  assert.equal((await b.execute('kill -9 $$')).exitCode, 137)
  const five = await Promise.all([1, 2, 3, 4, 5].map((i) => new HutchBackend(box).execute(`head -c 500000 /dev/zero | tr '\\0' ${i}`)))
  assert.deepEqual(five.map((r) => [r.output.length, r.output[0], r.truncated]), [1, 2, 3, 4, 5].map((i) => [500000, String(i), false]))
})

await test('backend: upload, download, read, write', async () => {
  const bytes = new Uint8Array(256).map((_, i) => i)
  const large = new Uint8Array(10 << 20).fill(7)
  assert.deepEqual((await b.uploadFiles([['/tmp/b/1', bytes], ['/tmp/b/2', large], ['rel', bytes]])).map((r) => [r.path, r.error]),
    [['/tmp/b/1', null], ['/tmp/b/2', null], ['rel', 'invalid_path']])
  const down = await b.downloadFiles(['/tmp/b/2', '/tmp/b/1', '/tmp/none', '/tmp', 'rel'])
  assert.deepEqual(down.map((r) => r.error), [null, null, 'file_not_found', 'is_directory', 'invalid_path'])
  assert.deepEqual([down[0].content.length, [...down[1].content], down[2].content], [large.length, [...bytes], null])
  for (const text of ['', '\n\n\n', 'plain', 'ünï\n"$(id)" `x` \\', 'x'.repeat(200000)]) {
    assert.equal((await b.write('/tmp/b/dir with space//t', text)).error, undefined)
    assert.equal(await box.files.readText('/tmp/b/dir with space/t'), text)
  }
  await box.files.write('/tmp/b/ten', Array.from({ length: 10 }, (_, i) => `line ${i}\n`).join(''))
  const middle = await b.read('/tmp/b/ten', 3, 2)
  assert.deepEqual([middle.content, middle.startLine, middle.endLine, middle.totalLines, middle.nextOffset], ['line 3\nline 4', 4, 5, 10, 5])
  const last = await b.read('/tmp/b/ten', 8)
  assert.deepEqual([last.content, last.nextOffset], ['line 8\nline 9', undefined])
  assert.equal((await b.read('/tmp/b/ten', 0, 0)).content, '')
  assert.match((await b.read('/tmp/b/ten', 10)).error, /exceeds file length \(10 lines\)/)
  assert.match((await b.read('/tmp/none')).error, /not found/)
  await b.write('/tmp/b/p.png', Buffer.from([137, 80, 78, 71]).toString('base64'))
  const png = await b.read('/tmp/b/p.png')
  assert.deepEqual([[...png.content], png.mimeType], [[137, 80, 78, 71], 'image/png'])
  assert.equal((await b.readRaw('/tmp/b/ten')).data.content.length, 70)
  await box.run('seq 1 300000 >/tmp/b/many', { check: true })
  assert.deepEqual((await b.read('/tmp/b/many', 100000, 2)).content, '100001\n100002')
})

await test('backend: edit', async () => {
  await b.write('/tmp/e/f', 'one two one\n')
  assert.match((await b.edit('/tmp/e/f', 'one', 'x')).error, /multiple times \(2\)/)
  assert.equal((await b.edit('/tmp/e/f', 'one', 'x', true)).occurrences, 2)
  assert.equal((await b.edit('/tmp/e/f', 'two', '$& \\1')).occurrences, 1)
  assert.equal(await box.files.readText('/tmp/e/f'), 'x $& \\1 x\n')
  assert.match((await b.edit('/tmp/e/f', 'none', 'x')).error, /not found/)
  assert.match((await b.edit('/tmp/e/none', 'a', 'b')).error, /not found/)
  await box.files.write('/tmp/e/crlf', 'a\r\nb\r\n')
  assert.equal((await b.read('/tmp/e/crlf')).content, 'a\nb')
  assert.equal((await b.edit('/tmp/e/crlf', 'a\nb', 'x\ny')).occurrences, 1)
  assert.equal(await box.files.readText('/tmp/e/crlf'), 'x\r\ny\r\n')
  await box.files.write('/tmp/e/latin', new Uint8Array([99, 0xe9]))
  assert.match((await b.edit('/tmp/e/latin', 'c', 'd')).error, /not a text file/)
  assert.equal((await b.delete('/tmp/e/latin')).path, '/tmp/e/latin')
  assert.match((await b.delete('/tmp/e/latin')).error, /not found/)
})

await test('backend: ls, glob, grep, also of names that shells would read', async () => {
  await box.run("mkdir -p /tmp/g/.hidden /tmp/g/x/y '/tmp/g/a:1:b'; cd /tmp/g; touch top.py x/y/z.py .hidden/h.py x/.env 'sp ace' '$(id)'; echo needle >a:1:b/n:2; printf 'needle\\0' >bin; mkdir .git; echo needle >.git/c", { check: true })
  assert.deepEqual((await b.ls('/tmp/g/')).files.map((f) => f.path), ['/tmp/g/$(id)', '/tmp/g/.git/', '/tmp/g/.hidden/', '/tmp/g/a:1:b/', '/tmp/g/bin', '/tmp/g/sp ace', '/tmp/g/top.py', '/tmp/g/x/'])
  for (const [pattern, paths] of Object.entries({
    '*.py': ['/tmp/g/top.py'], '**/*.py': ['/tmp/g/.hidden/h.py', '/tmp/g/top.py', '/tmp/g/x/y/z.py'], 'x/*/z.{py,c}': ['/tmp/g/x/y/z.py'],
    'x/.en?': ['/tmp/g/x/.env'], '[s-u]*': ['/tmp/g/sp ace', '/tmp/g/top.py'], 'none*': []
  })) assert.deepEqual((await b.glob(pattern, '/tmp/g')).files.map((f) => f.path), paths, pattern)
  assert.deepEqual((await b.grep('needle', '/tmp/g')).matches, [{ path: '/tmp/g/a:1:b/n:2', line: 1, text: 'needle' }])
  await box.files.write('/tmp/h/f.txt', 'A.b\na+b\n-e x\nünï\n')
  assert.deepEqual((await b.grep('a+b', '/tmp/h')).matches.map((m) => m.line), [2])
  assert.deepEqual((await b.grep('-e x', '/tmp/h', '*.txt')).matches.map((m) => m.line), [3])
  assert.deepEqual((await b.grep('ünï', '/tmp/h', '*.py')).matches, [])
  const some = await b.grep('1', '/tmp/b/many', null, 3)
  assert.deepEqual([some.matches.length, some.truncated], [3, true])
  for (const r of [await b.ls('/none'), await b.glob('*', '/none'), await b.grep('x', '/none')]) assert.match(r.error, /not found/)
  assert.ok(globToRegExp('a**b').test('a/x/b') && !globToRegExp('a*b').test('a/b') && globToRegExp('{a,b}.c').test('b.c'))
})

await test('backend: files are read and written without a process', async () => {
  const stream = box.inside.stream
  box.inside.stream = undefined // by which commands are started
  try {
    await b.write('/tmp/q', 'text')
    assert.equal((await b.edit('/tmp/q', 'text', 'more')).occurrences, 1)
    assert.equal((await b.read('/tmp/q')).content, 'more')
    assert.ok((await b.ls('/tmp')).files.length && (await b.glob('q', '/tmp')).files.length === 1)
  } finally {
    box.inside.stream = stream
  }
})

await box.kill()
finish()
