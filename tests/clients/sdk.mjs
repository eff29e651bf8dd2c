// sdk.mjs - what users of the E2B TypeScript SDK do, against the daemon that the environment names.
// E2B_SDK: package to load ("e2b", "e2b-old"). TEMPLATE: what to create from. The SDK is not patched in any way.
import { assert, test, skip, end, sleep, until } from './lib.mjs'

const sdk = await import(process.env.E2B_SDK || 'e2b')
const { Sandbox, CommandExitError } = sdk
const template = process.env.TEMPLATE || 'host'
const base = template !== 'host'
const old = process.env.E2B_SDK === 'e2b-old'
// The SDK of a year ago answers kill() with nothing.
const killed = (v) => assert.equal(v, old ? undefined : true)
const meta = { run: `r${process.pid}`, 'a b': 'c&d=e', 'ü': '%41' }

const sbx = await Sandbox.create(template, { timeoutMs: 1_800_000, metadata: meta, envs: { FROM_CREATE: 'yes', BOTH: 'create' } })

await test('create: the id is a DNS label, info answers', async () => {
  assert.match(sbx.sandboxId, /^[a-z0-9]{10,40}$/)
  const info = await sbx.getInfo()
  assert.equal(info.sandboxId, sbx.sandboxId)
  assert.deepEqual(info.metadata, meta)
  assert.equal(info.state, 'running')
  assert.ok(info.endAt.getTime() - info.startedAt.getTime() >= 290_000)
  assert.ok(await sbx.isRunning())
})

await test('commands: output, exit codes, errors', async () => {
  const r = await sbx.commands.run('echo out; echo err >&2')
  assert.deepEqual([r.exitCode, r.stdout, r.stderr], [0, 'out\n', 'err\n'])
  await assert.rejects(sbx.commands.run('echo x; exit 7'), (e) => {
    assert.ok(e instanceof CommandExitError)
    assert.deepEqual([e.exitCode, e.stdout], [7, 'x\n'])
    return true
  })
  await assert.rejects(sbx.commands.run('kill -9 $$'), (e) => e instanceof CommandExitError && /signal: killed/.test(e.error))
  await assert.rejects(sbx.commands.run('pwd', { cwd: '/no/such/dir' }), /cwd '\/no\/such\/dir' does not exist/)
  await assert.rejects(sbx.commands.run('id', { user: 'nobody-here' }), /invalid username|nobody-here/)
})

await test('commands: environment, working directory, user', async () => {
  const r = await sbx.commands.run('echo "$FROM_CREATE $BOTH $HOME $USER $LOGNAME $PWD $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID"',
    { envs: { BOTH: 'command' } })
  const home = '/home/user'
  assert.equal(r.stdout.trim(), `yes command ${home} user user ${home} true ${sbx.sandboxId} ${template}`)
  assert.equal((await sbx.commands.run('echo $BOTH')).stdout.trim(), 'create')
  assert.equal((await sbx.commands.run('pwd', { cwd: '/tmp' })).stdout.trim(), '/tmp')
  assert.equal((await sbx.commands.run('id -un')).stdout.trim(), 'user')
  await assert.rejects(sbx.commands.run('echo x > /tmp/narrow', { envs: { HUTCH_RIGHTS: '{"write":"none"}' } }),
    (e) => e instanceof CommandExitError && /Permission denied/.test(e.stderr))
  assert.equal((await sbx.commands.run('id -un; tty; ps -o pid= -p $$', {})).stdout.split('\n')[0], 'user')
  if (base) {
    assert.equal((await sbx.commands.run('id -un', { user: 'root' })).stdout.trim(), 'root')
    assert.equal((await sbx.commands.run('sudo id -u')).stdout.trim(), '0')
  }
})

await test('commands: streaming comes while the command runs', async () => {
  for (let tries = 0; ; tries++) { // whoever stands still for a second gets it all at once
    const seen = []
    const t0 = Date.now()
    await sbx.commands.run('for i in 1 2 3; do echo $i; sleep 0.4; done', { onStdout: (d) => { seen.push([d, Date.now() - t0]) } })
    assert.equal(seen.map((s) => s[0]).join(''), '1\n2\n3\n')
    if (seen.length >= 3 && seen.at(-1)[1] - seen[0][1] > 500) break
    assert.ok(tries < 5, JSON.stringify(seen))
  }
})

