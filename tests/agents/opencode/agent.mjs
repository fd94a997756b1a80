// What check.mjs has to know of opencode. The same in a pod: examples/provider-opencode.yaml.
export default {
  argv: ["/usr/bin/opencode", "acp"],
  name: "OpenCode",
  // Holds a SQLite database and its log.
  state: [".local/share/opencode"],
  steering: false,
  persona: false,
  // What its tools for writing a file and running a command are called in the protocol.
  kinds: ["edit", "execute"],
  environment: (llm, asks) => ({
    OPENCODE_CONFIG_CONTENT: JSON.stringify({
      model: "scripted/scripted",
      share: "disabled",
      autoupdate: false,
      permission: asks ? { edit: "ask", bash: "ask" } : { edit: "allow", bash: "allow" },
      provider: {
        scripted: {
          npm: "@ai-sdk/openai-compatible",
          options: { baseURL: `${llm}/v1`, apiKey: "unused" },
          models: { scripted: { limit: { context: 200000, output: 8192 } } },
        },
      },
    }),
  }),
};
