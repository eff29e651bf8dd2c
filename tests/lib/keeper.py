"""Starts a keeper by hand, as the supervisor does, and speaks its protocol (src/keeper/proto.h)."""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

ID, TEMPLATE, TEXT, LIST = 40, 72, 400, 200
VERSION, VOLUMES, PLACE, DRIVER = 2, 8, 256, 16
CREATE, KILL, DEADLINE, USAGE, LIST_TYPE, FORGET, PAUSE, RESUME, HOLD, RELEASE = range(1, 11)
REPLY, ITEMS, DIED = 100, 101, 102
OK, BAD_REQUEST, NO_TEMPLATE, NO_SANDBOX, EXISTS, CAPACITY, HOST, FAILED = range(8)
STRICT, BEST_EFFORT, BUILD = 1, 2, 4
VOLUME_RO = 1
CAUSES = ("unknown", "ttl", "oom", "init", "killed", "boot", "lost")
u32, u64, i32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32


class Head(ctypes.Structure):
    _fields_ = [("version", u32), ("type", u32), ("request", u64)]


class Volume(ctypes.Structure):
    _fields_ = [("id", ctypes.c_char * ID), ("place", ctypes.c_char * PLACE), ("flags", u32)]


class Create(ctypes.Structure):
    _fields_ = [("head", Head), ("id", ctypes.c_char * ID), ("template", ctypes.c_char * TEMPLATE),
                ("hostname", ctypes.c_char * 64), ("flags", u32), ("cpu_milli", u32), ("memory", u64), ("disk", u64),
                ("inodes", u64), ("pids", u32), ("open_files", u32), ("deadline_ms", u64),
                ("driver", ctypes.c_char * DRIVER), ("nvolumes", u32), ("pad", u32), ("volume", Volume * VOLUMES)]


class Simple(ctypes.Structure):
    _fields_ = [("head", Head), ("id", ctypes.c_char * ID)]


class Deadline(ctypes.Structure):
    _fields_ = [("head", Head), ("id", ctypes.c_char * ID), ("deadline_ms", u64)]


class Usage(ctypes.Structure):
    _fields_ = [(name, u64) for name in
                ("cpu_user_us", "cpu_system_us", "memory", "memory_peak", "memory_limit", "disk_used", "disk_limit",
                 "inodes_used", "pids", "pids_peak", "oom_kills", "throttled_us")] + [("cpu_milli", u32), ("have", u32)]


class Reply(ctypes.Structure):
    _fields_ = [("head", Head), ("error", u32), ("text", ctypes.c_char * TEXT), ("tier", ctypes.c_char * 16),
                ("degraded", ctypes.c_char * 200), ("init_pid", u32), ("driver", ctypes.c_char * DRIVER),
                ("quota", ctypes.c_char * 24), ("usage", Usage), ("since_us", u64)]


class Item(ctypes.Structure):
    _fields_ = [("id", ctypes.c_char * ID), ("alive", u32), ("cause", u32), ("frozen", u32), ("pad", u32),
                ("deadline_ms", u64)]


class Items(ctypes.Structure):
    _fields_ = [("head", Head), ("n", u32), ("more", u32), ("item", Item * LIST)]


class Death(ctypes.Structure):
    _fields_ = [("head", Head), ("id", ctypes.c_char * ID), ("cause", u32), ("status", i32), ("at_unix_ms", u64),
                ("usage", Usage)]


def boottime_ms():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000000


class Client:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(60)
        self.sock.connect(path)
        self.deaths, self.answers, self.number = {}, {}, 0

    def close(self):
        self.sock.close()

    def send(self, message, kind):
        self.number += 1
        message.head = Head(VERSION, kind, self.number)
        self.sock.send(bytes(message))
        return self.number

    def receive(self):
        data = self.sock.recv(65536)
        if not data:
            raise EOFError("keeper closed the connection")
        head = Head.from_buffer_copy(data)
        if head.type == DIED:
            death = Death.from_buffer_copy(data)
            self.deaths[death.id.decode()] = death
        else:
            self.answers.setdefault(head.request, []).append({REPLY: Reply, ITEMS: Items}[head.type].from_buffer_copy(data))

    def wait(self, number):
        while number not in self.answers:
            self.receive()
        return self.answers.pop(number)[0]

    def wait_death(self, box):
        while box not in self.deaths:
            self.receive()
        return self.deaths[box]

    def begin(self, box, template="host", seconds=600, **fields):
        message = Create(id=box.encode(), template=template.encode(), deadline_ms=boottime_ms() + int(seconds * 1000))
        for i, (volume, place, flags) in enumerate(fields.pop("volumes", ())):
            message.volume[i] = Volume(id=volume.encode(), place=place.encode(), flags=flags)
            message.nvolumes = i + 1
        for name, value in fields.items():
            setattr(message, name, value.encode() if isinstance(value, str) else value)
        return self.send(message, CREATE)

    def create(self, box, template="host", seconds=600, **fields):
        return self.wait(self.begin(box, template, seconds, **fields))

    def kill(self, box):
        return self.wait(self.send(Simple(id=box.encode()), KILL))

    def pause(self, box):
        return self.wait(self.send(Simple(id=box.encode()), PAUSE))

    def resume(self, box):
        return self.wait(self.send(Simple(id=box.encode()), RESUME))

    def hold(self, box):
        return self.wait(self.send(Simple(id=box.encode()), HOLD))

    def release(self, box):
        return self.wait(self.send(Simple(id=box.encode()), RELEASE))

    def usage(self, box):
        return self.wait(self.send(Simple(id=box.encode()), USAGE))

    def deadline(self, box, at_ms):
        return self.wait(self.send(Deadline(id=box.encode(), deadline_ms=at_ms), DEADLINE))

    def forget(self, box):
        self.send(Simple(id=box.encode()), FORGET)

    def list(self):
        number, found = self.send(Simple(), LIST_TYPE), {}
        while True:
            while not self.answers.get(number):
                self.receive()
            page = self.answers[number].pop(0)
            for item in page.item[:page.n]:
                found[item.id.decode()] = item
            if not page.more:
                del self.answers[number]
                return found


