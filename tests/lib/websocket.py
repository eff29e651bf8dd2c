"""A small WebSocket client: enough to speak to a development server through the gateway."""
import base64
import os
import socket
import struct


class WebSocket:
    """with WebSocket(port, "/path", {"Host": ...}) as w: w.send("text"); w.recv()

    status is that of the answer; with any but 101 there is no connection, and body is what came with it."""

    def __init__(self, port, path, headers, protocol=None, timeout=60):
        self.s = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.got = b""
        lines = [f"GET {path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "Upgrade: websocket", "Connection: Upgrade",
                 "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
        if protocol:
            lines.append(f"Sec-WebSocket-Protocol: {protocol}")
        self.s.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self.got:
            self._more()
        head, self.got = self.got.split(b"\r\n\r\n", 1)
        self.head = head.decode(errors="replace")
        self.status = int(self.head.split()[1])

    def _more(self):
        piece = self.s.recv(65536)
        if not piece:
            raise ConnectionError(f"closed after {self.got[:200]!r}")
        self.got += piece

    def _take(self, n):
        while len(self.got) < n:
            self._more()
        data, self.got = self.got[:n], self.got[n:]
        return data

    def send(self, text, opcode=1):
        data, mask = text.encode() if isinstance(text, str) else text, os.urandom(4)
        n = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack(">BH", 0x80 | 126, len(data))
        self.s.sendall(bytes([0x80 | opcode]) + n + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def recv(self):
        """The next message, text or bytes; pings are answered."""
        data = b""
        while True:
            first, n = self._take(2)
            if n & 127 == 126:
                n = struct.unpack(">H", self._take(2))[0]
            elif n & 127 == 127:
                n = struct.unpack(">Q", self._take(8))[0]
            part, opcode = self._take(n & 127 if n < 126 else n), first & 15
            if opcode == 9:
                self.send(part, 10)
            elif opcode == 8:
                raise ConnectionError(f"closed by the server: {part!r}")
            elif opcode in (0, 1, 2):
                data += part
                if first & 0x80:
                    return data.decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.s.close()
