// What the JavaScript programs of this folder share: tests that are told in TAP, and a chat model that answers with a script.
let n = 0, bad = 0
export async function test(name, fn) {
  n++
  try {
    await fn()
    console.log(`ok ${n} - ${name}`)
  } catch (e) {
    bad++
    console.log(`not ok ${n} - ${name}\n# ${String(e?.stack ?? e).split('\n').join('\n# ')}`)
  }
}
export function finish() {
  console.log(`1..${n}`)
  process.exit(bad ? 1 : 0)
}
export async function rejects(promise, kind, words) {
  try {
    await promise
  } catch (e) {
    if (!(e instanceof kind) || !words.test(e.message)) throw e
    return e
  }
  throw new Error('it did not fail')
}
