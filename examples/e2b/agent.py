#!/usr/bin/env python3
"""agent.py [TEMPLATE] - what an agent does with a computer of its own: write a program, run it, look at the result, serve it.

Needs `pip install e2b` and the variables of `hutch env`.
"""
import sys
import time

from e2b import CommandExitException, Sandbox

template = sys.argv[1] if len(sys.argv) > 1 else "base"
sandbox = Sandbox.create(template, timeout=120, metadata={"example": "agent"}, envs={"GREETING": "hello"})
try:
    print("sandbox", sandbox.sandbox_id)
    sandbox.files.write("job/primes.py", "print([n for n in range(2, 60) if all(n % d for d in range(2, n))])")
    print(sandbox.commands.run("python3 job/primes.py | tee job/out && echo $GREETING from $(whoami)").stdout, end="")
    print("kept:", sandbox.files.read("job/out").strip()[:30], "...")

    try:
        sandbox.commands.run("cat /no/such/file; exit 3")
    except CommandExitException as end:
        print("exit", end.exit_code, end.stderr.strip())

    # A service inside; its port is https://8000-ID.DOMAIN, or the node's URL with two headers.
    server = sandbox.commands.run("python3 -m http.server 8000 --directory job", background=True)
    time.sleep(1)
    print("port:", sandbox.get_host(8000))
    server.kill()
    print("uses:", [(m.cpu_used_pct, m.mem_used >> 20) for m in sandbox.get_metrics()][-1:])
finally:
    sandbox.kill()