class Attach(ctypes.Structure):
    """struct egress_attach of src/keeper/attach.h."""
    _fields_ = [("version", u32), ("type", u32), ("id", ctypes.c_char * ID), ("ns_cookie", u64), ("tcp_cookie", u64),
                ("udp_cookie", u64)]


class Egress:
    """Listens where keeper looks for egress, and keeps the sockets it is given."""
    ATTACH, DETACH = 1, 2

    def __init__(self, run, owner=None):
        self.path, self.owner, self.conn, self.boxes = run / "egress-keeper.sock", owner, None, {}
        self.listen()

    def listen(self):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.settimeout(60)
        self.listener.bind(str(self.path))
        os.chmod(self.path, 0o600)
        if self.owner:
            os.chown(self.path, *self.owner)
        self.listener.listen(4)

    def accept(self):
        """Drops the old connection, if there is one, and waits for the next."""
        if self.conn:
            self.conn.close()
        self.conn = self.listener.accept()[0]
        self.conn.settimeout(60)

    def receive(self):
        """(type, id) of the next message; None at the end of the connection."""
        data, fds, _, _ = socket.recv_fds(self.conn, 4096, 4)
        if not data:
            return None
        message = Attach.from_buffer_copy(data)
        assert len(data) == ctypes.sizeof(Attach) and message.version == 1, data
        box = message.id.decode()
        if message.type == self.ATTACH:
            tcp, udp = (socket.socket(fileno=fd) for fd in fds)
            self.drop(box)
            self.boxes[box] = (tcp, udp, message)
        else:
            assert not fds, fds
            self.drop(box)
        return message.type, box

    def drop(self, box):
        for sock in self.boxes.pop(box, ())[:2]:
            sock.close()

    def take(self, box):
        """Takes a connection of this sandbox in: (address it was for, port, what came)."""
        tcp = self.boxes[box][0]
        tcp.settimeout(60)
        conn, _ = tcp.accept()
        with conn:
            conn.settimeout(60)
            address, port = conn.getsockname()[:2]
            return address.removeprefix("::ffff:"), port, conn.recv(100)

    def close(self):
        for sock in (self.listener, self.conn):
            if sock:
                sock.close()
        for box in list(self.boxes):
            self.drop(box)
        self.conn = None
        self.path.unlink(missing_ok=True)


class Keeper:
    """One keeper with directories of its own. `demote`: called in the child before exec (another user)."""

    def __init__(self, program, arguments=(), owner=None, demote=None, home=None):
        self.program, self.arguments, self.demote, self.home = program, list(arguments), demote, home
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="hutch-keeper-", dir=home or "/run"))
        self.run, self.state = self.dir / "run", self.dir / "state"
        os.chmod(self.dir, 0o755)
        self.run.mkdir(mode=0o710)
        self.state.mkdir(mode=0o755)
        if owner:
            for path in (self.dir, self.run, self.state):
                os.chown(path, *owner)
        self.process = None

    def start(self):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = self.run / "keeper.sock"
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        os.chmod(path, 0o666)
        listener.listen(16)
        run, state = os.open(self.run, os.O_RDONLY), os.open(self.state, os.O_RDONLY)

        def prepare():
            if self.demote:
                self.demote()
            # Free numbers: with fixed ones, a test that has many files open would overwrite one of the three.
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (listener.fileno(), run, state)]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)
            os.closerange(6, 256)

        self.log = open(self.dir / "log", "a+")
        self.process = subprocess.Popen([self.program, "keeper", *self.arguments], preexec_fn=prepare, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env={"HOME": self.home or "/root", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"})
        listener.close()
        os.close(run)
        os.close(state)
        return self

    def client(self):
        return Client(str(self.run / "keeper.sock"))

    def holders(self, box):
        """Pids of the processes that hold a living sandbox still, as the journal has them."""
        data = (self.run / "journal" / box).read_bytes()
        return {pid for pid in struct.unpack_from("<8Q", data, 240)[::2] if pid}

    def kill9(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def log_text(self):
        return (self.dir / "log").read_text()

    def close(self):
        """Ends every sandbox, then keeper."""
        try:
            if self.process and self.process.poll() is None:
                client = self.client()
                for box in client.list():
                    client.kill(box)
                client.close()
                self.kill9()
        finally:
            self.log.close()
            shutil.rmtree(self.dir, ignore_errors=True)
        for path, folders, _ in os.walk("/sys/fs/cgroup"):  # the group around all sandboxes; refused while one is in it
            if "hutch" in folders:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(path, "hutch"))
