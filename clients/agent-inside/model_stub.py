"""A model's API, as far as the example needs one: it wants the right key, asks for one command, and then says what it saw.

    python3 model_stub.py ADDRESS PORT CERT.pem KEY     (CERT.pem: certificate and its private key)
"""
import http.server
import json
import ssl
import sys


def answer_to(messages):
    last = messages[-1]["content"]
    if isinstance(last, str):
        return [{"type": "text", "text": "I will look."},
                {"type": "tool_use", "id": "t1", "name": "shell", "input": {"command": f"echo {json.dumps(last)} | wc -w; id -un; env | grep -c KEY"}}]
    seen = " / ".join(part["content"].strip().replace("\n", " ") for part in last)
    return [{"type": "text", "text": f"Done. The computer said: {seen}"}]


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version, key, refused, served = "HTTP/1.1", "", 0, 0

    def log_message(self, *_):
        pass

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("X-Api-Key") != self.key:
            type(self).refused += 1
            return self.reply(401, {"error": "this is not the key"})
        type(self).served += 1
        self.reply(200, {"role": "assistant", "content": answer_to(body["messages"])})


def server(address, port, pem, key):
    handler = type("KeyedModel", (Model,), {"key": key})
    s = http.server.ThreadingHTTPServer((address, port), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    s.socket = context.wrap_socket(s.socket, server_side=True)
    return s


if __name__ == "__main__":
    server(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]).serve_forever()