await test('commands: 20 MB of output arrive whole', async () => {
  let n = 0
  await sbx.commands.run('head -c 20000000 /dev/zero | tr "\\0" x', { onStdout: (d) => { n += d.length }, timeoutMs: 300000 })
  assert.equal(n, 20_000_000)
}, 90000)

await test('commands: split UTF-8, binary and many lines', async () => {
  const r = await sbx.commands.run("for i in $(seq 1000); do printf 'zeile %s äöü€\\n' $i; done")
  assert.equal(r.stdout.split('\n').length, 1001)
  assert.ok(!r.stdout.includes('\ufffd'))
})

await test('commands: background, list, connect, stdin, kill', async () => {
  const h = await sbx.commands.run('cat; echo done', { background: true, stdin: true })
  const list = await sbx.commands.list()
  assert.ok(list.some((p) => p.pid === h.pid && p.cmd === '/bin/bash' && p.args.includes('cat; echo done')))
  let got = ''
  const h2 = await sbx.commands.connect(h.pid, { onStdout: (d) => { got += d } })
  await sbx.commands.sendStdin(h.pid, 'hello ')
  await sbx.commands.sendStdin(h.pid, 'wörld\n')
  await until(() => got.includes('hello wörld'), 'the echo')
  if (sbx.commands.closeStdin) {
    await sbx.commands.closeStdin(h.pid)
    const r = await h2.wait()
    assert.equal(r.exitCode, 0)
    assert.ok((await h.wait()).stdout.endsWith('done\n'))
  } else {
    assert.ok(await sbx.commands.kill(h.pid))
  }
  const s = await sbx.commands.run('sleep 100', { background: true })
  assert.equal(await sbx.commands.kill(s.pid), true)
  await assert.rejects(s.wait(), (e) => e.exitCode !== 0)
  await assert.rejects(sbx.commands.run(`kill -0 ${s.pid}`))
  assert.equal(await sbx.commands.kill(999999), false)
})

await test('commands: a process outlives its disconnected client', async () => {
  const h = await sbx.commands.run('for i in $(seq 3000); do echo tick $i; sleep 0.2; done', { background: true })
  await h.disconnect()
  await sleep(300)
  let got = ''
  const again = await sbx.commands.connect(h.pid, { onStdout: (d) => { got += d } })
  await until(() => /tick \d/.test(got), 'output after the reconnect')
  await again.kill()
})

await test('commands: the timeout kills', async () => {
  const t0 = Date.now()
  await assert.rejects(sbx.commands.run('sleep 300', { timeoutMs: 1200 }), (e) => /timed? ?out|deadline/i.test(`${e.name} ${e.message}`))
  assert.ok(Date.now() - t0 < 100000)
  await until(async () => !(await sbx.commands.list()).some((p) => p.args.includes('sleep 300')), 'the end of the command')
})

await test('pty: a real terminal with size, input, resize, kill', async () => {
  let out = ''
  const h = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => { out += new TextDecoder().decode(d) }, timeoutMs: 300000 })
  const type = (s) => sbx.pty.sendInput(h.pid, new TextEncoder().encode(s))
  await type('stty size; tty; echo $TERM\n')
  await until(() => /24 80/.test(out) && /\/dev\/pts\/\d/.test(out) && /xterm-256color\r/.test(out), 'the size')
  await sbx.pty.resize(h.pid, { cols: 100, rows: 40 })
  await type('stty size\n')
  await until(() => /40 100/.test(out), 'the new size')
  await type('sleep 1000\n')
  await sleep(300)
  await until(async () => { // it may not have begun when the first one comes
    await type('\x03')
    await type('echo back-$((40+2))\n')
    for (let n = 0; n < 20 && !/back-42/.test(out); n++) await sleep(50)
    return /back-42/.test(out)
  }, 'the prompt after Ctrl-C')
  await type('exit 3\n')
  await assert.rejects(h.wait(), (e) => e.exitCode === 3)
})

