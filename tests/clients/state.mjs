// state.mjs - pause, resume, snapshots and forks as users of the E2B TypeScript SDK know them. The template must have files of its own.
import { assert, test, end, sleep, until } from './lib.mjs'

const { Sandbox } = await import('e2b')
const template = process.env.TEMPLATE || 'base'
const https = Boolean(process.env.E2B_DOMAIN)

async function boot(sbx) { return (await sbx.commands.run('cut -d" " -f22 /proc/1/stat')).stdout }

await test('pause and connect: the process, its pid and its server are the same', async () => {
  const sbx = await Sandbox.create(template, { timeoutMs: 900_000, envs: { A: '1' }, metadata: { k: 'v' } })
  await sbx.files.write('/home/user/f', 'kept')
  const h = await sbx.commands.run('python3 -m http.server 8000', { background: true })
  await until(async () => (await sbx.commands.run('curl -s -o /dev/null -w %{http_code} http://127.0.0.1:8000/ || true')).stdout === '200', 'the server')
  const before = await boot(sbx)
  assert.equal(await sbx.pause(), true)
  assert.equal(await sbx.pause(), false)
  assert.equal((await sbx.getInfo()).state, 'paused')
  assert.equal(await sbx.isRunning(), false)
  const page = await Sandbox.list({ query: { state: ['paused'], metadata: { k: 'v' } } }).nextItems()
  assert.ok(page.some((s) => s.sandboxId === sbx.sandboxId))
  const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 900_000 })
  assert.equal(await again.isRunning(), true)
  assert.equal(await boot(again), before)
  assert.ok((await again.commands.list()).some((p) => p.pid === h.pid), 'the process is not listed')
  assert.equal((await again.commands.run('curl -s -o /dev/null -w %{http_code} http://127.0.0.1:8000/')).stdout, '200')
  assert.equal((await again.commands.run('echo $A')).stdout, '1\n')
  if (https) {
    const r = await fetch(`https://${again.getHost(8000)}/`)
    assert.equal(r.status, 200)
  }
  assert.equal(await again.kill(), true)
})

await test('a stream that is open when it is paused ends with an error that says so', async () => {
  const sbx = await Sandbox.create(template, { timeoutMs: 600_000 })
  const h = await sbx.commands.run('sleep 100', { background: true })
  const end = h.wait().then(() => 'ended', (e) => String(e.message || e))
  await sbx.pause()
  assert.match(await end, /paused/)
  await sbx.connect()
  assert.ok((await sbx.commands.list()).some((p) => p.pid === h.pid))
  await sbx.kill()
})

await test('pause without memory: files and identity stay, processes do not', async () => {
  const sbx = await Sandbox.create(template, { timeoutMs: 900_000, metadata: { k: 'files' } })
  await sbx.files.write('/home/user/f', 'kept')
  const h = await sbx.commands.run('sleep 1000', { background: true })
  h.wait().catch(() => {})
  for (let i = 0; i < 2; i++) {
    await sbx.commands.run(`echo ${i} >> /home/user/log; sudo sh -c 'echo ${i} >> /etc/log'`)
    const before = await boot(sbx)
    assert.equal(await sbx.pause({ keepMemory: false }), true)
    assert.equal((await sbx.getInfo()).state, 'paused')
    await sbx.connect()
    assert.notEqual(await boot(sbx), before)
    assert.equal(await sbx.files.read('/home/user/f'), 'kept')
  }
  assert.equal((await sbx.commands.run('cat /home/user/log /etc/log')).stdout, '0\n1\n0\n1\n')
  assert.equal((await sbx.commands.run('pgrep -c "sleep" || true')).stdout.trim(), '0')
  assert.deepEqual((await sbx.getInfo()).metadata, { k: 'files' })
  assert.equal(await sbx.pause({ keepMemory: false }), true)
  assert.equal(await sbx.kill(), true)
  assert.equal(await Sandbox.kill(sbx.sandboxId), false)
})

await test('lifecycle: paused at its end, woken by traffic', async () => {
  const sbx = await Sandbox.create(template, { timeoutMs: 3000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  assert.deepEqual((await sbx.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  await sbx.files.write('/home/user/f', 'kept')
  await until(async () => (await sbx.getInfo()).state === 'paused', 'the pause')
  assert.equal(await sbx.isRunning(), false)
  assert.equal(await sbx.files.read('/home/user/f'), 'kept')
  await until(async () => await sbx.files.read('/home/user/f') === 'kept' && (await sbx.getInfo()).state === 'running', 'it runs') // for three seconds again
  await sbx.kill()
})

await test('snapshots: many sandboxes from one, listed, deleted', async () => {
  const sbx = await Sandbox.create(template, { timeoutMs: 900_000 })
  await sbx.files.write('/home/user/f', 'snapshot')
  const snapshot = await sbx.createSnapshot()
  await sbx.files.write('/home/user/f', 'later')
  const made = await Promise.all([0, 1, 2].map(() => Sandbox.create(snapshot.snapshotId, { timeoutMs: 600_000 })))
  for (const m of made) assert.equal(await m.files.read('/home/user/f'), 'snapshot')
  assert.equal(await sbx.files.read('/home/user/f'), 'later')
  const named = await sbx.createSnapshot({ name: `snap-${process.pid}` })
  const from = await Sandbox.create(`snap-${process.pid}`, { timeoutMs: 600_000 })
  assert.equal(await from.files.read('/home/user/f'), 'later')
  const pages = Sandbox.listSnapshots({ sandboxId: sbx.sandboxId, limit: 1 })
  const ids = []
  while (pages.hasNext) ids.push(...(await pages.nextItems()).map((s) => s.snapshotId))
  assert.deepEqual(ids.sort(), [snapshot.snapshotId, named.snapshotId].sort())
  for (const s of [snapshot, named]) {
    assert.equal(await Sandbox.deleteSnapshot(s.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(s.snapshotId), false)
  }
  await assert.rejects(Sandbox.create(snapshot.snapshotId), /not found/)
  for (const m of [...made, from, sbx]) await m.kill()
})

await test('fork: the same files, lives of their own', async () => {
  const sbx = await Sandbox.create(template, { timeoutMs: 900_000 })
  await sbx.files.write('/home/user/f', 'parent')
  const kids = await sbx.fork({ count: 3, timeoutMs: 600_000 })
  assert.equal(kids.length, 3)
  for (const [i, k] of kids.entries()) {
    assert.ok(!(k instanceof Error), String(k))
    assert.equal(await k.files.read('/home/user/f'), 'parent')
    await k.files.write('/home/user/f', `child ${i}`)
  }
  assert.equal(await sbx.files.read('/home/user/f'), 'parent')
  assert.equal(new Set([sbx, ...kids].map((s) => s.sandboxId)).size, 4)
  for (const s of [sbx, ...kids]) await s.kill()
})
await sleep(0)
end()
