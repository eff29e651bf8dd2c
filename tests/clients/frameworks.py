"""Frameworks for agents, unmodified, against a node: deepagents with langchain-e2b, and the OpenAI Agents SDK with its sandboxes of E2B.

The model is a script: it asks for tools as a model would, and the framework runs them in a sandbox. Prints TAP.
"""
import asyncio
import os

import e2b
from agents import RunConfig, Runner, set_tracing_disabled
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions, E2BSandboxType
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.usage import Usage
from deepagents import create_deep_agent
from langchain_core.messages import ToolMessage
from langchain_e2b import E2BSandbox
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from scripted import call, final, script
from tap import finish, test

TEMPLATE = os.environ["TEMPLATE"]


def deep_agent():
    sandbox = e2b.Sandbox.create(TEMPLATE, timeout=300)
    try:
        model = script(
            call("write_file", 1, file_path="/home/user/primes.py", content="print([n for n in range(2, 20) if all(n % d for d in range(2, n))])\n"),
            call("execute", 2, command="python3 /home/user/primes.py && id -un"),
            call("edit_file", 3, file_path="/home/user/primes.py", old_string="20", new_string="12"),
            call("grep", 4, pattern="range", path="/home/user"),
            call("execute", 5, command="python3 /home/user/primes.py; exit 3"),
            final("done"))
        agent = create_deep_agent(model=model, backend=E2BSandbox(sandbox=sandbox))
        answer = agent.invoke({"messages": [{"role": "user", "content": "list primes"}]})["messages"]
        tools = [str(m.content) for m in answer if isinstance(m, ToolMessage)]
        assert len(tools) == 5, tools
        assert "[2, 3, 5, 7, 11, 13, 17, 19]" in tools[1] and "user" in tools[1], tools
        assert "primes.py" in tools[3], tools
        assert "[2, 3, 5, 7, 11]" in tools[4] and "exit code 3" in tools[4], tools
        assert answer[-1].content == "done", answer
        assert sandbox.files.read("/home/user/primes.py").count("12") == 1, "the edit is in the sandbox"
    finally:
        sandbox.kill()


class ScriptedModel(Model):
    """The same for the Agents SDK. Keeps what the tools answered and which tools there were."""

    def __init__(self, script):
        self.script, self.outputs, self.tools = script, [], []

    async def get_response(self, system_instructions, input, model_settings, tools, *_, **__):  # pylint: disable=redefined-builtin
        self.tools = [t.name for t in tools]
        self.outputs = [str(i["output"]) for i in input if isinstance(i, dict) and i.get("type") == "function_call_output"]
        return ModelResponse(output=[self.script.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError("the run does not stream")


def say(text):
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed",
                                 content=[ResponseOutputText(type="output_text", text=text, annotations=[])])


def use(name, number, arguments):
    return ResponseFunctionToolCall(type="function_call", call_id=f"call{number}", name=name, arguments=arguments)


def agents_sdk():
    set_tracing_disabled(True)
    model = ScriptedModel([use("exec_command", 1, '{"cmd": "echo $((6 * 7)) >answer; cat answer; id -un"}'),
                           use("exec_command", 2, '{"cmd": "cat answer; exit 5"}'), say("done")])
    agent = SandboxAgent(name="worker", instructions="work", model=model, default_manifest=Manifest(root="/home/user/workspace"))
    options = E2BSandboxClientOptions(sandbox_type=E2BSandboxType.E2B, template=TEMPLATE, timeout=300, on_timeout="kill", auto_resume=False)
    config = RunConfig(sandbox=SandboxRunConfig(client=E2BSandboxClient(), options=options))
    result = asyncio.run(Runner.run(agent, "compute", run_config=config))
    assert result.final_output == "done", result
    assert len(model.outputs) == 2, (model.outputs, model.tools)
    assert "42" in model.outputs[0] and "user" in model.outputs[0], model.outputs
    assert "42" in model.outputs[1] and "exited with code 5" in model.outputs[1], model.outputs


test("deepagents with langchain-e2b writes, runs, edits and searches in a sandbox", deep_agent)
test("an agent of the OpenAI Agents SDK works in a sandbox, with its client for E2B", agents_sdk)
finish()