await test('files: text, bytes, streams, many at once', async () => {
  const w = await sbx.files.write('dir/sub/a.txt', 'hällo')
  assert.equal(w.path, '/home/user/dir/sub/a.txt')
  assert.equal(await sbx.files.read('dir/sub/a.txt'), 'hällo')
  assert.equal(await sbx.files.read('/home/user/dir/sub/a.txt'), 'hällo')
  const bytes = new Uint8Array(300_000).map((_, i) => i * 7)
  await sbx.files.write('bin', bytes.buffer)
  assert.deepEqual(await sbx.files.read('bin', { format: 'bytes' }), bytes)
  await sbx.files.write('blob', new Blob([bytes]))
  const s = await sbx.files.read('blob', { format: 'stream' })
  let n = 0
  for await (const c of s) n += c.length
  assert.equal(n, bytes.length)
  await sbx.files.write('empty', '')
  assert.equal(await sbx.files.read('empty'), '')
  const many = await sbx.files.write([{ path: 'm/1', data: 'one' }, { path: 'm/2', data: 'two' }, { path: 'm/q"uo te', data: '3' }])
  assert.deepEqual(many.map((f) => f.path), ['/home/user/m/1', '/home/user/m/2', '/home/user/m/q"uo te'])
  assert.equal(await sbx.files.read('m/q"uo te'), '3')
  await sbx.files.write('dir/sub/a.txt', 'x')
  assert.equal(await sbx.files.read('dir/sub/a.txt'), 'x')
  const own = await sbx.commands.run('stat -c "%U %G %a" dir dir/sub dir/sub/a.txt')
  assert.equal(own.stdout, 'user user 755\nuser user 755\nuser user 644\n')
})

await test('files: errors have their own classes', async () => {
  await assert.rejects(sbx.files.read('nope'), (e) => /NotFound/.test(e.name))
  await assert.rejects(sbx.files.read('dir'), (e) => /Invalid|Error/.test(e.name) && /directory/.test(e.message))
  await assert.rejects(sbx.files.list('nope'), (e) => /NotFound/.test(e.name))
  await assert.rejects(sbx.files.write('/proc/x', 'y'))
  await assert.rejects(sbx.files.read('x', { user: 'nobody-here' }), (e) => /Authentication|invalid username/.test(`${e.name} ${e.message}`))
})

await test('files: list, info, exists, mkdir, rename, remove', async () => {
  assert.equal(await sbx.files.makeDir('d1/d2'), true)
  assert.equal(await sbx.files.makeDir('d1/d2'), false)
  await sbx.files.write('d1/f', 'x')
  const l = await sbx.files.list('d1')
  assert.deepEqual(l.map((e) => [e.name, e.type]), [['d2', 'dir'], ['f', 'file']])
  assert.ok(await sbx.files.exists('d1/f'))
  assert.ok(!(await sbx.files.exists('d1/g')))
  const moved = await sbx.files.rename('d1/f', 'd1/g')
  assert.equal(moved.path, '/home/user/d1/g')
  if (sbx.files.getInfo) {
    await sbx.commands.run('ln -sf g d1/link; chmod 600 d1/g')
    const i = await sbx.files.getInfo('d1/g')
    assert.deepEqual([i.size, i.mode, i.permissions, i.owner, i.group], [1, 0o600, '-rw-------', 'user', 'user'])
    const s = await sbx.files.getInfo('d1/link')
    assert.equal(s.symlinkTarget, '/home/user/d1/g')
  }
  await sbx.files.remove('d1')
  assert.ok(!(await sbx.files.exists('d1')))
  await sbx.files.remove('d1')
})

await test('files: watch sees what happens, also in new directories', async () => {
  await sbx.files.makeDir('w')
  const events = []
  const h = await sbx.files.watchDir('w', (e) => { events.push(`${e.type} ${e.name}`) }, { recursive: true })
  await sbx.files.write('w/a', '1')
  await until(() => events.some((e) => e === 'create a'), 'the create')
  await until(() => events.some((e) => e === 'write a'), 'the write')
  await sbx.commands.run('mkdir w/new; sleep 0.2; touch w/new/x; chmod 600 w/a; mv w/a w/b; rm w/b')
  await until(() => events.some((e) => e === 'create new/x'), `new/x in ${events}`)
  await until(() => events.includes('chmod a') && events.includes('rename a') && events.includes('remove b'), `the rest in ${events}`)
  await h.stop()
  await assert.rejects(sbx.files.watchDir('nope', () => {}), (e) => /NotFound/.test(e.name))
})

await test('files: signed URLs, up and down, expiry', async () => {
  const up = await sbx.uploadUrl('signed.txt', { useSignatureExpiration: 60_000 })
  const form = new FormData()
  form.append('file', new Blob(['by url']), 'signed.txt')
  const r = await fetch(up, { method: 'POST', body: form })
  assert.equal(r.status, 200, await r.clone().text())
  assert.equal(await sbx.files.read('signed.txt'), 'by url')
  const down = await sbx.downloadUrl('signed.txt')
  assert.equal(await (await fetch(down)).text(), 'by url')
  assert.equal((await fetch(down.replace('signed.txt', 'other.txt'))).status, 401)
  const past = await sbx.downloadUrl('signed.txt', { useSignatureExpiration: -100_000 })
  const e = await fetch(past)
  assert.equal(e.status, 401)
  assert.deepEqual(await e.json(), { code: 401, message: 'signature is already expired' })
})

