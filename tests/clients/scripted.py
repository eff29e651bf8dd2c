"""A chat model for deepagents that answers with one message of a script after the other."""
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def script(*messages):
    return Scripted(messages=iter(messages))


def call(name, number, **args):
    """The model asks for a tool."""
    return AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": f"call-{number}"}])


def final(text):
    return AIMessage(content=text)
