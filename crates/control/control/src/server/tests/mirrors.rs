//! Mirrors over the API: one by one, with the ETag of the desired state.

use super::*;

const PORTS: &str = r#"{"segments":[{"name":"blue"}],"ports":[
    {"name":"vm1","kind":"vhost-user","socket":"vm1.sock","segment":"blue"},
    {"name":"vm2","kind":"vhost-user","socket":"vm2.sock","segment":"blue"},
    {"name":"probe","kind":"vhost-user","socket":"probe.sock"}]}"#;
const M1: &str = r#"{"name":"m1","to":"probe","ports":["vm1"]}"#;

async fn site() -> Site {
    let site = Site::start();
    assert_eq!(site.ask("PUT", "/v1/state", PORTS).await.0, 200);
    site
}

impl Site {
    async fn mirrors(&self) -> Value {
        self.ask("GET", "/v1/state", "").await.2["mirrors"].take()
    }
}

#[tokio::test]
async fn a_mirror_is_added_shown_replaced_and_removed() {
    let site = site().await;
    let (status, head, body) = site.ask("POST", "/v1/mirrors", M1).await;
    let m1: Value = serde_json::from_str(M1).unwrap();
    assert_eq!((status, &body), (201, &m1));
    assert!(head.contains("location: /v1/mirrors/m1"), "{head}");
    assert_eq!(tag_of(&head), site.tag().await);
    let m2 = r#"{"name":"m2","to":"probe","filter":"arp"}"#;
    assert_eq!(site.ask("PUT", "/v1/mirrors/m2", m2).await.0, 200);

    let (status, head, shown) = site.ask("GET", "/v1/mirrors/m1", "").await;
    assert_eq!((status, &shown), (200, &m1));
    let tag = tag_of(&head);
    let again = shown.to_string();
    let (status, head, body) = site.ask("PUT", "/v1/mirrors/m1", &again).await;
    assert_eq!((status, body, tag_of(&head)), (200, m1, tag), "idempotent");

    let other = r#"{"name":"m1","to":"vm2","segments":["blue"],"filter":"icmp"}"#;
    let (status, head, body) = site.ask("PUT", "/v1/mirrors/m1", other).await;
    let other: Value = serde_json::from_str(other).unwrap();
    assert_eq!((status, &body), (200, &other));
    assert_eq!(tag_of(&head), site.tag().await);
    let all = site.mirrors().await;
    assert_eq!(all[0], other, "it keeps its place");
    assert_eq!(all[1]["name"], "m2");

    let (status, _, list) = site.ask("GET", "/v1/mirrors", "").await;
    assert_eq!(status, 200);
    let first = json!({
        "name": "m1", "to": "vm2", "ports": [], "direction": "both", "segments": ["blue"],
        "filter": "icmp",
        // The fake knows no port of that name.
        "copied": {"packets": 0, "bytes": 0}, "lost": {}, "state": "unknown", "admin_state": "up",
        "to_guest": {"packets": 0, "bytes": 0}, "drops": {},
    });
    assert_eq!(list["mirrors"][0], first);

    let (status, head, body) = site.ask("DELETE", "/v1/mirrors/m1", "").await;
    assert_eq!((status, body), (204, Value::Null));
    assert_eq!(tag_of(&head), site.tag().await);
    for method in ["GET", "DELETE"] {
        let problem = site.refused(method, "/v1/mirrors/m1", "").await;
        let said = (problem.status, &*problem.detail);
        assert_eq!(said, (404, "there is no mirror `m1`"));
    }
    assert_eq!(
        site.mirrors().await,
        json!([serde_json::from_str::<Value>(m2).unwrap()])
    );
}

