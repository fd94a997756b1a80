// The scenes of check.sh. Each starts the agent anew in an empty home.
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Agent, fail, say } from "./client.mjs";

const { CHECK_AGENT, CHECK_DIR, CHECK_FAKE_LLM, CHECK_HERE } = process.env;
const LLM = "http://127.0.0.1:8080";
const { default: settings } = await import(`./${CHECK_AGENT}/agent.mjs`);

// Longer than everything ever took, on a busy machine.
const PATIENCE = 300_000;
setTimeout(() => fail(`no end within ${PATIENCE / 1000} s`), PATIENCE);

const llm = spawn(CHECK_FAKE_LLM, ["--listen", "127.0.0.1:8080"], { stdio: ["ignore", "pipe", "inherit"] });
await new Promise((resolve, reject) => {
  llm.stdout.once("data", resolve);
  llm.once("exit", (code) => reject(new Error(`fake LLM ended with ${code}`)));
});

const imageEnv = readFileSync(`${CHECK_HERE}/${CHECK_AGENT}/image.env`, "utf8").trim().split("\n").map((line) => {
  const at = line.indexOf("=");
  return [line.slice(0, at), line.slice(at + 1)];
});
const nonce = () => randomBytes(16).toString("hex");
const script = (...actions) => `<fake-llm>${JSON.stringify(actions)}</fake-llm>`;
const workspace = (name) => `${CHECK_DIR}/root/workspace/${name}`;
const home = (name) => `${CHECK_DIR}/root/home/agent/${name}`;

/** Runs a program to its end. */
function run(...argv) {
  return new Promise((resolve, reject) => {
    spawn(argv[0], argv.slice(1), { stdio: "inherit" }).once("exit", (code) => (code === 0 ? resolve() : reject(new Error(`${argv.join(" ")}: ${code}`))));
  });
}

/** Empty volumes, as a new pod has them. */
async function newPod() {
  for (const [at, options] of [["tmp", "mode=1777"], ["home/agent", "uid=1000,gid=1000"], ["workspace", "uid=1000,gid=1000"]]) {
    const path = `${CHECK_DIR}/root/${at}`;
    await run("sh", "-c", 'while umount "$1" 2>/dev/null; do :; done; mount -t tmpfs -o "$2" tmpfs "$1"', "sh", path, options);
  }
  await fetch(`${LLM}/__requests`, { method: "DELETE" });
}

let capabilitiesShown = false;

async function start({ asks = false } = {}) {
  const env = { ...Object.fromEntries(imageEnv), HOME: "/home/agent", ...settings.environment(LLM, asks) };
  const chroot = ["/usr/sbin/chroot", "--userspec=1000:1000", "--groups=", `${CHECK_DIR}/root`];
  const agent = new Agent([...chroot, ...settings.argv], env);
  agent.hello = await agent.ask("initialize", {
    protocolVersion: 1,
    clientCapabilities: { fs: { readTextFile: false, writeTextFile: false }, terminal: false },
  });
  if (agent.hello.protocolVersion !== 1) fail("another protocol version");
  if (!capabilitiesShown) say(`advertises ${JSON.stringify(agent.hello.agentCapabilities)}, ${JSON.stringify(agent.hello._meta ?? {})}`);
  capabilitiesShown = true;
  if (agent.hello.agentInfo?.name !== settings.name) fail(`another agent: ${JSON.stringify(agent.hello.agentInfo)}`);
  agent.asks = asks;
  return agent;
}

const CWD = { cwd: "/workspace", mcpServers: [] };

/** Opens a session, or goes on with one, in the mode of the scene. */
async function open(agent, method = "session/new", known = {}) {
  const session = await agent.ask(method, { ...CWD, ...known });
  const sessionId = session?.sessionId ?? known.sessionId;
  const modeId = settings.mode?.(agent.asks);
  if (modeId) await agent.ask("session/set_mode", { sessionId, modeId });
  return sessionId;
}

const requests = async (part) => (await (await fetch(`${LLM}/__requests?contains=${encodeURIComponent(part)}`)).json()).requests;

/** Waits for what does not come over the agent's streams. */
async function eventually(what, look) {
  for (const began = Date.now(); ; await sleep(20)) {
    const found = await look();
    if (found) return found;
    if (Date.now() - began > 60_000) fail(`not within 60 s: ${what}`);
  }
}

/** Command lines of the processes here that hold a text. */
function processes(part) {
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  const lines = pids.map((pid) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").join(" ").trim();
    } catch {
      return "";
    }
  });
  return lines.filter((line) => line.includes(part));
}

/** Runs a command, with whatever tool the agent has for it. */
const shell = (agent, command) => settings.shell?.(command, agent.asks) ?? { shell: command };

/** Shows what the model was asked; each call was read to its end. */
async function allAnswered() {
  const calls = await requests("");
  say(`LLM calls: ${calls.map((request) => `${request.dialect} ${request.model} ${request.source}`).join("; ")}`);
  if (calls.some((request) => request.state !== "done")) fail("a call of the model was not read to its end");
}

