// What check.mjs has to know of codex-acp. The same in a pod: examples/provider-codex.yaml.
export default {
  argv: ["/usr/bin/codex-acp"],
  name: "@agentclientprotocol/codex-acp",
  state: [".codex/sessions"],
  steering: true,
  // It takes instructions beside its own, not in their place.
  persona: false,
  // It writes files by its shell, and says of a command what that does.
  kinds: ["execute", "read"],
  // Its own sandbox needs namespaces, which a restricted pod does not let it make. In the mode that asks every command is run in that
  // sandbox, unless the model wants it outside; then it asks.
  mode: (asks) => (asks ? "read-only" : "agent-full-access"),
  shell: (cmd, asks) => {
    if (!asks) return { shell: cmd };
    return { toolCall: { name: "exec_command", arguments: { cmd, sandbox_permissions: "require_escalated", justification: "The sandbox cannot run it." } } };
  },
  environment: (llm) => ({
    CODEX_API_KEY: "unused",
    MODEL_PROVIDER: "scripted",
    CODEX_CONFIG: JSON.stringify({
      model: "gpt-5.5",
      model_providers: {
        scripted: { name: "scripted", base_url: `${llm}/v1`, wire_api: "responses", env_key: "CODEX_API_KEY" },
      },
    }),
  }),
};
