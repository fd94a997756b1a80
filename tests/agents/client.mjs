// An ACP client for checks: newline-delimited JSON-RPC over an agent's standard streams.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const started = Date.now();
export const say = (text) => console.log(`${((Date.now() - started) / 1000).toFixed(2)}s ${text}`);

export function fail(text) {
  console.error(`FAILED: ${text}`);
  // Process 1 of the namespace: everything started here ends with it.
  process.exit(1);
}

export class Agent {
  /** Text of the agent's messages since the last prompt. */
  text = "";
  /** Text of the user's messages, as the agent repeats them. */
  replayed = "";
  /** Tool calls since the last prompt, by id: all updates of one merged. */
  tools = new Map();
  /** Requests for permission since the last prompt. */
  permissions = [];
  /** The kind of option that answers a request for permission. */
  answer = "allow_once";

  #answers = new Map();
  #watchers = new Set();
  #lastId = 0;
  #closing = false;

  constructor(argv, env) {
    // A group of its own, as in a pod, so that it can be ended with all that stayed in it.
    this.child = spawn(argv[0], argv.slice(1), { env, stdio: ["pipe", "pipe", "inherit"], detached: true });
    this.exited = new Promise((resolve) => this.child.once("exit", resolve));
    this.child.once("exit", (code, signal) => this.#closing || fail(`the agent ended by itself (${code ?? signal})`));
    createInterface({ input: this.child.stdout }).on("line", (line) => this.#take(line));
  }

  #send(message) {
    this.child.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
  }

  #take(line) {
    let message;
    try {
      message = JSON.parse(line);
    } catch {
      return say(`not JSON: ${line.slice(0, 200)}`);
    }
    if (message.method === "session/update") this.#update(message.params.update);
    else if (message.method === "session/request_permission") this.#permit(message);
    else if (message.method && message.id !== undefined) {
      say(`refused request ${message.method}`);
      this.#send({ id: message.id, error: { code: -32601, message: "not offered" } });
    } else if (message.id !== undefined) this.#answers.get(message.id)?.(message);
    for (const look of this.#watchers) look();
  }

  #update(update) {
    if (update.sessionUpdate === "agent_message_chunk") this.text += update.content.text ?? "";
    if (update.sessionUpdate === "user_message_chunk") this.replayed += update.content.text ?? "";
    if (update.sessionUpdate.startsWith("tool_call")) {
      const merged = { ...this.tools.get(update.toolCallId), ...update };
      this.tools.set(update.toolCallId, merged);
      say(`${update.sessionUpdate} ${merged.kind ?? ""} ${JSON.stringify(merged.title ?? "")} ${update.status ?? ""}`);
    }
  }

  #permit(message) {
    this.permissions.push(message.params);
    const { options, toolCall } = message.params;
    const seen = Object.keys(toolCall).sort().join(" ");
    say(`permission asked (${options.map((option) => option.kind).join(" ")}) for a call with ${seen}`);
    const chosen = options.find((option) => option.kind === this.answer);
    if (!chosen) fail(`no option of kind ${this.answer} in ${JSON.stringify(options)}`);
    this.#send({ id: message.id, result: { outcome: { outcome: "selected", optionId: chosen.optionId } } });
  }

  notify(method, params) {
    this.#send({ method, params });
  }

  /** Sends a request; the whole answer, be it a result or an error. */
  call(method, params) {
    const id = ++this.#lastId;
    const answered = new Promise((resolve) => this.#answers.set(id, resolve));
    this.#send({ id, method, params });
    return answered;
  }

  /** Sends a request that must succeed. */
  async ask(method, params) {
    const began = Date.now();
    const answer = await this.call(method, params);
    if (answer.error) fail(`${method}: ${JSON.stringify(answer.error)}`);
    say(`${method} answered after ${Date.now() - began} ms`);
    return answer.result;
  }

  /** Starts a turn; what it comes to, later. */
  prompt(sessionId, text) {
    this.text = "";
    this.tools.clear();
    this.permissions = [];
    return this.ask("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
  }

  /** Waits until what is looked at after each frame is true. */
  until(look) {
    return new Promise((resolve) => {
      const check = () => look() && (this.#watchers.delete(check), resolve());
      this.#watchers.add(check);
      check();
    });
  }

  /** Ends its input and waits for it to go. */
  async end() {
    this.#closing = true;
    const began = Date.now();
    this.child.stdin.end();
    await this.exited;
    say(`ended ${Date.now() - began} ms after the end of its input`);
  }

  /** Ends it at once, with all of its group. */
  async kill() {
    this.#closing = true;
    process.kill(-this.child.pid, "SIGKILL");
    await this.exited;
  }
}
