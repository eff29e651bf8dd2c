// volume.mjs - volumes as users of the E2B TypeScript SDK use them: the content API, and sandboxes that mount them.
import { assert, test, skip, end } from './lib.mjs'

const sdk = await import(process.env.E2B_SDK || 'e2b')
const { Sandbox, Volume } = sdk
const template = process.env.TEMPLATE || 'host'
const place = '/home/user/data'

if (!Volume) {
  skip('volumes', 'this SDK has none')
} else {
  const name = `js-${process.pid}`
  const vol = await Volume.create(name)

  await test('volumes: create, list, connect, info', async () => {
    assert.match(vol.volumeId, /^vol-[a-z0-9]{20}$/)
    assert.equal(vol.name, name)
    assert.ok((await Volume.list()).some((v) => v.volumeId === vol.volumeId && v.name === name))
    assert.equal((await Volume.connect(vol.volumeId)).token, vol.token)
    await assert.rejects(Volume.create(name), /already/)
    await assert.rejects(Volume.connect('vol-aaaaaaaaaaaaaaaaaaaa'), (e) => e instanceof sdk.NotFoundError || /not found/.test(e.message))
  })

  await test('volumes: files and directories', async () => {
    const dir = await vol.makeDir('/d/e', { force: true, mode: 0o750, uid: 1000, gid: 1000 })
    assert.deepEqual([dir.name, dir.type, dir.mode, dir.uid], ['e', 'directory', 0o750, 1000])
    const file = await vol.writeFile('/d/e/f ü.txt', 'häl', { uid: 1000 })
    assert.deepEqual([file.path, file.size, file.type], ['/d/e/f ü.txt', 4, 'file'])
    assert.ok(Math.abs(file.mtime.getTime() - Date.now()) < 120_000)
    assert.equal(await vol.readFile('/d/e/f ü.txt'), 'häl')
    assert.equal(Buffer.from(await vol.readFile('/d/e/f ü.txt', { format: 'bytes' })).toString(), 'häl')
    const stream = await vol.readFile('/d/e/f ü.txt', { format: 'stream' })
    let n = 0
    for await (const part of stream) n += part.length
    assert.equal(n, 4)
    await vol.writeFile('/empty', '')
    assert.equal(await vol.readFile('/empty'), '')
    assert.deepEqual((await vol.list('/')).map((e) => e.path), ['/d', '/empty'])
    assert.deepEqual((await vol.list('/', { depth: 3 })).map((e) => e.path), ['/d', '/d/e', '/d/e/f ü.txt', '/empty'])
    assert.equal((await vol.updateMetadata('/d/e/f ü.txt', { mode: 0o600 })).mode, 0o600)
    assert.equal(await vol.exists('/d'), true)
    assert.equal(await vol.exists('/nope'), false)
    await assert.rejects(vol.readFile('/nope'), /not found/)
    await assert.rejects(vol.writeFile('/empty', 'x', { force: false }), /exists/)
    await assert.rejects(vol.makeDir('/no/parent'), /not found/)
    await vol.remove('/d')
    assert.equal(await vol.exists('/d'), false)
  })

  await test('volumes: a large stream', async () => {
    const piece = new Uint8Array(1 << 20).fill(7)
    let left = 16
    const body = new ReadableStream({ pull(c) { if (left-- > 0) c.enqueue(piece); else c.close() } })
    assert.equal((await vol.writeFile('/big', body)).size, 16 << 20)
    const back = await vol.readFile('/big', { format: 'bytes' })
    assert.ok(back.length === 16 << 20 && back.every((b) => b === 7))
  })

  await test('volumes: a wrong token opens nothing', async () => {
    const other = await Volume.create(`${name}-other`)
    const stolen = new Volume(vol.volumeId, vol.name, other.token, vol.domain)
    await assert.rejects(stolen.readFile('/big'))
    assert.equal(await stolen.exists('/big'), false)
    assert.equal(await Volume.destroy(other.volumeId), true)
  })

  await test('volumes: two sandboxes share one', async () => {
    const boxes = await Promise.all([1, 2].map(() => Sandbox.create(template, { timeoutMs: 600_000, volumeMounts: { [place]: vol } })))
    try {
      await boxes[0].commands.run(`echo one > ${place}/shared`)
      assert.equal((await boxes[1].commands.run(`cat ${place}/shared`)).stdout, 'one\n')
      assert.equal(await vol.readFile('/shared'), 'one\n')
      await vol.writeFile('/from-api', 'api')
      assert.equal((await boxes[0].commands.run(`cat ${place}/from-api`)).stdout, 'api')
      await assert.rejects(Volume.destroy(vol.volumeId), /in use/)
    } finally {
      await Promise.all(boxes.map((b) => b.kill()))
    }
  })

  await test('volumes: destroy', async () => {
    assert.equal(await Volume.destroy(vol.volumeId), true)
    assert.equal(await Volume.destroy(vol.volumeId), false)
  })
}
end()
