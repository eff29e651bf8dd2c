"""browser.py - a page served from inside a sandbox, in a real browser: HTML, script, fetch and WebSocket through the gateway.

Run by the Python that has the e2b package; the daemon comes from the environment. Prints TAP."""
import os
import re
import subprocess
import tempfile
import time

from e2b import Sandbox

SERVER = r'''
import asyncio, base64, hashlib
answered = asyncio.Event()
PAGE = b"""<!doctype html><title>inside</title><p id=fetch>-</p><p id=ws>-</p><p id=where>-</p><script>
document.getElementById('where').textContent = location.host
fetch('/data').then(r => r.text()).then(t => { document.getElementById('fetch').textContent = t })
const s = new WebSocket('wss://' + location.host + '/ws')
s.onopen = () => s.send('from the browser')
s.onmessage = (m) => { document.getElementById('ws').textContent = m.data }
fetch('/hold') // answered after the WebSocket's message: virtual time waits for requests, not for sockets
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
                w.write(bytes([0x81, len(d)]) + d); await w.drain(); await asyncio.sleep(1); answered.set()
                await asyncio.sleep(5); break
            if head.startswith("GET /hold"):
                await asyncio.wait_for(answered.wait(), 30)
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


def dump_dom(url):
    with tempfile.TemporaryDirectory() as home:
        r = subprocess.run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                            "--ignore-certificate-errors", f"--user-data-dir={home}", "--virtual-time-budget=8000",
                            "--dump-dom", url], text=True, capture_output=True, timeout=120, check=False)
        return r.stdout or r.stderr


def main():
    s = Sandbox.create(os.environ["TEMPLATE"], timeout=120)
    try:
        s.files.write("page.py", SERVER)
        s.commands.run("exec python3 page.py >page.log 2>&1", background=True)
        s.commands.run("for i in $(seq 200); do (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null && exit; sleep 0.1; done; cat page.log; exit 1")
        url = f"https://{s.get_host(8000)}/"
        dom = ""
        for _ in range(3):
            dom = dump_dom(url)
            if "fetched inside" in dom and "echo from the browser" in dom:
                break
            time.sleep(1)
        wanted = {"the page": "<title>inside</title>", "fetch": "fetched inside", "WebSocket": "echo from the browser",
                  "its own origin": s.get_host(8000)}
        bad = [k for k, v in wanted.items() if v not in dom]
        print(f"{'not ok' if bad else 'ok'} 1 - a page, fetch and WebSocket in Chromium")
        for line in (f"missing: {bad}\n{dom[-1500:]}" if bad else "").splitlines():
            print(f"# {line}")
        gone = dump_dom(url.replace("8000-", "8001-"))
        ok = re.search("port is not open", gone)
        print(f"{'ok' if ok else 'not ok'} 2 - a closed port is explained in a page")
        for line in ("" if ok else gone[-800:]).splitlines():
            print(f"# {line}")
    finally:
        s.kill()
    print("1..2", flush=True)
    os._exit(1 if bad or not ok else 0)


main()
