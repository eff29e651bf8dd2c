"""Starts a stock by hand, as the supervisor does, and speaks its protocol (src/layers/proto.h)."""
import ctypes
import fcntl
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile

import stockd

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


def _types():
    """The numbers of enum layers_type, as the header has them."""
    text = re.sub(r"/\*.*?\*/", "", (TOP / "src/layers/proto.h").read_text(), flags=re.S)
    found, value = {}, -1
    for item in re.search(r"enum layers_type \{(.*?)\}", text, re.S).group(1).split(","):
        name, _, given = item.partition("=")
        if name.strip():
            value = int(given) if given.strip() else value + 1
            found[name.strip().removeprefix("LAYERS_")] = value
    return found


CAPTURE, DROP, LIST, IMPORT, CONVERT, BLOB, EXPORT, RESTORE, CANCEL, REPLY, PROGRESS, ITEMS = (
    _types()[name] for name in "CAPTURE DROP LIST IMPORT CONVERT BLOB EXPORT RESTORE CANCEL REPLY PROGRESS ITEMS".split())
(OK, BAD_REQUEST, NOT_FOUND, BUSY, NO_HOST, BAD_DATA, TOO_LARGE, NO_SPACE, CONFLICT, DENIED, CANCELLED,
 FAILED) = range(12)
u32, u64, char = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char


class Reply(ctypes.Structure):
    _fields_ = [("version", u32), ("type", u32), ("request", u64), ("error", u32), ("zero", u32), ("text", char * 400),
                ("layer", char * 65), ("bytes", u64), ("entries", u64), ("bytes2", u64), ("entries2", u64),
                ("frozen_us", u64)]


class Answer:
    """error, text, numbers, and in `data` the bytes behind the descriptor that came along."""

    def __init__(self, data, fds):
        r = Reply.from_buffer_copy(data)
        self.error, self.text, self.layer, self.bytes, self.entries = (
            r.error, r.text.decode(), r.layer.decode(), r.bytes, r.entries)
        self.bytes2, self.entries2, self.frozen_us = r.bytes2, r.entries2, r.frozen_us
        self.data = None
        for fd in fds:
            with os.fdopen(fd, "rb") as f:
                f.seek(0)
                self.data = f.read()

    def __str__(self):
        return f"error {self.error}: {self.text}"


class Stock:
    """One stock with directories of its own. A rootless one lives beside a keeper (tests/lib/keeper.py), whose directories it
    shares. `ids`: arguments of subprocess that start it as another user."""

    def __init__(self, program, arguments=(), keeper=None, ids=None):
        self.keeper, self.number = keeper, 0
        self.dir = keeper.dir if keeper else pathlib.Path(tempfile.mkdtemp(prefix="hutch-stock-", dir="/run"))
        self.run, self.state = self.dir / "run", self.dir / "state"
        if not keeper:
            os.chmod(self.dir, 0o755)
            self.run.mkdir(mode=0o710)
            self.state.mkdir(mode=0o755)
        path = self.run / "stock.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(path))
        listener.listen(8)
        run, state = os.open(self.run, os.O_RDONLY), os.open(self.state, os.O_RDONLY)

        def prepare():
            # Free numbers: with fixed ones, a test that has many files open would overwrite one of the three.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (listener.fileno(), run, state)]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)
            os.closerange(6, 256)
        self.process = subprocess.Popen([program, "layers", *arguments], preexec_fn=prepare, close_fds=False,
                                        stdin=subprocess.DEVNULL, **(ids or {}))
        for fd in (run, state):
            os.close(fd)
        listener.close()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(180)
        self.sock.connect(str(path))

    @property
    def store(self):
        return self.state / "stock"

    def names(self, folder):
        return sorted(os.listdir(self.store / folder))

    def layers_of(self, stack):
        """Digests, uppermost first."""
        data = (self.store / "stacks" / stack).read_bytes()
        n = struct.unpack_from("<I", data, 12)[0]
        return [data[88 + 32 * i:120 + 32 * i].hex() for i in range(n)]

    def roots_of(self, stack):
        return [self.store / "layers" / name / "root" for name in self.layers_of(stack)]

    def send(self, kind, fds=(), **fields):
        self.number += 1
        values = {name: v.encode() if isinstance(v, str) else v for name, v in fields.items()}
        q = stockd.request_type(kind)(version=stockd.VERSION, type=kind, request=self.number, **values)
        socket.send_fds(self.sock, [bytes(q)], list(fds))
        return self.number

    def wait(self, number):
        while True:
            data, fds, _, _ = socket.recv_fds(self.sock, 65536, 4)
            if not data:
                raise EOFError("stock ended")
            _, kind, request = struct.unpack_from("<IIQ", data)
            if kind == REPLY and request == number:
                return Answer(data, fds)
            for fd in fds:
                os.close(fd)

    def ask(self, kind, fds=(), **fields):
        return self.wait(self.send(kind, fds, **fields))

    def close(self):
        self.sock.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if not self.keeper:
                shutil.rmtree(self.dir, ignore_errors=True)
