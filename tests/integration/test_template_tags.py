"""Tags of a template are versions of it: files and settings of one do not mix with those of another."""
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
from daemon import Daemon  # noqa: E402
from hutch_test import check_equal  # noqa: E402
from node_client import ask, patient, sh  # noqa: E402
from small import small_templates  # noqa: E402
from test_templates import a_box, built, step  # noqa: E402

SHOW = "cat /version; echo $V; id -un; pwd; cat /tmp/started"


def version(d, tag, word, user):
    built(d, f"app:{tag}", [step("RUN", f"echo files-{word} > /version", "root"), step("ENV", "V", f"env-{word}"),
                            step("USER", user), step("WORKDIR", f"/srv/{word}")],
          startCmd=f"echo start-{word} > /tmp/started; exec sleep 1000", readyCmd="test -s /tmp/started")


def shown(d, template):
    box = a_box(d, template)
    text = sh(d, box, SHOW, user=None).text
    check_equal(ask(d, "DELETE", f"/sandboxes/{box['sandboxID']}").status, 204)
    return text


def test_versions():
    "a sandbox of a tag has the files, variables, user, directory and start command of the build that made it, also after a restart"
    one, two = ("files-{0}\nenv-{0}\n{1}\n/srv/{0}\nstart-{0}\n".format(w, u) for w, u in (("one", "user"), ("two", "agent")))
    with small_templates() as templates, Daemon(templates=templates) as d:
        version(d, "v1", "one", "user")
        version(d, "v2", "two", "agent")
        check_equal((shown(d, "app:v1"), shown(d, "app:v2")), (one, two))
        built(d, "on-v1", [step("RUN", "echo $V > ~/inherited; id -un >> ~/inherited")], fromTemplate="app:v1")
        check_equal(sh(d, a_box(d, "on-v1"), "cat ~/inherited", user=None).text, "env-one\nuser\n")
        out = templates / "export"
        d.cli("template", "export", "-o", str(out), "app:v1")
        d.cli("template", "restore", "-t", "again", str(out))
        out.unlink()
        check_equal(shown(d, "again"), one)
        d.stop()
        d.start()
        check_equal(shown(d, "app:v1"), one)
        check_equal(patient(d, "POST", "/v2/sandboxes", {"templateID": "app:v3"}).status, 404)
