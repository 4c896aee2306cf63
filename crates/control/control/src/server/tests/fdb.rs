//! Static entries.

use super::*;

#[tokio::test]
async fn a_static_entry_is_put_and_removed_at_its_own_path() {
    let site = Site::start();
    let port = r#"{"name":"vm1","kind":"vhost-user","socket":"vm1.sock"}"#;
    assert_eq!(site.ask("POST", "/v1/ports", port).await.0, 201);
    let path = "/v1/fdb/static/default/52:54:00:00:00:0A";
    let body = r#"{"mac":"52:54:00:00:00:0A","port":"vm1"}"#;
    let entry = |mac: &str| json!({"segment": "default", "mac": mac, "port": "vm1"});
    let (status, _, result) = site.ask("PUT", path, body).await;
    assert_eq!((status, result), (200, entry("52:54:00:00:00:0A")));
    let (_, _, all) = site.ask("GET", "/v1/fdb/static", "").await;
    assert_eq!(all, json!([entry("52:54:00:00:00:0a")]));
    for (path, body, status, field) in [
        (
            path,
            r#"{"mac":"52:54:00:00:00:0B","port":"vm1"}"#,
            422,
            "mac",
        ),
        (
            path,
            r#"{"mac":"52:54:00:00:00:0A","port":"vm9"}"#,
            422,
            "port",
        ),
        (
            path,
            r#"{"mac":"52:54:00:00:00:0A","port":"vm1","segment":"red"}"#,
            422,
            "segment",
        ),
        (path, r#"{"mac":"52:54:00:00:00:0A"}"#, 422, "port"),
    ] {
        let problem = site.refused("PUT", path, body).await;
        let result = (problem.status, problem.field.as_deref());
        assert_eq!(result, (status, Some(field)), "{body}: {problem}");
    }
    let dry = format!("{path}?dry_run=true");
    let (_, _, changes) = site.ask("DELETE", &dry, "").await;
    assert_eq!(changes["changes"][0]["subject"], "fdb", "{changes}");
    assert_eq!(site.ask("DELETE", path, "").await.0, 204);
    assert_eq!(site.refused("DELETE", path, "").await.status, 404);
    assert_eq!(site.ask("GET", "/v1/fdb/static", "").await.2, json!([]));
}
