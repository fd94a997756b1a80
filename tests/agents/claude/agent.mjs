// What check.mjs has to know of claude-agent-acp. The same in a pod: examples/provider-claude.yaml.
export default {
  argv: ["/usr/bin/claude-agent-acp"],
  name: "@agentclientprotocol/claude-agent-acp",
  state: [".claude/projects"],
  steering: true,
  persona: true,
  kinds: ["edit", "execute"],
  // The mode it starts in asks the model whether a command is harmless.
  mode: (asks) => (asks ? "default" : "bypassPermissions"),
  environment: (llm) => ({
    ANTHROPIC_BASE_URL: llm,
    ANTHROPIC_API_KEY: "unused",
    CLAUDE_CONFIG_DIR: "/home/agent/.claude",
  }),
};
