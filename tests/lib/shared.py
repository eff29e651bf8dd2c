"""What the tests of one file share: a node and its directory of templates, made on first use and gone when the file ends.

    with shared_node() as d:                                # a Daemon; sandboxes that the test left are ended behind it
    with shared_node(config="sandboxes: {max: 2}") as d:    # another node: each configuration has its own
    with shared_world() as (net, d):                        # a fresh Internet, and a node on it

A test that fails closes what it had: the next one gets a fresh node, so that one failure does not cause others. Tests that kill or stop
processes of the node, count what is on it, or fill its disk have a Daemon of their own. tests/run calls close() after a file's last test.
"""
import contextlib

from daemon import Daemon
from hutch_test import Failed, eventually
from internet import Internet
from node_client import patient
from small import small_templates

OPEN = {}  # key -> (what closes it, its value)


@contextlib.contextmanager
def share(key, make, clean):
    """The value of make(), a context manager that is entered on first use and left by close(). clean(value) runs after each test that passed."""
    if key not in OPEN:
        with contextlib.ExitStack() as stack:
            value = stack.enter_context(make())
            OPEN[key] = stack.pop_all(), value
    value = OPEN[key][1]
    try:
        yield value
        clean(value)
    except BaseException as error:
        stack, _ = OPEN.pop(key)
        stack.__exit__(type(error), error, error.__traceback__)
        raise


def close():
    """Ends everything, whatever of it fails; the first failure is raised."""
    with contextlib.ExitStack() as last:
        while OPEN:
            last.push(OPEN.popitem()[1][0])


def end_sandboxes(d):
    """Behind a test: no sandbox of it is left on the node."""
    ended = d.cli("stop", "--all", check=False)
    if ended.returncode or not d.alive():
        raise Failed(f"the shared node is not well behind this test: {ended.stdout}{ended.stderr}")
    eventually(lambda: not d.left(), 20, "sandboxes of the shared node have ended")


@contextlib.contextmanager
def make_node(templates=False, **how):
    with contextlib.ExitStack() as stack:
        if templates:
            how["templates"] = stack.enter_context(small_templates())
        yield stack.enter_context(Daemon(**how))


def end_volumes(d):
    """And no volume: tests give them the same names."""
    end_sandboxes(d)
    for volume in patient(d, "GET", "/volumes").json:
        a = patient(d, "DELETE", f"/volumes/{volume['volumeID']}")
        if a.status not in (204, 404):
            raise Failed(f"a volume stays on the shared node: {a}")


def shared_node(**how):
    """templates=True: with the template `small`; the rest as Daemon has it."""
    return share(("node", repr(sorted(how.items()))), lambda: make_node(**how), end_volumes)


def end_secrets(d):
    """And no secret: tests give them the same names."""
    end_sandboxes(d)
    for secret in patient(d, "GET", "/v1/secrets").json["secrets"]:
        a = patient(d, "DELETE", f"/v1/secrets/{secret['name']}")
        if a.status not in (204, 404):
            raise Failed(f"a secret stays on the shared node: {a}")


@contextlib.contextmanager
def shared_world(config="", refusals="readable"):
    """A fresh Internet and a node on it that the file's tests share: all internets of a lane have the same addresses and authority."""
    with Internet() as net, share(("world", config, refusals), lambda: Daemon(config=net.config(refusals) + config), end_secrets) as d:
        yield net, d
