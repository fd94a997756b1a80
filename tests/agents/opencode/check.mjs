// The ACP client of check.sh: newline-delimited JSON-RPC over the agent's standard streams.
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const { CHECK_DIR, CHECK_FAKE_LLM, CHECK_HERE, CHECK_PERMISSION } = process.env;
const started = Date.now();
const seconds = () => ((Date.now() - started) / 1000).toFixed(2);
const say = (text) => console.log(`${seconds()}s ${text}`);

function fail(text) {
  console.error(`FAILED: ${text}`);
  // Process 1 of the namespace: everything started here ends with it.
  process.exit(1);
}
// Longer than the slowest start ever seen, on a busy machine.
setTimeout(() => fail("no end within 120 s"), 120_000);

// What is not named keeps the agent's own default, which is to allow without asking.
const configured = {
  asking: { edit: "ask", bash: "ask" },
  allowing: { edit: "allow", bash: "allow" },
  silent: undefined,
};
if (!(CHECK_PERMISSION in configured)) fail(`no permission configuration named ${CHECK_PERMISSION}`);

const llm = spawn(CHECK_FAKE_LLM, ["--listen", "127.0.0.1:8080"], { stdio: ["ignore", "pipe", "inherit"] });
await new Promise((resolve, reject) => {
  llm.stdout.once("data", resolve);
  llm.once("exit", (code) => reject(new Error(`fake LLM ended with ${code}`)));
});

const imageEnv = readFileSync(`${CHECK_HERE}/image.env`, "utf8").trim().split("\n").map((line) => {
  const at = line.indexOf("=");
  return [line.slice(0, at), line.slice(at + 1)];
});
const config = {
  model: "scripted/scripted",
  share: "disabled",
  autoupdate: false,
  permission: configured[CHECK_PERMISSION],
  provider: {
    scripted: {
      npm: "@ai-sdk/openai-compatible",
      options: { baseURL: "http://127.0.0.1:8080/v1", apiKey: "unused" },
      models: { scripted: { limit: { context: 200000, output: 8192 } } },
    },
  },
};
const agent = spawn(
  "/usr/sbin/chroot",
  ["--userspec=1000:1000", "--groups=", `${CHECK_DIR}/root`, "/usr/bin/opencode", "acp"],
  {
    env: { ...Object.fromEntries(imageEnv), HOME: "/home/agent", OPENCODE_CONFIG_CONTENT: JSON.stringify(config) },
    stdio: ["pipe", "pipe", "inherit"],
  },
);
agent.once("exit", (code, signal) => {
  if (!closing) fail(`the agent ended by itself (${code ?? signal})`);
});
let closing = false;

const answers = new Map();
const permissions = [];
const tools = new Map();
let text = "";
const send = (message) => agent.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);

createInterface({ input: agent.stdout }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.method === "session/update") {
    const update = message.params.update;
    if (update.sessionUpdate === "agent_message_chunk") text += update.content.text ?? "";
    if (update.sessionUpdate.startsWith("tool_call")) {
      tools.set(update.toolCallId, { ...tools.get(update.toolCallId), ...update });
      say(`${update.sessionUpdate} ${update.title ?? ""} ${update.status ?? ""}`);
    }
  } else if (message.method === "session/request_permission") {
    permissions.push(message.params);
    say(`permission asked: ${JSON.stringify(message.params)}`);
    const allow = message.params.options.find((option) => option.kind === "allow_once");
    send({ id: message.id, result: { outcome: { outcome: "selected", optionId: allow.optionId } } });
  } else if (message.method && message.id !== undefined) {
    say(`refused request ${message.method}`);
    send({ id: message.id, error: { code: -32601, message: "not offered" } });
  } else if (message.id !== undefined) {
    answers.get(message.id)?.(message);
  }
});

let lastId = 0;
async function ask(method, params) {
  const id = ++lastId;
  const answered = new Promise((resolve) => answers.set(id, resolve));
  send({ id, method, params });
  const answer = await answered;
  if (answer.error) fail(`${method}: ${JSON.stringify(answer.error)}`);
  say(`${method} answered`);
  return answer.result;
}

const hello = await ask("initialize", {
  protocolVersion: 1,
  clientCapabilities: { fs: { readTextFile: false, writeTextFile: false }, terminal: false },
});
say(`agent ${JSON.stringify(hello.agentInfo)}, protocol ${hello.protocolVersion}`);
if (hello.protocolVersion !== 1) fail("another protocol version");
const session = await ask("session/new", { cwd: "/workspace", mcpServers: [] });

const nonce = randomBytes(16).toString("hex");
const digest = createHash("sha256").update(nonce).digest("hex");
const prompt = `nonce: ${nonce}\nWrite the SHA-256 of the nonce to the file answer.txt, then answer with it alone.`;
const turn = await ask("session/prompt", { sessionId: session.sessionId, prompt: [{ type: "text", text: prompt }] });

if (turn.stopReason !== "end_turn") fail(`stop reason ${turn.stopReason}`);
if (!text.trimEnd().endsWith(digest)) fail(`answer ${JSON.stringify(text)} does not end with ${digest}`);
const written = readFileSync(`${CHECK_DIR}/workspace/answer.txt`, "utf8");
if (written.trim() !== digest) fail(`answer.txt holds ${JSON.stringify(written)}, not ${digest}`);
for (const tool of tools.values()) {
  if (tool.status !== "completed") fail(`tool call ${JSON.stringify(tool)}`);
}
const kinds = [...tools.values()].map((tool) => tool.kind).sort().join(",");
if (kinds !== "edit,execute") fail(`tool calls of kinds ${kinds}, not one edit and one execute`);
const asked = CHECK_PERMISSION === "asking" ? 2 : 0;
if (permissions.length !== asked) fail(`${permissions.length} permission requests, not ${asked}`);

// The grep tool runs the image's ripgrep; without one it would try to download it.
text = "";
const search = `<fake-llm>[{"toolCall": {"name": "grep", "arguments": {"pattern": "${digest}"}}}, {"text": "found: {{toolResult}}"}]</fake-llm>`;
await ask("session/prompt", { sessionId: session.sessionId, prompt: [{ type: "text", text: search }] });
if (!/found:[^]*\/workspace\/answer\.txt/.test(text)) fail(`the grep tool answered ${JSON.stringify(text)}`);

const { requests } = await (await fetch("http://127.0.0.1:8080/__requests")).json();
say(`LLM calls: ${requests.map((request) => `${request.dialect} ${request.source}`).join("; ")}`);
closing = true;
agent.stdin.end();
await new Promise((resolve) => agent.once("exit", resolve));
say("ended after the end of its input");
console.log(`passed: ${hello.agentInfo?.name} ${hello.agentInfo?.version}, permission ${CHECK_PERMISSION}, answer ${digest}`);
process.exit(0);
