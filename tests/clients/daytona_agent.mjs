// The program with which Daytona's users begin, in JavaScript: an agent of deepagents whose tools work in a sandbox. A scripted model stands
// in place of the cloud's. Prints TAP.
import assert from 'node:assert'
import { createDeepAgent } from 'deepagents'
import { DaytonaSandbox } from '@langchain/daytona'
import { call, final, script } from './scripted.mjs'
import { finish, test } from './tap.mjs'

await test('an agent writes, runs, edits and searches in its sandbox, which stops', async () => {
  const model = script(
    call('write_file', 1, { file_path: '/home/user/hello.py', content: 'print(6 * 7)\n' }),
    call('execute', 2, { command: 'python3 /home/user/hello.py' }),
    call('edit_file', 3, { file_path: '/home/user/hello.py', old_string: '6 * 7', new_string: "'edited'" }),
    call('execute', 4, { command: 'python3 /home/user/hello.py' }),
    call('grep', 5, { pattern: 'edited', path: '/home/user' }),
    final('done'))
  const sandbox = await DaytonaSandbox.create({ snapshot: process.env.TEMPLATE })
  try {
    const agent = createDeepAgent({ model, systemPrompt: 'You are a coding assistant with a sandbox.', backend: sandbox })
    const result = await agent.invoke({ messages: [{ role: 'user', content: 'write a program and run it' }] })
    const told = result.messages.filter((m) => m.getType() === 'tool').map((m) => typeof m.content === 'string' ? m.content : JSON.stringify(m.content))
    assert.match(told[1], /42/)
    assert.match(told[3], /edited/)
    assert.match(told[4], /hello\.py/)
    assert.equal(result.messages.at(-1).content, 'done')
  } finally {
    await sandbox.close()
  }
})
finish()
