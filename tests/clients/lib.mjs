// lib.mjs - the few lines every client program shares: named tests, printed as TAP.
import assert from 'node:assert/strict'

export { assert }
const only = process.env.CLIENT_ONLY ? new RegExp(process.env.CLIENT_ONLY) : null
let n = 0, failed = 0

// What only hangs use up is long: the machine may have much else to do.
export async function test(name, fn, ms = 60000) {
  if (only && !only.test(name)) return
  ms = Math.max(ms, 600_000)
  let timer
  try {
    await Promise.race([
      fn(),
      new Promise((_, no) => { timer = setTimeout(() => no(new Error(`no end after ${ms} ms`)), ms) }),
    ])
    console.log(`ok ${++n} - ${name}`)
  } catch (e) {
    failed++
    console.log(`not ok ${++n} - ${name}`)
    for (const line of String(e?.stack || e).split('\n').slice(0, 12)) console.log(`# ${line}`)
  } finally {
    clearTimeout(timer)
  }
}

export function skip(name, why) { console.log(`ok ${++n} - ${name} # skip ${why}`) }
export function end() { console.log(`1..${n}`); process.exit(failed ? 1 : 0) }
export const sleep = (ms) => new Promise((r) => setTimeout(r, ms))

/** Waits until cond() is true; a slow machine has a minute. */
export async function until(cond, what, ms = 15000) {
  ms = Math.max(ms, 60_000)
  const stop = Date.now() + ms
  for (;;) {
    if (await cond()) return
    if (Date.now() > stop) throw new Error(`waited ${ms} ms for ${what}`)
    await sleep(50)
  }
}
