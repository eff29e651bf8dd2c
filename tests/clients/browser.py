"""browser.py - a page served from inside a sandbox, in a real browser: HTML, script, fetch and WebSocket through the gateway.

Run by the Python that has the e2b package; the daemon comes from the environment. Prints TAP."""
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time

from e2b import Sandbox

SERVER = r'''
import asyncio, base64, hashlib, urllib.parse
# What the page sees it tells the server, which writes it down: no clock of a browser decides when to look.
PAGE = b"""<!doctype html><title>inside</title><script>
const report = (what) => fetch('/seen?' + encodeURIComponent(what))
report('page ' + document.title + ' of ' + location.host)
fetch('/data').then(r => r.text()).then(t => report('fetch ' + t))
const s = new WebSocket('wss://' + location.host + '/ws')
s.onopen = () => s.send('from the browser')
s.onmessage = (m) => report('socket ' + m.data)
</script>"""
async def serve(r, w):
    try:
        while True:
            head = (await r.readuntil(b"\r\n\r\n")).decode()
            low = head.lower()
            if "upgrade: websocket" in low:
                key = re_key(head)
                acc = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
                w.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {acc}\r\n\r\n".encode())
                h = await r.readexactly(2); m = await r.readexactly(4); d = await r.readexactly(h[1] & 127)
                d = b"echo " + bytes(b ^ m[i % 4] for i, b in enumerate(d))
                w.write(bytes([0x81, len(d)]) + d); await w.drain(); await asyncio.sleep(600); break
            if head.startswith("GET /seen?"):
                with open("seen", "a") as f:
                    print(urllib.parse.unquote(head.split()[1][6:]), file=f)
            body = b"fetched inside" if head.startswith("GET /data") else PAGE
            w.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await w.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        w.close()
def re_key(head):
    return [l.split(":", 1)[1].strip() for l in head.split("\r\n") if l.lower().startswith("sec-websocket-key")][0]
async def main():
    await (await asyncio.start_server(serve, "127.0.0.1", 8000)).serve_forever()
asyncio.run(main())
'''


def chromium(home, *args):
    """A browser with a home of its own; TMPDIR too, because it is killed and would leave what it has there."""
    return subprocess.Popen(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                             "--ignore-certificate-errors", f"--user-data-dir={home}", *args], text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, env={**os.environ, "TMPDIR": home})


@contextlib.contextmanager
def browser(*args):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        p = chromium(home, *args)
        try:
            yield p
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
            p.wait()


def seen(sandbox, url, wanted, seconds):
    """What the page reported, once all of `wanted` is in it or the time is over."""
    text, end = "", time.monotonic() + seconds
    with browser("--remote-debugging-port=0", url):
        while time.monotonic() < end and not all(w in text for w in wanted):
            time.sleep(0.3)
            text = sandbox.commands.run("cat seen 2>/dev/null || true").stdout
    return text


def main():
    s = Sandbox.create(os.environ["TEMPLATE"], timeout=900)
    try:
        s.files.write("page.py", SERVER)
        s.commands.run("exec python3 page.py >page.log 2>&1", background=True)
        s.commands.run("for i in $(seq 1000); do (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && exit; sleep 0.1; done; cat page.log; exit 1", timeout=180)
        url = f"https://{s.get_host(8000)}/"
        wanted = [f"page inside of {s.get_host(8000)}\n", "fetch fetched inside\n", "socket echo from the browser\n"]
        text = seen(s, url, wanted, 240)
        bad = [w for w in wanted if w not in text]
        print(f"{'not ok' if bad else 'ok'} 1 - a page, fetch and WebSocket in Chromium")
        for line in (f"missing: {bad}\n{text[-1500:]}" if bad else "").splitlines():
            print(f"# {line}")
        with browser("--timeout=120000", "--dump-dom", url.replace("8000-", "8001-")) as p:
            gone = p.communicate(timeout=300)[0]
        ok = re.search("port is not open", gone)
        print(f"{'ok' if ok else 'not ok'} 2 - a closed port is explained in a page")
        for line in ("" if ok else gone[-800:]).splitlines():
            print(f"# {line}")
    finally:
        s.kill()
    print("1..2", flush=True)
    os._exit(1 if bad or not ok else 0)


main()
