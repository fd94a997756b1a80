//! What no agent should send.

use serde_json::{Value, json};

use crate::driver::Driver;

fn noise(agent: &Driver, from: usize) -> Vec<&[u8]> {
    agent.seen[from..].iter().map(Vec::as_slice).filter(|line| serde_json::from_slice::<Value>(line).is_err()).collect()
}

#[test]
fn garbage_comes_in_exactly_that_many_lines() {
    let mut agent = Driver::open(&[]);
    let turn = agent.prompt("!garbage 100000\n!say still here");
    assert_eq!(turn.text(), "still here");
    assert_eq!(noise(&agent, 0).len(), 100_000);
}

#[test]
fn a_big_line_has_its_size_and_its_kind() {
    let mut agent = Driver::open(&[]);
    let from = agent.seen.len();
    let turn = agent.prompt("!bigline 12\n!bigline 1 message\n!bigline 1 thought\n!bigline 1 garbage");
    assert_eq!(turn.end(), "end_turn");
    let sizes: Vec<_> = agent.seen[from..].iter().map(Vec::len).filter(|size| *size > 1000).collect();
    assert_eq!(sizes, [12 << 20, 1 << 20, 1 << 20, 1 << 20]);
    assert_eq!(turn.updates.len(), 2);
    assert_eq!(noise(&agent, from).len(), 1);
}

#[test]
fn a_flood_has_no_line_end() {
    let mut agent = Driver::open(&[]);
    agent.prompt("!say x");
    agent.send_prompt("!flood 3\n!raw end");
    let line = agent.line().expect("a line");
    assert_eq!((line.len(), line.ends_with(b"xend")), ((3 << 20) + 3, true));
}

#[test]
fn bytes_that_are_no_utf8_come_as_a_line_or_in_a_text() {
    let mut agent = Driver::open(&[]);
    agent.prompt("!invalid-utf8 line\n!invalid-utf8 text\n!say x");
    let noise = noise(&agent, 0);
    assert_eq!(noise.len(), 2);
    assert!(noise.iter().all(|line| std::str::from_utf8(line).is_err()));
    let repaired: Value = serde_json::from_str(&String::from_utf8_lossy(noise[1])).expect("JSON but for the text");
    assert_eq!(repaired["params"]["update"]["content"]["type"], "text");
}

#[test]
fn usage_is_sent_as_written() {
    let mut agent = Driver::open(&[]);
    agent.prompt("!usage {\"used\": NaN, \"size\": 1e999}");
    let line = String::from_utf8_lossy(noise(&agent, 0)[0]).into_owned();
    assert!(line.ends_with(r#""update":{"sessionUpdate":"usage_update","used": NaN, "size": 1e999}}}"#), "{line}");
}

#[test]
fn a_raw_line_is_sent_as_it_is() {
    let mut agent = Driver::open(&[]);
    let session = agent.session.clone();
    agent.prompt("!raw {\"kind\":\"report\",\"of\":\"{session}\"}");
    let wanted = format!("{{\"kind\":\"report\",\"of\":\"{session}\"}}");
    assert!(agent.seen.contains(&wanted.into_bytes()));
}

#[test]
fn unknown_notifications_are_sent() {
    let mut agent = Driver::open(&[]);
    agent.send_prompt("!unknown-notification");
    agent.until("the notification", |message| (message["method"] == "scripted/unknown").then_some(()));
}

#[test]
fn stderr_gets_its_lines() {
    let mut agent = Driver::open(&[("SCRIPTED_AGENT_STDERR", "at the start")]);
    agent.prompt("!stderr warning \\u{1b}[31m\n!stderr-fill 9000");
    let text = agent.stderr();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["at the start", "warning \u{1b}[31m"]);
    assert_eq!(lines[2].len(), 9000);
}

#[test]
fn stdout_can_end_while_the_process_lives() {
    let mut agent = Driver::open(&[]);
    agent.send_prompt("!say x\n!close-stdout\n!report gone\n!hang");
    agent.collector.wait_for_event(crate::driver::SOON, "report", "gone").expect("the turn goes on");
    agent.rest();
    assert!(agent.lives());
}

#[test]
fn a_line_that_is_no_message_is_refused() {
    let mut agent = Driver::open(&[]);
    agent.send_line("what?");
    let error = agent.until("an error", |message| (message["id"] == Value::Null).then(|| message["error"].clone()));
    assert_eq!(error["code"], json!(-32700));
    assert_eq!(agent.reported("invalid").text, "what?");
}