#[tokio::test]
async fn a_mirror_may_be_only_looked_at_and_comes_on_a_condition() {
    let site = site().await;
    let before = site.tag().await;
    for (method, path, status) in [("POST", "/v1/mirrors", 200), ("PUT", "/v1/mirrors/m1", 200)] {
        let path = format!("{path}?dry_run=true");
        let (found, head, body) = site.ask(method, &path, M1).await;
        assert_eq!((found, &body["name"]), (status, &json!("m1")));
        assert!(!head.contains("location:"), "{head}");
        assert_eq!(tag_of(&head), before);
        let wrong = M1.replace("vm1", "vm9");
        assert_eq!(site.refused(method, &path, &wrong).await.status, 422);
    }
    assert_eq!(site.tag().await, before);

    let on = |tag: &str| format!("if-match: \"{tag}\"\r\n");
    let (status, ..) = site
        .ask_with("PUT", "/v1/mirrors/m1", &on(&before), M1)
        .await;
    assert_eq!(status, 200);
    let now = site.tag().await;
    let other = M1.replace("vm1", "vm2");
    for (method, path, body) in [
        ("POST", "/v1/mirrors", other.replace("m1", "m2").as_str()),
        ("PUT", "/v1/mirrors/m1", &other),
        ("DELETE", "/v1/mirrors/m1", ""),
    ] {
        let (status, _, body) = site.ask_with(method, path, &on(&before), body).await;
        assert_eq!(status, 412, "{method} {path}: {body}");
        assert_eq!(body["type"], "urn:lasthop:problem:outdated");
    }
    let path = "/v1/mirrors/m1?dry_run=true";
    assert_eq!(site.ask("DELETE", path, "").await.0, 204);
    assert_eq!(site.tag().await, now, "it was only looked at");
    let (status, ..) = site
        .ask_with("DELETE", "/v1/mirrors/m1", &on(&now), "")
        .await;
    assert_eq!((status, site.tag().await), (204, before));
}

#[tokio::test]
async fn a_wrong_mirror_names_the_field_and_changes_nothing() {
    let site = site().await;
    site.ask("POST", "/v1/mirrors", M1).await;
    let tag = site.tag().await;
    // Body, status, field, part of the detail; of a mirror that is added, and put if its name
    // differs.
    for [body, status, field, detail] in &rows(
        r#"
        M1 | 409 | name | expected a name that no other mirror has, found "m1" a second time
        {"name":"m 2","to":"probe","filter":"arp"} | 422 | name | expected a name of 1 to 32
        {"name":"m2","to":"vm9","filter":"arp"} | 422 | to
          | expected the name of a port, found "vm9"
        {"name":"m2","to":"probe"} | 422 | ports | expected ports, segments or a filter
        {"name":"m2","to":"probe","ports":["vm1","vm9"]} | 422 | ports[1] | found "vm9"
        {"name":"m2","to":"probe","ports":["vm1","vm1"]} | 422 | ports[1] | a second time
        {"name":"m2","to":"vm2","ports":["vm2"]} | 422 | ports[0] | another port, found "vm2"
        {"name":"m2","to":"vm2","ports":["probe"]} | 422 | ports[0] | gets the copies of mirror "m1"
        {"name":"m2","to":"vm1","ports":["vm2"]} | 422 | to | found "vm1", which mirror "m1" copies
        {"name":"m2","to":"probe","segments":["red"]} | 422 | segments[0] | found "red"
        {"name":"m2","to":"probe","filter":"tcp prot 80"} | 422 | filter | column 5
        {"name":"m2","to":"probe","filter":"arp","direction":"in"} | 422 | direction
          | expected ports
        {"name":"m2","to":"probe","direction":"up"} | 422 | direction | or "out", found "up"
        {"name":"m2","to":"probe","port":["vm1"]} | 422 | port | unknown key
    "#,
    ) {
        let body = &body.replace("M1", M1);
        let name = serde_json::from_str::<Value>(body).unwrap()["name"].take();
        let path = format!("/v1/mirrors/{}", name.as_str().unwrap().replace(' ', "%20"));
        let both = [("POST", "/v1/mirrors"), ("PUT", &path)];
        for (method, path) in &both[..if body == M1 { 1 } else { 2 }] {
            let problem = site.refused(method, path, body).await;
            let text = format!("{method} {path} {body}: {problem:?}");
            assert_problem(&problem, status, field, detail, &text);
            assert_eq!(site.tag().await, tag, "{text}");
        }
    }
    for (method, path, body, status) in [
        ("PUT", "/v1/mirrors/m2", M1, 422),
        ("PUT", "/v1/mirrors/m1", "{", 400),
        ("PUT", "/v1/mirrors/m1?dry=1", M1, 422),
        ("DELETE", "/v1/mirrors/m1?dry=1", "", 422),
        ("DELETE", "/v1/mirrors/%ff", "", 400),
        ("PATCH", "/v1/mirrors/m1", "{}", 405),
        ("DELETE", "/v1/mirrors", "", 405),
        ("DELETE", "/v1/mirrors/m2", "", 404),
        ("DELETE", "/v1/ports/vm1", "", 409),
    ] {
        let problem = site.refused(method, path, body).await;
        assert_eq!(problem.status, status, "{method} {path}: {problem:?}");
        assert_eq!(site.tag().await, tag, "{method} {path}");
    }
}
