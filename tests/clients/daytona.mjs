// What users of Daytona's JavaScript SDK do, with the generation that DAYTONA_SDK names. Prints TAP.
import assert from 'node:assert'
const { Daytona } = await import(process.env.DAYTONA_SDK)
const template = process.env.TEMPLATE
let n = 0, bad = 0
async function test(name, fn) {
  n++
  try {
    await fn()
    console.log(`ok ${n} - ${name}`)
  } catch (e) {
    bad++
    console.log(`not ok ${n} - ${name}\n# ${String(e.stack).split('\n').join('\n# ')}`)
  }
}
const d = new Daytona()
let s
await test('create', async () => {
  s = await d.create({ snapshot: template, language: 'python', envVars: { E: '1' }, labels: { js: 'yes' } })
  assert.equal(s.state, 'started')
})
await test('exec and codeRun', async () => {
  const r = await s.process.executeCommand('echo out; echo $E; exit 3')
  assert.deepEqual([r.exitCode, r.result], [3, 'out\n1\n'])
  const c = await s.process.codeRun('print(6 * 7)')
  assert.equal(c.result, '42\n')
})
await test('sessions', async () => {
  await s.process.createSession('w')
  const r = await s.process.executeSessionCommand('w', { command: 'cd /tmp; echo out; echo err >&2' })
  assert.deepEqual([r.exitCode, r.stdout, r.stderr], [0, 'out\n', 'err\n'])
  const a = await s.process.executeSessionCommand('w', { command: 'pwd; sleep 0.3', runAsync: true })
  while ((await s.process.getSessionCommand('w', a.cmdId)).exitCode == null) await new Promise((f) => setTimeout(f, 50))
  const logs = await s.process.getSessionCommandLogs('w', a.cmdId)
  assert.equal(logs.stdout, '/tmp\n')
  await s.process.deleteSession('w')
})
await test('logs of a running command', async () => {
  await s.process.createSession('f')
  const a = await s.process.executeSessionCommand('f', { command: 'printf one; sleep 0.3; printf two >&2; sleep 0.3; printf three', runAsync: true })
  let out = '', err = ''
  await s.process.getSessionCommandLogs('f', a.cmdId, (x) => { out += x }, (x) => { err += x })
  assert.deepEqual([out, err], ['onethree', 'two'])
  await s.process.deleteSession('f')
})
await test('terminals', async () => {
  let seen = ''
  const text = new TextDecoder()
  const h = await s.process.createPty({ id: 'p', cols: 100, rows: 30, envs: { A: 'ü' }, onData: (x) => { seen += text.decode(x, { stream: true }) } })
  await h.waitForConnection()
  await h.sendInput('stty size; echo A=$A; exit 5\n')
  const r = await h.wait()
  assert.equal(r.exitCode, 5)
  assert.match(seen, /30 100/)
  assert.match(seen, /A=ü/)
})
await test('files', async () => {
  await s.fs.uploadFile(Buffer.from([0, 1, 255]), '/tmp/b')
  assert.deepEqual([...await s.fs.downloadFile('/tmp/b')], [0, 1, 255])
  await s.fs.uploadFiles([{ source: Buffer.from('ü'), destination: '/tmp/ü x' }])
  assert.equal((await s.fs.downloadFile('/tmp/ü x')).toString(), 'ü')
  await assert.rejects(s.fs.downloadFile('/tmp/none'), /not found/)
  await s.fs.createFolder('/tmp/d', '755')
  assert.ok((await s.fs.listFiles('/tmp')).some((f) => f.name === 'd' && f.isDir))
})
await test('list, stop, start, delete', async () => {
  await s.stop()
  await s.start()
  assert.equal((await s.process.executeCommand('cat /tmp/b | wc -c')).result.trim(), '3')
  await s.delete()
  await assert.rejects(d.get(s.id), /not found/)
})
console.log(`1..${n}`)
process.exit(bad ? 1 : 0)
