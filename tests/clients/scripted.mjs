// A chat model for deepagents that answers with one message of a script after the other.
import { BaseChatModel } from '@langchain/core/language_models/chat_models'
import { AIMessage } from '@langchain/core/messages'

class Scripted extends BaseChatModel {
  constructor(messages) {
    super({})
    this.left = [...messages]
  }
  _llmType() {
    return 'scripted'
  }
  bindTools() {
    return this
  }
  async _generate() {
    const message = this.left.shift()
    return { generations: [{ text: String(message.content), message }] }
  }
}
export const script = (...messages) => new Scripted(messages)
/** The model asks for a tool. */
export const call = (name, number, args) => new AIMessage({ content: '', tool_calls: [{ name, args, id: `call-${number}`, type: 'tool_call' }] })
export const final = (text) => new AIMessage(text)
