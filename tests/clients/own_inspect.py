"""Our sandbox environment for Inspect (clients/python): Inspect's own self-check of providers, an evaluation with a scripted model, and smolagents'
executor for E2B. Prints TAP."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tap import finish, test

SDK = pathlib.Path(os.environ["HUTCH_SDK"])
sys.path.insert(0, str(SDK))
TEMPLATE = os.environ["TEMPLATE"]
TESTS = 44
SUITE = """
import os
import pytest
import hutch_sdk.inspect_sandbox as provider
from inspect_ai.util._sandbox.self_check import *

@pytest.fixture(scope="session")
def box():
    import asyncio
    made = asyncio.run(provider.HutchSandboxEnvironment.sample_init("self-check", provider.HutchConfig(template=os.environ["TEMPLATE"]), {}))
    yield made["default"]
    asyncio.run(provider.HutchSandboxEnvironment.sample_cleanup("self-check", None, made, False))

@pytest.fixture
def sandbox_env(box):
    return provider.HutchSandboxEnvironment(box.sandbox)
"""
TASK = """
import os
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, python
import hutch_sdk.inspect_sandbox as provider

def evaluation():
    model = get_model("mockllm/model", custom_outputs=[
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "cat data.txt; id -un; touch /home/user/made"}),
        ModelOutput.for_tool_call("mockllm/model", "python", {"code": "print(6 * 7)"}),
        ModelOutput.from_content("mockllm/model", "the answer is 42")])
    return model, Task(dataset=[Sample(input="work", target="42", files={"data.txt": "from the sample"})],
                       solver=[use_tools([bash(timeout=60), python(timeout=60)]), generate()], scorer=includes(),
                       sandbox=("hutch", "sandbox.yaml"))
"""


def in_folder(files, argv):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            pathlib.Path(folder, name).write_text(text)
        env = {**os.environ, "PYTHONPATH": f"{SDK}:{folder}", "PYTHONDONTWRITEBYTECODE": "1", "HOME": folder, "INSPECT_LOG_DIR": f"{folder}/logs"}
        return subprocess.run(argv, cwd=folder, env=env, text=True, capture_output=True, check=False)


def self_check():
    r = in_folder({"test_provider.py": SUITE}, [sys.executable, "-m", "pytest", "-q", "-rfE", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "test_provider.py"])
    passed = int(re.search(r"(\d+) passed", r.stdout)[1]) if " passed" in r.stdout else 0
    assert r.returncode == 0 and passed == TESTS, f"{passed} passed\n{r.stdout[-3000:]}{r.stderr[-500:]}"


def evaluation():
    code = """
import tiktoken  # it fetches its tables from a cloud
class Words:
    def encode(self, text, **_):
        return text.split()
tiktoken.get_encoding = tiktoken.encoding_for_model = lambda *_: Words()
from inspect_ai import eval
from task import evaluation
model, task = evaluation()
[log] = eval(task, model=model, display="none")
print(log.status, log.results.scores[0].metrics["accuracy"].value if log.results else log.error)
for m in log.samples[0].messages:
    if m.role == "tool":
        print(repr(m.text))
"""
    r = in_folder({"task.py": TASK, "run.py": code, "sandbox.yaml": f"template: {TEMPLATE}\ntimeout: 600\n"}, [sys.executable, "run.py"])
    assert "success 1.0" in r.stdout and "from the sample" in r.stdout and "user" in r.stdout and "42" in r.stdout, r.stdout[-2000:] + r.stderr[-2000:]
    from hutch_sdk import Hutch
    with Hutch() as hutch:
        assert [s for s in hutch.sandboxes() if "inspect" in (s.get("metadata") or {})] == []


test("Inspect's self-check of sandbox providers passes", self_check)
test("an evaluation whose tools work in a sandbox, which ends with its sample", evaluation)
finish()
