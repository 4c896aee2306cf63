//! Access lists over the API.

use super::*;

#[tokio::test]
async fn warnings_name_rules_that_never_decide_and_lists_that_are_nobodys() {
    let site = Site::start();
    let lists = r#"{"lists":[{"name":"idle","direction":"to-guest","rules":[
        {"name":"all","action":"allow"},{"name":"web","action":"allow","protocol":"tcp"}]}]}"#;
    assert_eq!(site.ask("PUT", "/v1/access", lists).await.0, 200);
    let (status, _, warnings) = site.ask("GET", "/v1/access/warnings", "").await;
    let told = json!({
        "shadowed": [{"list": "idle", "rule": "web", "by": "all"}],
        "unattached": ["idle"],
    });
    assert_eq!((status, warnings), (200, told));
}
