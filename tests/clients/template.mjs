// template.mjs - what users of the E2B TypeScript SDK build, against the daemon that the environment names.
import { mkdtempSync, writeFileSync, mkdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { assert, test, end } from './lib.mjs'

const { Template, Sandbox, waitForFile } = await import('e2b')
const name = `js-${process.pid}`
const dir = mkdtempSync(join(tmpdir(), 'hutch-template-'))
mkdirSync(join(dir, 'app'))
writeFileSync(join(dir, 'app', 'main.txt'), 'from the context\n')
writeFileSync(join(dir, 'one.txt'), 'one\n')

const build = async (t, as, more = {}) => {
  const logs = []
  const info = await Template.build(t, as, { onBuildLogs: (e) => logs.push(e.message), ...more })
  return { info, text: logs.join('\n') }
}
const full = () => Template({ fileContextPath: dir }).fromBaseImage()
  .setUser('agent').setWorkdir('/srv/app').setEnvs({ GREETING: 'hello', TWICE: '$GREETING' })
  .copy('app', 'data/').copy('one.txt', '/srv/one.txt', { mode: 0o600 })
  .runCmd('echo "$GREETING from $(id -un) in $PWD" > made.txt')
  .runCmd('touch /root-was-here', { user: 'root' })

await test('template: copy, run, env, workdir and user come along', async () => {
  const { info, text } = await build(full(), name, { cpuCount: 1, memoryMB: 512 })
  assert.ok(info.templateId && info.buildId)
  assert.match(text, /RUN echo/)
  const sbx = await Sandbox.create(name)
  try {
    const r = await sbx.commands.run(
      'cat made.txt data/main.txt /srv/one.txt; pwd; echo $GREETING; ls -l /srv/one.txt; ls /root-was-here')
    assert.match(r.stdout, /^hello from agent in \/srv\/app\nfrom the context\none\n\/srv\/app\nhello\n-rw-------/)
    assert.equal((await sbx.commands.run('id -un')).stdout.trim(), 'agent')
  } finally {
    await sbx.kill()
  }
}, 180_000)

await test('template: the second build is cached', async () => {
  const { text } = await build(full(), `${name}-again`)
  assert.match(text, /CACHED \[builder \d+\/\d+\] RUN echo/)
}, 120_000)

await test('template: a failing step is reported', async () => {
  await assert.rejects(build(Template().fromBaseImage().runCmd('true').runCmd('echo before; exit 5'), `${name}-bad`),
    /failed to run command 'echo before; exit 5': exit status 5/)
  await assert.rejects(build(Template().fromBaseImage().runCmd('id', { user: 'root123' }), `${name}-bad`),
    /failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'/)
}, 120_000)

await test('template: from another template, with tags', async () => {
  await build(Template().fromTemplate(name).runCmd('cat made.txt > copied.txt'), `${name}-child:v1`, { tags: ['stable'] })
  assert.equal(await Template.exists(`${name}-child`), true)
  assert.equal(await Template.exists(`${name}-never`), false)
  const tags = (await Template.getTags(`${name}-child`)).map((t) => t.tag).sort()
  assert.deepEqual(tags, ['stable', 'v1'])
  await Template.assignTags(`${name}-child:v1`, ['prod'])
  await Template.removeTags(`${name}-child`, ['stable'])
  assert.deepEqual((await Template.getTags(`${name}-child`)).map((t) => t.tag).sort(), ['prod', 'v1'])
  const sbx = await Sandbox.create(`${name}-child:prod`)
  try {
    assert.match((await sbx.commands.run('cat copied.txt')).stdout, /^hello from agent/)
  } finally {
    await sbx.kill()
  }
}, 180_000)

await test('template: every sandbox runs the start command', async () => {
  const t = Template().fromBaseImage().setStartCmd('sh -c "touch /tmp/started; exec sleep 1000"', waitForFile('/tmp/started'))
  await build(t, `${name}-start`)
  const sbx = await Sandbox.create(`${name}-start`)
  try {
    assert.equal((await sbx.commands.run('ls /tmp/started')).stdout.trim(), '/tmp/started')
    assert.ok((await sbx.commands.list()).some((p) => p.cmd.includes('sh')))
  } finally {
    await sbx.kill()
  }
}, 180_000)

await test('template: an image that is not here says how to get it', async () => {
  await assert.rejects(build(Template().fromImage('no-such/image:1'), `${name}-none`), /hutch template import no-such\/image:1/)
}, 60_000)

rmSync(dir, { recursive: true })
end()
