"""Starts stock beside a keeper of tests/lib/keeper.py, as the supervisor does, and asks it several things at once (src/layers/proto.h)."""
import array
import ctypes
import fcntl
import os
import secrets
import signal
import socket
import subprocess

BOX, TEXT, REF, PATH, LIST, ID, HEX = 40, 400, 512, 4096, 256, 40, 65
VERSION = 2
(CAPTURE, DROP, LIST_TYPE, IMPORT, CONVERT, BLOB, EXPORT, RESTORE, DIFF, OPEN, APPLY, FLATTEN, VERIFY, GC, DF, USAGE, VOLUME_MAKE,
 VOLUME_DROP, VOLUME_STAT, CANCEL, LAYERS, VOLUME_RESIZE) = range(1, 23)
REPLY, PROGRESS, ITEMS = 100, 101, 102
FREEZE, DRY = 1, 2
(OK, BAD_REQUEST, NOT_FOUND, BUSY, HOST, BAD_DATA, TOO_LARGE, NO_SPACE, CONFLICT, DENIED, CANCELLED, FAILED) = range(12)
u32, u64, i64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64


TEXTS = {"box": BOX, "stack": ID, "other": ID, "volume": BOX, "blob": HEX, "ref": REF, "path": PATH}
# The fields behind the head, in their order.
SHAPES = {kind: names.split() for names, kinds in {
    "": (LIST_TYPE, GC, DF),
    "stack": (DROP, FLATTEN, USAGE, VERIFY, LAYERS),
    "bytes stack": (EXPORT,),
    "bytes entries box stack other": (CAPTURE,),
    "bytes entries stack ref path": (IMPORT,),
    "bytes entries stack": (RESTORE,),
    "bytes entries blob": (CONVERT,),
    "blob": (BLOB,),
    "box stack other": (DIFF, APPLY),
    "stack path": (OPEN,),
    "bytes entries volume": (VOLUME_MAKE, VOLUME_DROP, VOLUME_STAT, VOLUME_RESIZE),
    "cancel": (CANCEL,),
}.items() for kind in kinds}


class Head(ctypes.Structure):
    _fields_ = [("version", u32), ("type", u32), ("request", u64), ("trace", u64), ("flags", u32), ("zero", u32)]


def request_type(kind):
    """The message of that type; one that is no type has a head only."""
    fields = [(name, ctypes.c_char * TEXTS[name] if name in TEXTS else u64) for name in SHAPES.get(kind, ())]
    return type("Request", (Head,), {"_fields_": fields})


class Reply(ctypes.Structure):
    _fields_ = [("version", u32), ("type", u32), ("request", u64), ("error", u32), ("zero", u32),
                ("text", ctypes.c_char * TEXT), ("layer", ctypes.c_char * HEX), ("bytes", u64), ("entries", u64),
                ("bytes2", u64), ("entries2", u64), ("frozen_us", u64)]


class Item(ctypes.Structure):
    _fields_ = [("id", ctypes.c_char * ID), ("nlayers", u32), ("zero", u32), ("created_unix", i64)]


class Items(ctypes.Structure):
    _fields_ = [("version", u32), ("type", u32), ("request", u64), ("n", u32), ("more", u32), ("item", Item * LIST)]


def new_stack():
    return "st-" + secrets.token_hex(12)


class Client:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(180)
        self.sock.connect(str(path))
        self.number = 0

    def close(self):
        self.sock.close()

    def send(self, kind, fds=(), **fields):
        self.number += 1
        message = request_type(kind)(version=VERSION, type=kind, request=self.number)
        for name, value in fields.items():
            if not hasattr(message, name):
                raise TypeError(f"a request {kind} has no {name}")
            setattr(message, name, value.encode() if isinstance(value, str) else value)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([bytes(message)], rights)
        return self.number

    def receive(self):
        data, fds, _, _ = socket.recv_fds(self.sock, 65536, 4)
        if not data:
            raise EOFError("stock closed the connection")
        kind = Reply if len(data) == ctypes.sizeof(Reply) else Items
        return kind.from_buffer_copy(data), fds

    def wait(self, number):
        """The answer to that request, after any progress; its descriptor is in `fd`, or None."""
        while True:
            reply, fds = self.receive()
            if reply.request == number and reply.type != PROGRESS:
                reply.fd = fds[0] if fds else None
                return reply

    def ask(self, kind, fds=(), **fields):
        return self.wait(self.send(kind, fds, **fields))

    def list(self):
        number, found = self.send(LIST_TYPE), {}
        while True:
            page = self.wait(number)
            found.update({item.id.decode(): item for item in page.item[:page.n]})
            if not page.more:
                return found


class Stock:
    """stock on the directories of `keeper`."""

    def __init__(self, keeper, program):
        self.keeper, self.program, self.process = keeper, program, None

    def start(self):
        k, path = self.keeper, self.keeper.run / "stock.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        os.chmod(path, 0o666)
        listener.listen(16)
        run, state = os.open(k.run, os.O_RDONLY), os.open(k.state, os.O_RDONLY)

        def prepare():
            if k.demote:
                k.demote()
            # Free numbers: with fixed ones, a test that has many files open would overwrite one of the three.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (listener.fileno(), run, state)]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)
            os.closerange(6, 256)

        self.log = open(k.dir / "stock-log", "a+")
        self.process = subprocess.Popen([self.program, "layers"], preexec_fn=prepare, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={"HOME": k.home or "/root", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"})
        listener.close()
        os.close(run)
        os.close(state)
        return self

    def client(self):
        return Client(self.keeper.run / "stock.sock")

    def log_text(self):
        return (self.keeper.dir / "stock-log").read_text()

    def kill9(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=120)

    def close(self):
        if self.process and self.process.poll() is None:
            self.stop()
        self.log.close()
