// code.mjs - what users of npm's @e2b/code-interpreter do.
import { assert, test, end } from './lib.mjs'

const { Sandbox } = await import('@e2b/code-interpreter')
const template = process.env.TEMPLATE
const sbx = await Sandbox.create(template, { timeoutMs: 900_000 })

await test('code: cells share variables; results, errors, the counter', async () => {
  await sbx.runCode('x = 20')
  const r = await sbx.runCode('x += 1; x * 2')
  assert.equal(r.text, '42')
  assert.equal(r.executionCount, 2)
  const { error } = await sbx.runCode('1 / 0')
  assert.equal(error.name, 'ZeroDivisionError')
  const shown = await sbx.runCode("display({'a/b': 'c', 'text/plain': 't'}, raw=True)")
  assert.deepEqual(shown.results[0].extra, { 'a/b': 'c' })
})

await test('code: callbacks are called while the cell runs', async () => {
  const seen = [], times = []
  const note = (kind) => (m) => { seen.push([kind, m.line ?? m.text ?? m.name]); times.push(Date.now()) }
  await sbx.runCode("import sys, time\nprint('a', flush=True)\ntime.sleep(1)\nprint('b', file=sys.stderr, flush=True)\ndisplay(1)\nraise KeyError('k')",
    { onStdout: note('out'), onStderr: note('err'), onResult: note('result'), onError: note('error') })
  assert.deepEqual(seen, [['out', 'a\n'], ['err', 'b\n'], ['result', '1'], ['error', 'KeyError']])
  assert.ok(times[1] - times[0] > 500, 'both lines came at the end')
})

await test('code: contexts', async () => {
  const c = await sbx.createCodeContext({ cwd: '/tmp' })
  assert.equal((await sbx.runCode('import os; os.getcwd()', { context: c })).text, '/tmp')
  await sbx.runCode('z = 1', { context: c })
  assert.equal((await sbx.runCode('z')).error.name, 'NameError')
  assert.ok((await sbx.listCodeContexts()).some((x) => x.id === c.id))
  await sbx.restartCodeContext(c)
  assert.equal((await sbx.runCode('z', { context: c })).error.name, 'NameError')
  await sbx.removeCodeContext(c)
  assert.ok(!(await sbx.listCodeContexts()).some((x) => x.id === c.id))
})

await test('code: charts, tables and other data', async () => {
  const data = { 'text/plain': 't', 'image/png': 'QUJD', 'image/svg+xml': '<svg/>', 'text/latex': '$x$', 'application/json': [1], 'e2b/data': { a: [1, null] },
    'e2b/chart': { type: 'bar', title: 'T', elements: [{ label: 'x', group: 'g', value: 1.5 }] } }
  const seen = []
  const code = `import json\ndisplay(json.loads(r"""${JSON.stringify(data)}"""), raw=True)`
  const { results: [r] } = await sbx.runCode(code, { onResult: (x) => { seen.push(x.png) } })
  assert.deepEqual([r.text, r.png, r.svg, r.latex, r.json, r.data], ['t', 'QUJD', '<svg/>', '$x$', [1], { a: [1, null] }])
  assert.deepEqual(r.chart, data['e2b/chart'])
  assert.deepEqual(seen, ['QUJD'])
})

await test('code: variables of a call, bash', async () => {
  assert.equal((await sbx.runCode("import os; os.environ.get('V')", { envs: { V: 'v' } })).text, 'v')
  assert.equal((await sbx.runCode("import os; os.environ.get('V')")).text, undefined)
  assert.deepEqual((await sbx.runCode('echo hi', { language: 'bash' })).logs.stdout, ['hi\n'])
})

await test('code: a client that gives up interrupts the cell', async () => {
  await sbx.runCode('kept = 5')
  await assert.rejects(sbx.runCode('import time\nwhile True: time.sleep(1)', { timeoutMs: 3000 }))
  const begun = Date.now()
  assert.equal((await sbx.runCode('kept')).text, '5')
  assert.ok(Date.now() - begun < 10_000, 'the cell was not interrupted')
})

await sbx.kill()
end()
