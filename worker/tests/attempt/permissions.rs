//! Permission requests, answered by policy and counted (c19, c55).

use crate::harness::run;
use rstest::rstest;

#[rstest]
#[case(false, "allow_once:a,reject_once:r", "selected r", (0, 1))]
#[case(false, "reject_always:s,allow_always:b,reject_once:r", "selected r", (0, 1))]
#[case(false, "allow_once:a,allow_always:b", "cancelled", (0, 1))]
#[case(true, "allow_always:b,reject_once:r,allow_once:a", "selected a", (1, 0))]
#[case(true, "reject_once:r,allow_always:b", "selected b", (1, 0))]
#[case(true, "reject_once:r", "cancelled", (0, 1))]
#[case(true, "allow_once:a no-input no-kind", "selected a", (1, 0))]
#[case(false, "reject_once:r x1000", "selected r", (0, 1000))]
#[tokio::test(flavor = "multi_thread")]
async fn c55_permissions_go_by_kind_whatever_the_order(
    #[case] allows: bool,
    #[case] options: &str,
    #[case] answer: &str,
    #[case] counts: (i64, i64),
) {
    let setup = run(&format!("!permission \"rm -rf\" {options}"));
    let setup = if allows { setup.allow() } else { setup };
    let ended = setup.start().await.finish().await;
    assert_eq!(ended.words().0, "Completed", "{}", ended.transcript);
    assert!(ended.text().contains(&format!("permission: {answer}")), "{}", ended.text());
    let counted = ended.report.snapshot.permissions.unwrap();
    assert_eq!((counted.allowed, counted.rejected), counts);
    assert!(ended.transcript.contains("permission> rm -rf: "), "c57: {}", ended.transcript);
}