await test('git inside: init, commit, log', async () => {
  const r = await sbx.commands.run('mkdir -p g && cd g && git init -q && git config user.email a@b.c && git config user.name n && echo x >f && git add f && git commit -qm first && git log --oneline | cat')
  assert.match(r.stdout, /first/)
})

await test('metrics come within 30 s', async () => {
  let m = []
  await until(async () => (m = await sbx.getMetrics()).length > 0, 'a sample', 30000)
  assert.ok(m[0].cpuCount >= 1 && m[0].memTotal > 0 && m[0].memUsed > 0 && m[0].diskTotal > 0, JSON.stringify(m[0]))
})

await test('list: filter by metadata, paging', async () => {
  const more = await Promise.all([1, 2, 3].map((i) => Sandbox.create(template, { metadata: { ...meta, i: `${i}` } })))
  const mine = []
  const p = Sandbox.list({ query: { metadata: { run: meta.run, 'a b': meta['a b'], 'ü': '%41' } }, limit: 2 })
  let pages = 0
  while (p.hasNext) { mine.push(...(await p.nextItems())); pages++ }
  assert.equal(mine.length, 4)
  assert.equal(pages, 2)
  assert.ok(mine.some((s) => s.sandboxId === sbx.sandboxId))
  const none = await Sandbox.list({ query: { metadata: { run: 'other' } } }).nextItems()
  assert.equal(none.length, 0)
  for (const s of more) killed(await s.kill())
  assert.equal(await Sandbox.kill(more[0].sandboxId), false)
  assert.equal(await more[0].isRunning(), false)
})

await test('timeouts: set, connect never shortens, the end comes', async () => {
  const s = await Sandbox.create(template, { timeoutMs: 60_000 })
  await s.setTimeout(120_000)
  let left = (await s.getInfo()).endAt.getTime() - Date.now()
  assert.ok(left > 100_000 && left <= 121_000, `${left}`)
  const c = await Sandbox.connect(s.sandboxId, { timeoutMs: 1000 })
  assert.equal((await c.commands.run('echo same')).stdout, 'same\n')
  await s.setTimeout(1000)
  await until(async () => !(await s.isRunning()), 'the end of the sandbox', 20000)
  await assert.rejects(s.commands.run('true'), (e) => /Timeout|NotFound/.test(e.name))
  await assert.rejects(Sandbox.connect(s.sandboxId), (e) => /NotFound/.test(e.name))
})

await test('a sandbox that dies under a running command says so', async () => {
  const s = await Sandbox.create(template)
  const h = await s.commands.run('sleep 60', { background: true })
  const w = assert.rejects(h.wait(), (e) => /Timeout|Sandbox|terminated/i.test(`${e.name} ${e.message}`))
  await sleep(200)
  killed(await s.kill())
  await w
})

await test('wrong keys and unknown ids', async () => {
  await assert.rejects(Sandbox.create(template, { apiKey: 'e2b_' + '0'.repeat(40) }), (e) => /Authentication/.test(e.name))
  await assert.rejects(Sandbox.connect('i00000000000000000000'), (e) => /NotFound/.test(e.name))
  await assert.rejects(Sandbox.create('no-such-template'), /no-such-template/)
  await assert.rejects(Sandbox.create(template, { timeoutMs: 10 * 365 * 86400_000 }), /timeout/i)
})

if (!old) {
  await test('network: a refused connection fails, at creation and after an update', async () => {
    const s = await Sandbox.create(template, { timeoutMs: 600_000, network: { denyOut: ({ allTraffic }) => [allTraffic], allowOut: ['1.1.1.1'] } })
    const fails = (url) => assert.rejects(s.commands.run(`curl --connect-timeout 30 --max-time 60 -Is ${url}`), (e) => e instanceof CommandExitError)
    for (const url of ['https://8.8.8.8', 'http://8.8.8.8', 'https://denied.example', 'http://denied.example']) await fails(url)
    assert.deepEqual((await s.getInfo()).network.allowOut, ['1.1.1.1'])
    await s.updateNetwork({ denyOut: ['8.8.4.4'] })
    await fails('https://8.8.4.4')
    killed(await s.kill())
  })
  await test('mcp: a template without the gateway says so, and leaves no sandbox', async () => {
    const metadata = { mcp: `m${process.pid}` }
    await assert.rejects(Sandbox.create(template, { timeoutMs: 60_000, metadata, mcp: { exa: {} } }), /Failed to start MCP gateway/)
    assert.deepEqual(await Sandbox.list({ query: { metadata, state: ['running'] } }).nextItems(), [])
  })
}

