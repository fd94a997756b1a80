//! Who an agent is in its container, and where.

use e2e_tests::{RunView, ScriptedProvider, in_namespace, run, status::end};
use rstest::rstest;
use serde_json::{Value, json};

/// An image has no home for an arbitrary user, and neither a user database.
#[rstest]
#[case::of_the_image(json!({}), "1000")]
#[case::arbitrary(json!({"securityContext": {"runAsUser": 123_456, "runAsGroup": 654_321}}), "123456")]
#[case::read_only_root(json!({"securityContext": {"runAsUser": 4242, "readOnlyRootFilesystem": true}}), "4242")]
#[tokio::test]
async fn n6_any_user_has_a_writable_home_and_working_directory(#[case] agent: Value, #[case] user: &str) {
    in_namespace("user", async |ns| {
        ns.provider(&ScriptedProvider::default().agent(agent)).await;
        let first = ns.finish(&run("where", "!ids\n!cwd\n!env HOME")).await;
        assert_eq!(first.end(), end("Completed", "Completed", "Completed"), "{}", first.message());
        let said = first.text();
        assert!(said.contains(user) && said.contains("/workspace"), "{said}");
        let home = said
            .lines()
            .find_map(|line| line.trim().strip_prefix("HOME="))
            .unwrap_or_else(|| panic!("no HOME in {said:?}"));
        let script = format!(
            "!write {home}/note.txt at home\n!write note.txt at work\n!read {home}/note.txt\n!read /workspace/note.txt"
        );
        let second = ns.finish(&run("writing", &script)).await;
        assert_eq!(second.end(), end("Completed", "Completed", "Completed"), "{}", second.message());
        assert!(second.text().contains("at home") && second.text().contains("at work"), "{}", second.text());
    })
    .await;
}
