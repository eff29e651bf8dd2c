"""The program with which Daytona's users begin: an agent of deepagents whose tools work in a sandbox. A scripted model stands in place of
the cloud's; everything else is as its documentation prints it. Prints TAP."""
from daytona import Daytona
from deepagents import create_deep_agent
from langchain_daytona import DaytonaSandbox
from scripted import call, final, script
from tap import finish, test


def program():
    model = script(
        call("write_file", 1, file_path="/home/user/hello.py", content="print(6 * 7)\n"),
        call("execute", 2, command="python3 /home/user/hello.py"),
        call("edit_file", 3, file_path="/home/user/hello.py", old_string="6 * 7", new_string="'edited'"),
        call("execute", 4, command="python3 /home/user/hello.py"),
        call("grep", 5, pattern="edited", path="/home/user"),
        final("done"))
    sandbox = Daytona().create()
    backend = DaytonaSandbox(sandbox=sandbox)
    agent = create_deep_agent(model=model, system_prompt="You are a coding assistant with a sandbox.", backend=backend)
    result = agent.invoke({"messages": [{"role": "user", "content": "write a program and run it"}]})
    told = [m.content for m in result["messages"] if m.type == "tool"]
    assert "42" in told[1] and "edited" in told[3] and "hello.py" in told[4], told
    assert result["messages"][-1].content == "done"
    sandbox.stop()
    assert Daytona().get(sandbox.id).state == "stopped"
    sandbox.delete()


test("an agent writes, runs, edits and searches in its sandbox, which stops", program)
finish()
