"""What users of the E2B Python SDK build, sync and async, against the daemon that the environment names. Prints TAP."""
import os
import pathlib
import re
import tempfile

from e2b import AsyncTemplate, Sandbox, Template, wait_for_file
from tap import finish, test

NAME = f"py-{os.getpid()}"


def build(template, name, **more):
    logs = []
    info = Template.build(template, name, on_build_logs=lambda e: logs.append(e.message), **more)
    return info, "\n".join(logs)


def raises(fn, text):
    try:
        fn()
    except Exception as e:
        assert re.search(text, str(e)), f"{text!r} not in {e!r}"
        return
    raise AssertionError("no error")


def full(context):
    return (Template(file_context_path=context).from_base_image()
            .set_envs({"A": "1"}).set_user("agent").set_workdir("/srv/py")
            .copy("*.txt", "./").run_cmd("cat a.txt b.txt > both.txt; echo $A >> both.txt"))


def whole(context):
    info, text = build(full(context), NAME, cpu_count=1, memory_mb=512)
    assert info.template_id and info.build_id, info
    s = Sandbox.create(NAME)
    try:
        assert s.commands.run("cat both.txt; stat -c %U a.txt").stdout == "a\nb\n1\nagent\n"
    finally:
        s.kill()
    _, text = build(full(context), NAME)
    assert re.search(r"CACHED \[builder \d+/\d+\] RUN cat", text), text


def failing():
    t = Template().from_base_image().run_cmd("true").run_cmd("exit 9")
    raises(lambda: build(t, NAME + "-bad"), r"failed to run command 'exit 9': exit status 9")


def start_command():
    t = Template().from_base_image().set_start_cmd("touch /tmp/up; sleep 1000", wait_for_file("/tmp/up"))
    build(t, NAME + "-start")
    s = Sandbox.create(NAME + "-start")
    try:
        assert s.commands.run("ls /tmp/up").stdout == "/tmp/up\n"
    finally:
        s.kill()


async def asynchronous():
    t = AsyncTemplate().from_template(NAME).run_cmd("echo async > async.txt")
    await AsyncTemplate.build(t, NAME + "-async")
    assert await AsyncTemplate.exists(NAME + "-async")
    assert not await AsyncTemplate.exists(NAME + "-never")


def main():
    with tempfile.TemporaryDirectory(prefix="hutch-template-") as context:
        for n in "ab":
            pathlib.Path(context, n + ".txt").write_text(n + "\n")
        pathlib.Path(context, "c.md").write_text("not this\n")
        test("template: built, used, cached", lambda: whole(context))
    test("template: a failing step is reported", failing)
    test("template: every sandbox runs the start command", start_command)
    test("template: async, from another template", asynchronous)
    finish()


main()
