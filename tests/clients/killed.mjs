// killed.mjs - the SDK's calls while front is killed again and again (run.py does that). The SDK does not retry a broken
// connection, so its user does: every call is repeated until it is answered. What counts: each call gets through, the same
// sandbox answers all along, nothing it holds is lost.
import { assert, test, end, sleep, until } from './lib.mjs'
import { Sandbox } from 'e2b'

const template = process.env.TEMPLATE || 'host'
let broken = 0

/** Repeats fn while the connection breaks; an answer, good or bad, is an answer. */
async function through(fn, ms = 300000) {
  const stop = Date.now() + ms
  for (;;) {
    try {
      return await fn()
    } catch (e) {
      const text = `${e?.name} ${e?.message} ${e?.cause?.code} ${e?.cause?.message}`
      if (Date.now() > stop || !/fetch failed|ECONN|terminated|socket|other side closed|unavailable|unknown|aborted|not found|Timeout/i.test(text)) throw e
      broken++
      await sleep(50)
    }
  }
}

const sbx = await through(() => Sandbox.create(template, { timeoutMs: 1_200_000, metadata: { killed: 'yes' } }))
await through(() => sbx.files.write('kept', 'kept'))
const counter = await through(() => sbx.commands.run('for i in $(seq 100000); do echo $i; sleep 0.01; done >count', { background: true, timeoutMs: 0 }))

async function round(i) {
  await through(() => sbx.files.write(`d${i}/f`, `text ${i}`))
  assert.equal(await through(() => sbx.files.read(`d${i}/f`)), `text ${i}`)
  assert.deepEqual((await through(() => sbx.files.list(`d${i}`))).map((e) => e.name), ['f'])
  assert.equal((await through(() => sbx.files.getInfo(`d${i}/f`))).size, `text ${i}`.length)
  assert.ok(await through(() => sbx.files.exists(`d${i}/f`)))
  await through(() => sbx.files.makeDir(`d${i}/g`))
  await through(async () => { if (await sbx.files.exists(`d${i}/f`)) await sbx.files.rename(`d${i}/f`, `d${i}/h`) })
  assert.equal(await through(() => sbx.files.read(`d${i}/h`)), `text ${i}`)
  assert.equal((await through(() => sbx.commands.run(`echo ${i}; cat kept`))).stdout, `${i}\nkept`)
  assert.ok((await through(() => sbx.commands.list())).some((p) => p.pid === counter.pid), 'the running command is gone')
  assert.equal((await through(() => sbx.getInfo())).sandboxId, sbx.sandboxId)
  await through(() => sbx.setTimeout(1_200_000))
  assert.ok((await through(() => Sandbox.list({ query: { metadata: { killed: 'yes' } } }).nextItems())).some((s) => s.sandboxId === sbx.sandboxId))
  await through(() => Sandbox.connect(sbx.sandboxId))
  await through(() => sbx.getMetrics())
  const url = await sbx.downloadUrl('kept')
  assert.equal(await through(async () => (await fetch(url)).text()), 'kept')
  let out = ''
  await through(async () => {
    const p = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => { out += new TextDecoder().decode(d) }, timeoutMs: 60000 })
    await sbx.pty.sendInput(p.pid, new TextEncoder().encode('echo $((40+2)); exit\n'))
    await p.wait()
  })
  assert.match(out, /42/)
  await through(async () => {
    let seen
    const w = await sbx.files.watchDir(`d${i}`, (e) => { seen = seen || e.name })
    await sbx.files.write(`d${i}/w`, 'x')
    for (let n = 0; n < 120 && !seen; n++) await sleep(25)
    await w.stop()
    if (!seen) throw new Error('terminated: the watch went with front')
  })
  await through(() => sbx.files.remove(`d${i}`))
  const other = await through(() => Sandbox.create(template, { timeoutMs: 60_000 }))
  await through(() => other.kill())
}

let rounds = 0
await test('every call gets through while front is killed', async () => {
  const stop = Date.now() + Number(process.env.KILL_SECONDS || 15) * 1000
  while (Date.now() < stop || rounds < 2) await round(rounds++)
  console.log(`# ${rounds} rounds, ${broken} broken connections`)
  assert.ok(broken > 0, 'nothing was ever broken: front was not killed')
}, 900000)
await test('the command that ran all along is still the same', async () => {
  assert.ok((await through(() => sbx.commands.list())).some((p) => p.pid === counter.pid))
  const a = Number((await through(() => sbx.commands.run('tail -n 1 count'))).stdout)
  assert.ok(a > 0, `${a}`)
  await until(async () => Number((await through(() => sbx.commands.run('tail -n 1 count'))).stdout) > a, 'it counts on')
  await through(() => sbx.kill())
})
end()
