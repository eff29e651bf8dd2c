"""Speaks the protocol of a sandbox's init (src/init/proto.h), well enough to run commands and open files."""
import array
import os
import socket
import struct

HELLO, BIND, SPAWN, ATTACH, ACK, DETACH, SIGNAL = 1, 2, 3, 4, 5, 6, 7
OPEN, CREATE, STAT, DIAL = 12, 13, 14, 22
REPLY, OUTPUT, EXITED, CLOSED = 100, 101, 102, 105
PTY, STDIN, KEEP = 1, 2, 4


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data + b"\0"


def texts(values):
    return struct.pack("<I", len(values)) + b"".join(text(v) for v in values)


class Failure(Exception):
    def __init__(self, code, why):
        super().__init__(f"{code} {why}")
        self.code, self.why = code, why


class Init:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(120)  # a command may take long until it says something
        self.sock.connect(str(path))
        self.number = 0

    def close(self):
        self.sock.close()

    def send(self, kind, body=b"", request=None):
        if request is None:
            self.number += 1
            request = self.number
        self.sock.send(struct.pack("<HHIQII", 1, kind, 0, request, len(body), 0) + body)
        return request

    def receive(self):
        data, control, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(16))
        fds = array.array("i")
        for _, _, part in control:
            fds.frombytes(part)
        if not data:
            raise EOFError("init closed the connection")
        version, kind, _, request, length, _ = struct.unpack_from("<HHIQII", data)
        assert version == 1 and length == len(data) - 24
        return kind, request, data[24:], list(fds)

    def call(self, kind, body=b""):
        """The reply's body behind code and text, and its descriptors. Other messages are not expected."""
        request = self.send(kind, body)
        got, number, data, fds = self.receive()
        assert got == REPLY and number == request, (got, number)
        code, n = struct.unpack_from("<II", data)
        if code:
            raise Failure(code, data[8:8 + n].decode())
        return data[9:], fds

    def bind(self, env=(), user="user", hostname="box", workdir=""):
        self.call(BIND, text(hostname) + texts(env) + text(user) + text(workdir))

    def spawn(self, *argv, env=(), user="", flags=0, cwd=None):
        where = struct.pack("<I", 0) if cwd is None else struct.pack("<I", 1) + text(cwd)
        data, fds = self.call(SPAWN, text(argv[0]) + texts(argv[1:]) + texts(env) + where + text(user) + text("") +
                              struct.pack("<IIIQ", flags, 80, 24, 0))
        return struct.unpack_from("<I", data)[0], fds

    def run(self, *argv, **options):
        """(exited, code, stdout, stderr, oom) of a short command."""
        _, rings = self.spawn(*argv, **options)
        request = self.number
        while True:
            kind, _, data, _ = self.receive()
            ends = struct.unpack_from("<3Q", data)
            if kind == EXITED:
                break
            self.send(ACK, struct.pack("<3Q", *ends), request)
        exited, code, _, oom = struct.unpack_from("<4I", data, 24)
        first = 2 if len(rings) == 1 else 0  # a terminal has one stream, the third
        out = [os.pread(fd, ends[first + i], 0).decode(errors="replace") for i, fd in enumerate(rings)]
        for fd in rings:
            os.close(fd)
        self.send(DETACH, struct.pack("<I", 1), request)
        assert self.receive()[0] == CLOSED
        return bool(exited), code, *out, bool(oom)
