"""An agent that lives in a sandbox: it talks to a model, runs the commands the model asks for, and is reached in a browser.

It has a key for the model's API in its environment, as agents do. The key is a placeholder: the real one is put into the
request on its way out of the sandbox, and only in requests to the model. Nothing here knows about that.

    MODEL_URL=https://api.model.example MODEL_API_KEY=... python3 agent.py [PORT]
"""
import html
import http.server
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

URL, KEY = os.environ["MODEL_URL"], os.environ["MODEL_API_KEY"]
TURNS, OUTPUT = 16, 8000
TOOLS = [{"name": "shell", "description": "Run a command in this computer and get its output.",
          "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}]
PAGE = """<!doctype html><meta charset=utf-8><title>Agent inside</title><h1>Agent inside</h1>
<form><input name=task size=60 autofocus> <button>Do it</button></form><pre>"""


def ask_model(messages):
    body = json.dumps({"model": "any", "max_tokens": 1024, "tools": TOOLS, "messages": messages}).encode()
    request = urllib.request.Request(URL + "/v1/messages", body, {"Content-Type": "application/json", "X-Api-Key": KEY})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def shell(command):
    r = subprocess.run(["sh", "-c", command], text=True, capture_output=True, timeout=120, check=False)
    return (r.stdout + r.stderr)[-OUTPUT:] + (f"\n[exit code {r.returncode}]" if r.returncode else "")


def work(task):
    """The loop: yields a line for everything that happens."""
    messages = [{"role": "user", "content": task}]
    for _ in range(TURNS):
        answer = ask_model(messages)
        messages.append({"role": "assistant", "content": answer["content"]})
        results = []
        for part in answer["content"]:
            if part["type"] == "text":
                yield part["text"] + "\n"
            elif part["type"] == "tool_use":
                yield f"$ {part['input']['command']}\n"
                out = shell(part["input"]["command"])
                yield out.rstrip("\n") + "\n"
                results.append({"type": "tool_result", "tool_use_id": part["id"], "content": out})
        if not results:
            return
        messages.append({"role": "user", "content": results})
    yield f"[stopped after {TURNS} turns]\n"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        """The page; with ?task=... it grows while the agent works."""
        task = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("task", [""])[0]
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.chunk(PAGE)
        try:
            for line in work(task) if task else ():
                self.chunk(html.escape(line))
        except urllib.error.HTTPError as e:  # a refusal by the sandbox's rules says what was refused and why
            self.chunk(html.escape(f"[the model's API answered {e.code}: {e.read().decode(errors='replace')[:2000]}]\n"))
        except OSError as e:
            self.chunk(html.escape(f"[{e}]\n"))
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text):
        data = text.encode()
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    http.server.ThreadingHTTPServer(("0.0.0.0", port), Handler).serve_forever()
