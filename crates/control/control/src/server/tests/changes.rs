//! Responses with the differences that a change makes.

use super::*;

#[tokio::test]
async fn a_change_is_previewed_and_made() {
    let site = Site::start();
    assert_eq!(site.ask("PUT", "/v1/state", "{}").await.0, 200);
    let first = site.tag().await;
    let desired = format!(r#"{{"switch":{{"name":"host1"}},"ports":[{VM1}]}}"#);
    let path = "/v1/state?dry_run=true&changes=true";
    let (status, head, dry) = site.ask("PUT", path, &desired).await;
    assert_eq!((status, tag_of(&head)), (200, first.clone()));
    assert_eq!(dry["desired"]["ports"][0]["name"], "vm1");
    let result = &dry["changes"];
    assert_eq!(result.as_array().unwrap().len(), 2);
    let name = json!([{"field": "name", "from": "lasthop", "to": "host1"}]);
    let switch =
        json!({"action": "change", "subject": "switch", "fields": name, "disconnects": false});
    assert_eq!(result[0], switch);
    assert_eq!(
        (&result[1]["action"], &result[1]["name"]),
        (&json!("add"), &json!("vm1"))
    );
    assert_eq!(site.tag().await, first, "it was only looked at");

    let (status, head, done) = site.ask("PUT", "/v1/state?changes=true", &desired).await;
    assert_eq!((status, done), (200, dry));
    assert_eq!(tag_of(&head), site.tag().await);
    assert_ne!(site.tag().await, first);
    let (_, _, none) = site.ask("PUT", path, &desired).await;
    assert_eq!(none["changes"], json!([]));
}

#[tokio::test]
async fn every_change_has_a_dry_run() {
    let site = Site::start();
    site.ask("POST", "/v1/ports", VM1).await;
    site.ask("POST", "/v1/segments", r#"{"name":"blue"}"#).await;
    let before = site.tag().await;
    let vm2 = VM1.replace("vm1", "vm2");
    let set = r#"{"name":"s","addresses":["10.0.0.0/8"]}"#;
    let list = r#"{"name":"l","direction":"to-guest"}"#;
    let (mtu, socket) = (r#"{"mtu":9000}"#, r#"{"socket":"b.sock"}"#);
    for (method, path, body, expected) in [
        ("POST", "/v1/ports", &*vm2, "add port vm2 false"),
        ("PATCH", "/v1/ports/vm1", mtu, "change port vm1 false"),
        ("PATCH", "/v1/ports/vm1", socket, "change port vm1 true"),
        ("DELETE", "/v1/ports/vm1", "", "remove port vm1 true"),
        (
            "POST",
            "/v1/segments",
            r#"{"name":"red"}"#,
            "add segment red false",
        ),
        (
            "PATCH",
            "/v1/segments/blue",
            r#"{"vlan":7}"#,
            "change segment blue false",
        ),
        (
            "DELETE",
            "/v1/segments/blue",
            "",
            "remove segment blue false",
        ),
        (
            "PUT",
            "/v1/access/address_sets/s",
            set,
            "add address_set s false",
        ),
        ("PUT", "/v1/access/lists/l", list, "add acl l false"),
    ] {
        let path = format!("{path}?dry_run=true");
        let (status, head, body) = site.ask(method, &path, body).await;
        assert_eq!(status, 200, "{method} {path}: {body}");
        assert!(!head.contains("location:"), "{head}");
        let step = &body["changes"][0];
        let word = |field: &str| step[field].as_str().unwrap().to_owned();
        let (action, subject, name) = (word("action"), word("subject"), word("name"));
        let result = format!("{action} {subject} {name} {}", step["disconnects"]);
        assert_eq!(result, expected);
        assert!(body["desired"]["ports"].is_array());
    }
    for (method, path, body, status) in [
        ("PATCH", "/v1/ports/vm1", r#"{"mtu":3}"#, 422),
        ("DELETE", "/v1/ports/vm9", "", 404),
        ("POST", "/v1/ports", VM1, 409),
    ] {
        let path = format!("{path}?dry_run=true");
        let problem = site.refused(method, &path, body).await;
        assert_eq!(problem.status, status, "{path}");
    }
    assert_eq!(site.tag().await, before, "it was only looked at");
}

#[tokio::test]
async fn a_misspelt_option_changes_nothing() {
    let site = Site::start();
    let before = site.tag().await;
    for query in ["dryrun=true", "dry_run=1", "changes=all"] {
        let path = format!("/v1/ports?{query}");
        assert_eq!(
            site.refused("POST", &path, VM1).await.status,
            422,
            "{query}"
        );
    }
    assert_eq!(site.tag().await, before);
}
