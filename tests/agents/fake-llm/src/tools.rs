//! From an intent ("write this file") to a call of a tool the request really offers.
//!
//! Agents name their tools and arguments differently. The choice goes by the shape of a tool's schema, so that a new
//! agent's tool is found without its name being listed here.

use serde_json::{Map, Value, json};

use crate::conversation::{Call, Tool};

/// Argument names that hold a file's path, most specific first.
const PATH_KEYS: [&str; 5] = ["filePath", "file_path", "absolute_path", "filename", "path"];
/// Argument names that hold a file's whole content.
const CONTENT_KEYS: [&str; 3] = ["content", "contents", "text"];
/// Argument names that hold a command line.
const COMMAND_KEYS: [&str; 3] = ["command", "cmd", "script"];

/// A call that runs `command`.
///
/// # Errors
/// No offered tool takes a command.
pub fn shell(tools: &[Tool], command: &str) -> Result<Call, String> {
    let named = |tool: &&Tool| {
        let name = tool.name.to_ascii_lowercase();
        ["bash", "shell", "exec", "terminal", "command"].iter().any(|word| name.contains(word))
    };
    for tool in tools.iter().filter(named) {
        let Some(key) = key_of(tool, &COMMAND_KEYS) else {
            continue;
        };
        let value = if tool.schema["properties"][key]["type"] == "array" {
            json!(["sh", "-c", command])
        } else {
            json!(command)
        };
        return Ok(call(tool, [(key, value)]));
    }
    Err(format!("no offered tool runs commands (offered: {})", names(tools)))
}

/// A call that writes `content` to `path`: by a file-writing tool, else by a shell.
///
/// # Errors
/// No offered tool can.
pub fn write_file(tools: &[Tool], path: &str, content: &str) -> Result<Call, String> {
    let named = |tool: &&Tool| {
        let name = tool.name.to_ascii_lowercase();
        name.contains("write") || name.contains("create")
    };
    for tool in tools.iter().filter(named) {
        if let (Some(at), Some(what)) = (key_of(tool, &PATH_KEYS), key_of(tool, &CONTENT_KEYS)) {
            return Ok(call(tool, [(at, json!(path)), (what, json!(content))]));
        }
    }
    let command = format!("printf %s {} > {}", quoted(content), quoted(path));
    shell(tools, &command).map_err(|_| format!("no offered tool writes files (offered: {})", names(tools)))
}

/// The first of `keys` that is an argument of `tool`.
fn key_of(tool: &Tool, keys: &[&'static str]) -> Option<&'static str> {
    let properties = tool.schema["properties"].as_object()?;
    keys.iter().copied().find(|key| properties.contains_key(*key))
}

/// A call with these arguments, and a neutral value for each further one the schema requires.
fn call<const N: usize>(tool: &Tool, given: [(&str, Value); N]) -> Call {
    let mut arguments = Map::new();
    for (key, value) in given {
        arguments.insert(key.to_owned(), value);
    }
    for key in tool.schema["required"].as_array().into_iter().flatten() {
        let Some(key) = key.as_str() else { continue };
        if arguments.contains_key(key) {
            continue;
        }
        let neutral = match tool.schema["properties"][key]["type"].as_str() {
            Some("boolean") => json!(false),
            Some("integer" | "number") => json!(0),
            Some("array") => json!([]),
            Some("object") => json!({}),
            _ => json!("scripted"),
        };
        arguments.insert(key.to_owned(), neutral);
    }
    Call { name: tool.name.clone(), arguments: Value::Object(arguments) }
}

/// `text` as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn names(tools: &[Tool]) -> String {
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn tool(name: &str, properties: Value, required: Value) -> Tool {
        Tool { name: name.into(), schema: json!({"type": "object", "properties": properties, "required": required}) }
    }

    #[rstest]
    #[case::string_with_required_extra(
        tool("bash", json!({"command": {"type": "string"}, "description": {"type": "string"}}), json!(["command", "description"])),
        json!({"command": "ls", "description": "scripted"}))]
    #[case::array(
        tool("shell", json!({"command": {"type": "array"}}), json!(["command"])),
        json!({"command": ["sh", "-c", "ls"]}))]
    #[case::cmd(
        tool("exec_command", json!({"cmd": {"type": "string"}, "tty": {"type": "boolean"}}), json!(["cmd"])),
        json!({"cmd": "ls"}))]
    fn a_shell_is_found_by_its_arguments(#[case] offered: Tool, #[case] expected: Value) {
        let offered = [tool("read", json!({"path": {}}), json!([])), offered];
        let call = shell(&offered, "ls").unwrap();
        assert_eq!((call.name.as_str(), &call.arguments), (offered[1].name.as_str(), &expected));
    }

    #[test]
    fn a_writing_tool_is_preferred_to_a_shell() {
        let bash = tool("Bash", json!({"command": {"type": "string"}}), json!(["command"]));
        let write = tool("Write", json!({"file_path": {}, "content": {}}), json!(["file_path", "content"]));
        let call = write_file(&[bash.clone(), write], "a", "b").unwrap();
        assert_eq!(call.name, "Write");
        assert_eq!(call.arguments, json!({"file_path": "a", "content": "b"}));
        let call = write_file(&[bash], "a b", "it's").unwrap();
        assert_eq!(call.arguments["command"], r"printf %s 'it'\''s' > 'a b'");
    }

    #[test]
    fn what_is_missing_is_named() {
        let todo = tool("todowrite", json!({"todos": {}}), json!([]));
        assert!(write_file(&[todo], "a", "b").unwrap_err().contains("todowrite"));
    }
}
