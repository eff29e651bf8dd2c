"""A proxy before a node that adds its key: for clients that send none. One request a connection; bytes pass as they come."""
import contextlib
import selectors
import socket
import threading


class KeyProxy:
    """with KeyProxy(node) as url: ..."""

    def __init__(self, node):
        self.node = node
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self.url

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.node.port)) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                more = client.recv(65536)
                if not more:
                    return
                head += more
            head, rest = head.split(b"\r\n\r\n", 1)
            lines = [x for x in head.split(b"\r\n") if not x.lower().startswith((b"connection:", b"x-api-key:"))]
            server.sendall(b"\r\n".join([*lines, b"connection: close", b"x-api-key: " + self.node.key.encode()]) + b"\r\n\r\n" + rest)
            self.pass_on(client, server)

    @staticmethod
    def pass_on(client, server):
        with selectors.DefaultSelector() as both:
            both.register(client, selectors.EVENT_READ, server)
            both.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in both.select():
                    data = key.fileobj.recv(65536)
                    if not data:
                        return
                    key.data.sendall(data)