if (!old && process.env.E2B_DOMAIN) {
  await test('ports: maskRequestHost, and headers as they were spelt', async () => {
    const s = await Sandbox.create(template, { timeoutMs: 600_000, network: { maskRequestHost: 'custom-host.example.com:${PORT}' } })
    await s.files.write('srv.py', `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        b = "".join(f"{k}: {v}\\n" for k, v in self.headers.items()).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(b))); self.end_headers(); self.wfile.write(b)
    def log_message(self, *a): pass
http.server.HTTPServer(("", 8080), H).serve_forever()
`)
    await s.commands.run('python3 srv.py', { background: true })
    let text = ''
    await until(async () => { const r = await fetch(`https://${s.getHost(8080)}/`); text = await r.text(); return r.status === 200 }, 'the server')
    assert.match(text, /^Host: custom-host\.example\.com:8080$/m)
    killed(await s.kill())
  })
}

if (process.env.E2B_DOMAIN) {
  await test('ports: HTTP, streaming and WebSocket reach a server inside', async () => {
    const { default: WebSocket } = await import('ws')
    await sbx.files.write('srv.py', `
import asyncio, base64, hashlib
async def serve(r, w):
    head = (await r.readuntil(b"\\r\\n\\r\\n")).decode()
    if "upgrade: websocket" in head.lower():
        key = [l.split(":",1)[1].strip() for l in head.split("\\r\\n") if l.lower().startswith("sec-websocket-key")][0]
        acc = base64.b64encode(hashlib.sha1((key+"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        w.write(f"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: {acc}\\r\\n\\r\\n".encode())
        while True:
            h = await r.readexactly(2); n = h[1] & 127; m = await r.readexactly(4); d = await r.readexactly(n)
            d = bytes(b ^ m[i%4] for i, b in enumerate(d))
            w.write(bytes([0x81, len(d)]) + d); await w.drain()
    elif "/sse" in head:
        w.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\n")
        for i in range(3):
            w.write(f"data: {i}\\n\\n".encode()); await w.drain(); await asyncio.sleep(0.4)
        w.close()
    else:
        host = [l for l in head.split("\\r\\n") if l.lower().startswith("host:")][0]
        b = f"hi {host}".encode()
        w.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(b) + b); await w.drain(); w.close()
async def main():
    s = await asyncio.start_server(serve, "127.0.0.1", 3000)
    await s.serve_forever()
asyncio.run(main())
`)
    await sbx.commands.run('python3 srv.py', { background: true })
    const host = sbx.getHost(3000)
    let text = ''
    await until(async () => { const r = await fetch(`https://${host}/`); text = await r.text(); return r.status === 200 }, 'the server')
    assert.match(text, new RegExp(`^hi [Hh]ost: ${host}$`))
    for (let tries = 0; ; tries++) {
      const r = await fetch(`https://${host}/sse`)
      const times = []
      for await (const c of r.body) times.push(Date.now())
      if (times.at(-1) - times[0] > 300) break
      assert.ok(tries < 5, `${times}`)
    }
    const ws = new WebSocket(`wss://${host}/ws`)
    const echo = await new Promise((yes, no) => { ws.on('open', () => ws.send('ping')); ws.on('message', (m) => yes(String(m))); ws.on('error', no) })
    assert.equal(echo, 'ping')
    ws.close()
    const closed = await fetch(`https://${sbx.getHost(3999)}/`)
    assert.equal(closed.status, 502)
    assert.deepEqual(await closed.json(), { sandboxId: sbx.sandboxId, message: 'The sandbox is running but port is not open', port: 3999, code: 502 })
    const gone = await fetch(`https://3000-i0000000000000000000.${process.env.E2B_DOMAIN}/`)
    assert.equal(gone.status, 502)
    assert.equal((await gone.json()).message, 'The sandbox was not found')
  })
}

await test('kill ends it', async () => {
  killed(await sbx.kill())
  assert.equal(await Sandbox.kill(sbx.sandboxId), false)
})
end()
