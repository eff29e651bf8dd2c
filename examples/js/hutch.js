// hutch.js - wrap a command with `hutch run` and read its result record. Node 18 or newer, no packages.
'use strict';

const { spawn } = require('node:child_process');

/**
 * Runs a command behind the wall.
 *
 * @param {string[]} command        program and arguments
 * @param {object}   [options]
 * @param {string[]} [options.flags]  options of `hutch run`, e.g. ['--memory', '256M']
 * @param {string}   [options.hutch]  path of the program
 * @param {string}   [options.cwd]    directory the command may write to
 * @param {string}   [options.input]  text for its standard input
 * @returns {Promise<{code: number, stdout: string, stderr: string, record: object|null}>}
 */
function run(command, { flags = [], hutch = process.env.HUTCH_BIN || 'hutch', cwd, input = '' } = {}) {
  return new Promise((resolve, reject) => {
    // Descriptor 3 carries the record, so it can be mixed up neither with output nor with a file of the command.
    const child = spawn(hutch, ['run', '--quiet', '--json', '3', ...flags, '--', ...command], {
      cwd,
      stdio: ['pipe', 'pipe', 'pipe', 'pipe'],
    });
    const text = { 1: '', 2: '', 3: '' };
    for (const fd of [1, 2, 3]) {
      child.stdio[fd].setEncoding('utf8').on('data', (chunk) => { text[fd] += chunk; });
    }
    child.stdin.on('error', () => {}); // the command may end before it has read everything
    child.stdin.end(input);
    child.on('error', reject);
    child.on('close', (code, signal) => {
      if (signal) return reject(new Error(`hutch was killed by ${signal}`));
      let record = null;
      try {
        record = text[3] ? JSON.parse(text[3]) : null;
      } catch (error) {
        return reject(new Error(`unreadable record: ${error.message}`));
      }
      return resolve({ code, stdout: text[1], stderr: text[2], record });
    });
  });
}

/** The flags that would have allowed what was refused, for a person to look at. */
function grants(record) {
  const flags = (record?.denials ?? []).map((d) => d.grant?.flag).filter(Boolean);
  return [...new Set(flags)];
}

module.exports = { run, grants };

if (require.main === module) {
  const command = process.argv.slice(2);
  if (command.length === 0) {
    console.error('usage: node hutch.js COMMAND [ARGUMENT...]');
    process.exit(120);
  }
  run(command).then(({ code, stdout, stderr, record }) => {
    process.stdout.write(stdout);
    process.stderr.write(stderr);
    console.error(JSON.stringify({ usage: record?.usage, death: record?.death, grants: grants(record) }, null, 2));
    process.exit(code);
  }, (error) => {
    console.error(error.message);
    process.exit(125);
  });
}