const scenes = {
  /** The built-in prompt to its end without being asked: the answer and the file are right. */
  async allowing() {
    const agent = await start();
    const sessionId = await open(agent);
    const secret = nonce();
    const expected = createHash("sha256").update(secret).digest("hex");
    const turn = await agent.prompt(sessionId, `nonce: ${secret}\nWrite the SHA-256 of the nonce to the file answer.txt, then answer with it alone.`);
    if (turn.stopReason !== "end_turn") fail(`stop reason ${turn.stopReason}`);
    if (!agent.text.trimEnd().endsWith(expected)) fail(`answer ${JSON.stringify(agent.text)} does not end with ${expected}`);
    const written = readFileSync(workspace("answer.txt"), "utf8");
    if (written.trim() !== expected) fail(`answer.txt holds ${JSON.stringify(written)}, not ${expected}`);
    const tools = [...agent.tools.values()];
    for (const tool of tools) if (tool.status !== "completed") fail(`tool call ${JSON.stringify(tool)}`);
    const kinds = tools.map((tool) => tool.kind).sort().join(",");
    if (kinds !== settings.kinds.join(",")) fail(`tool calls of kinds ${kinds}, not ${settings.kinds}`);
    if (agent.permissions.length > 0) fail("it asked, though it was configured not to");
    await allAnswered();
    await agent.end();
  },

  /** What is permitted is done. */
  async asking() {
    const agent = await start({ asks: true });
    const sessionId = await open(agent);
    const turn = await agent.prompt(sessionId, script(shell(agent, "echo done-$((6*7)) > asked.txt; cat asked.txt"), { text: "it said {{toolResult}}" }));
    if (turn.stopReason !== "end_turn" || !agent.text.includes("done-42")) fail(`${turn.stopReason}, ${JSON.stringify(agent.text)}`);
    if (agent.permissions.length !== 1) fail(`${agent.permissions.length} permission requests`);
    if (readFileSync(workspace("asked.txt"), "utf8") !== "done-42\n") fail("the command did something else");
    await allAnswered();
    await agent.end();
  },

  /** What is refused is not done, and the turn goes on without it. */
  async rejecting() {
    const agent = await start({ asks: true });
    const sessionId = await open(agent);
    agent.answer = "reject_once";
    const turn = await agent.prompt(sessionId, script(shell(agent, "echo done > refused.txt"), { text: "after the refusal" }));
    if (agent.permissions.length !== 1) fail(`${agent.permissions.length} permission requests`);
    if (existsSync(workspace("refused.txt"))) fail("what was refused was done");
    say(`a refused call ends the turn with ${turn.stopReason}, text ${JSON.stringify(agent.text)}`);
    await agent.end();
  },

  /** A cancel while a command runs is answered, and the session takes another prompt; who outlives it is said. */
  async cancelling() {
    const agent = await start();
    const sessionId = await open(agent);
    const turn = agent.prompt(sessionId, script({ shell: "setsid sleep 4712 </dev/null >/dev/null 2>&1 & echo up > up.txt; sleep 4711" }, { hold: "never" }, { text: "too late" }));
    await eventually("the command runs", () => existsSync(workspace("up.txt")));
    const began = Date.now();
    agent.notify("session/cancel", { sessionId });
    const { stopReason } = await turn;
    if (stopReason !== "cancelled") fail(`stop reason ${stopReason}`);
    const left = () => processes("sleep 471").length > 0;
    const tell = (when) => say(`${when} its command ${processes("sleep 4711").length ? "still runs" : "is gone"}, what that left in another session ${processes("sleep 4712").length ? "still runs" : "is gone"}`);
    tell(`cancelled after ${Date.now() - began} ms;`);
    await sleep(2000);
    tell("two seconds later");
    const next = await agent.prompt(sessionId, script({ text: "still here" }));
    if (next.stopReason !== "end_turn" || !agent.text.includes("still here")) fail(`after the cancel: ${next.stopReason} ${agent.text}`);
    await agent.end();
    await sleep(500);
    tell("half a second after its end");
    await eventually("nothing is left once all is killed that is not this", () => {
      for (const name of readdirSync("/proc").filter((name) => /^\d+$/.test(name) && name !== "1" && Number(name) !== llm.pid)) {
        try {
          process.kill(Number(name), "SIGKILL");
        } catch {
          // Gone by itself.
        }
      }
      return !left();
    });
  },

  /** The whole history comes back out of the state paths alone, after a kill. */
  async resuming() {
    for (const method of ["session/resume", "session/load"]) {
      await newPod();
      const first = await start();
      const sessionId = await open(first);
      const secret = nonce();
      await first.prompt(sessionId, `Remember ${secret}. ${script({ text: "remembered" })}`);
      await first.prompt(sessionId, script({ shell: "echo two-$((6*7))" }, { text: "second answer" }));
      await first.kill();
      for (const path of settings.state) {
        mkdirSync(dirname(`${CHECK_DIR}/saved/${path}`), { recursive: true });
        cpSync(home(path), `${CHECK_DIR}/saved/${path}`, { recursive: true });
      }
      await newPod();
      cpSync(`${CHECK_DIR}/saved`, home(""), { recursive: true });
      rmSync(`${CHECK_DIR}/saved`, { recursive: true });
      await run("chown", "-R", "1000:1000", home(""));

      const second = await start();
      await open(second, method, { sessionId });
      const replayed = second.replayed.includes(secret);
      if (replayed !== (method === "session/load")) fail(`${method} ${replayed ? "repeats" : "does not repeat"} the history`);
      second.text = "";
      const turn = await second.prompt(sessionId, `What was it? ${script({ text: "third answer" })}`);
      if (turn.stopReason !== "end_turn" || second.text.trim() !== "third answer") fail(`after ${method}: ${turn.stopReason} ${second.text}`);
      const told = (await requests("What was it?")).filter((request) => request.source === "directive");
      if (told.length !== 1) fail(`${told.length} calls of the model for one prompt`);
      for (const part of [secret, "remembered", "two-42", "second answer"]) {
        if (!JSON.stringify(told[0].body).includes(part)) fail(`after ${method} the model is not told ${part}`);
      }
      await second.end();
    }
  },

  /** Instructions in place of the agent's own are in the first call of the model, and in those after a resume that says them again. */
  async persona() {
    const persona = (text) => ({ systemPrompt: { mode: "override", content: [{ type: "text", text }] } });
    const agent = await start();
    const advertised = agent.hello.agentCapabilities?.sessionCapabilities?.systemPrompt?.mode?.override != null;
    if (advertised !== settings.persona) fail(`instructions in place of its own are ${advertised ? "" : "not "}advertised`);
    if (!advertised) return agent.end();
    const secret = nonce();
    const sessionId = await open(agent, "session/new", persona(`You are {{${secret}}}.`));
    await agent.prompt(sessionId, script({ text: "first" }));
    await agent.end();
    const again = await start();
    await open(again, "session/resume", { sessionId, ...persona(`You are {{${secret}}}.`) });
    await again.prompt(sessionId, script({ text: "second" }));
    await again.end();
    const asked = (await requests("<fake-llm>")).filter((request) => request.source === "directive");
    const told = asked.filter((request) => JSON.stringify(request.body.system).includes(`You are {{${secret}}}.`));
    if (asked.length !== 2 || told.length !== 2) fail(`${told.length} of ${asked.length} calls of the model hold the persona`);
    say(`the system text beside the persona: ${JSON.stringify(asked[0].body.system).length - secret.length} characters`);
  },

  /** What is not there is an error, not a new session. */
  async unknown() {
    const agent = await start();
    for (const method of ["session/resume", "session/load"]) {
      const answer = await agent.call(method, { ...CWD, sessionId: "0b4d7a3c-5f0e-4c57-9c0b-0123456789ab" });
      if (!answer.error) fail(`${method} takes a session that is not there: ${JSON.stringify(answer.result)}`);
      say(`${method} of an unknown session: ${JSON.stringify(answer.error).slice(0, 300)}`);
    }
    await agent.end();
  },

  /** What is said while a command runs is in the next call of the model; said to an idle agent it is refused. */
  async steering() {
    const agent = await start();
    const advertised = agent.hello._meta?.steering?.supported === true;
    if (advertised !== settings.steering) fail(`steering is ${advertised ? "" : "not "}advertised`);
    if (!advertised) return agent.end();
    const sessionId = await open(agent);
    const steer = (text) =>
      agent.ask("_session/steering", { sessionId, prompt: [{ type: "text", text }], _meta: { steering: { idleBehavior: "promptRequired" } } });
    const turn = agent.prompt(sessionId, script({ shell: "echo up > up.txt; until [ -e go.txt ]; do sleep 0.1; done; echo result-$((6*7))" }, { text: "not steered" }));
    await eventually("the command runs", () => existsSync(workspace("up.txt")));
    const secret = nonce();
    const { outcome } = await steer(`Heed ${secret}. ${script({ text: "another way" })}`);
    if (outcome !== "injected") fail(`steering: ${outcome}`);
    writeFileSync(workspace("go.txt"), "");
    const { stopReason } = await turn;
    if (stopReason !== "end_turn" || !agent.text.includes("another way") || agent.text.includes("not steered")) fail(`${stopReason}, ${JSON.stringify(agent.text)}`);
    const told = (await requests(secret)).filter((request) => request.source === "directive");
    if (told.length !== 1) fail(`${told.length} calls of the model hold what was said`);
    if (!JSON.stringify(told[0].body).includes("result-42")) fail("it came before the command's result");
    const late = await steer("Too late.");
    if (late.outcome !== "promptRequired") fail(`steering an idle agent: ${JSON.stringify(late)}`);
    await agent.end();
  },
};

const wanted = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(scenes);
for (const name of wanted) {
  if (!(name in scenes)) fail(`there is no scene ${name}; there are ${Object.keys(scenes).join(", ")}`);
  console.log(`--- ${CHECK_AGENT}: ${name}`);
  await newPod();
  await scenes[name]();
}
console.log(`passed: ${CHECK_AGENT}, ${wanted.join(", ")}`);
process.exit(0);
