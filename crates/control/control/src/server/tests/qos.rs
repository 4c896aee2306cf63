//! Classes, groups of senders and scheduled ports over the API.

use super::*;

const PORTS: &str = r#"{"ports":[
    {"name":"vm1","kind":"vhost-user","socket":"vm1.sock"},
    {"name":"up","kind":"uplink","interface":"eth0","egress":{"rate":10000000000}}]}"#;
const STORAGE: &str = r#"{"name":"storage","priority":6,"dscp":[26,28],"pcp":4}"#;
const TENANT: &str = r#"{"name":"tenant1","min":1000000000}"#;

async fn site() -> Site {
    let site = Site::start();
    assert_eq!(site.ask("PUT", "/v1/state", PORTS).await.0, 200);
    site
}

#[tokio::test]
async fn a_class_is_added_changed_and_removed_unless_it_is_in_use() {
    let site = site().await;
    let (status, head, body) = site.ask("POST", "/v1/qos/classes", STORAGE).await;
    let storage: Value = serde_json::from_str(STORAGE).unwrap();
    assert_eq!((status, &body), (201, &storage));
    assert!(head.contains("location: /v1/qos/classes/storage"), "{head}");
    assert_eq!(tag_of(&head), site.tag().await);
    let path = "/v1/qos/classes/storage";
    let patch = r#"{"priority":5,"pcp":null}"#;
    let (status, _, body) = site.ask("PATCH", path, patch).await;
    let changed = json!({"name": "storage", "priority": 5, "dscp": [26, 28]});
    assert_eq!((status, &body), (200, &changed));
    assert_eq!(site.ask("GET", path, "").await.2, changed);
    let (_, _, all) = site.ask("GET", "/v1/qos/classes", "").await;
    assert_eq!(all, json!({"classes": [{"name": "default"}, changed]}));

    let uses = r#"{"qos":{"class_by_pair":["default","storage"]}}"#;
    assert_eq!(site.ask("PATCH", "/v1/ports/vm1", uses).await.0, 200);
    let refused = site.refused("DELETE", path, "").await;
    assert_eq!(refused.status, 422);
    let expected = "class `storage` cannot be removed: port `vm1` names it; change or remove that \
                    first";
    assert_eq!(refused.detail, expected);
    assert_eq!(
        site.ask("PATCH", "/v1/ports/vm1", r#"{"qos":null}"#)
            .await
            .0,
        200
    );
    assert_eq!(site.ask("DELETE", path, "").await.0, 204);
    assert_eq!(site.refused("GET", path, "").await.status, 404);
    assert_eq!(
        site.refused("DELETE", "/v1/qos/classes/default", "")
            .await
            .status,
        409
    );
}

#[tokio::test]
async fn a_group_shows_its_members_and_bounds_them() {
    let site = site().await;
    let (status, _, body) = site.ask("POST", "/v1/qos/groups", TENANT).await;
    let tenant = |ports: Value| {
        json!({"name": "tenant1", "min": 1_000_000_000, "max": null, "burst": null, "weight": 100,
            "ports": ports})
    };
    assert_eq!((status, body), (201, tenant(json!([]))));
    let member = r#"{"qos":{"group":"tenant1","min":1000000000}}"#;
    assert_eq!(site.ask("PATCH", "/v1/ports/vm1", member).await.0, 200);
    let (_, _, all) = site.ask("GET", "/v1/qos/groups", "").await;
    assert_eq!(all, json!({"groups": [tenant(json!(["vm1"]))]}));
    let more = r#"{"qos":{"min":1000000001}}"#;
    let refused = site.refused("PATCH", "/v1/ports/vm1", more).await;
    assert_eq!(
        (refused.status, refused.field.as_deref()),
        (422, Some("qos.min"))
    );
    let path = "/v1/qos/groups/tenant1";
    let refused = site.refused("PATCH", path, r#"{"min":11000000000}"#).await;
    assert_eq!(
        (refused.status, refused.field.as_deref()),
        (422, Some("min"))
    );
    let expected = "group \"tenant1\": 11G of the 10G of \"up\" would be promised";
    assert_eq!(refused.detail, expected);
    assert_eq!(site.refused("DELETE", path, "").await.status, 422);
    let preview = site.ask("DELETE", "/v1/ports/vm1?dry_run=true", "").await;
    assert_eq!(preview.0, 200);
}

#[tokio::test]
async fn what_is_wrong_is_refused_with_its_field() {
    let site = site().await;
    for (method, path, body, field) in [
        (
            "POST",
            "/v1/qos/classes",
            r#"{"name":"a","priority":8}"#,
            "priority",
        ),
        (
            "POST",
            "/v1/qos/classes",
            r#"{"name":"a","dscp":[64]}"#,
            "dscp",
        ),
        (
            "POST",
            "/v1/qos/classes",
            r#"{"name":"a","prio":1}"#,
            "prio",
        ),
        (
            "POST",
            "/v1/qos/groups",
            r#"{"name":"a","min":2,"max":1}"#,
            "min",
        ),
        (
            "PATCH",
            "/v1/ports/vm1",
            r#"{"qos":{"min":3,"max":2}}"#,
            "qos.min",
        ),
        (
            "PATCH",
            "/v1/ports/vm1",
            r#"{"qos":{"group":"x"}}"#,
            "qos.group",
        ),
        (
            "PATCH",
            "/v1/ports/vm1",
            r#"{"qos":{"beyond":"wait"}}"#,
            "qos.beyond",
        ),
        ("PATCH", "/v1/ports/vm1", r#"{"egress":{}}"#, "egress.rate"),
        (
            "PATCH",
            "/v1/ports/vm1",
            r#"{"egress":{"rate":1,"full":"hold"}}"#,
            "egress.full",
        ),
        (
            "PATCH",
            "/v1/ports/up",
            r#"{"egress":{"room":1500}}"#,
            "egress.room",
        ),
        (
            "PATCH",
            "/v1/state",
            r#"{"ports":[{"name":"a","kind":"tap","qos":{"group":"x"}}]}"#,
            "ports[0].qos.group",
        ),
    ] {
        let problem = site.refused(method, path, body).await;
        let found = (problem.status, problem.field.as_deref());
        assert_eq!(found, (422, Some(field)), "{path} {body}: {problem}");
    }
}

#[tokio::test]
async fn the_use_of_a_scheduled_port_is_shown() {
    let site = site().await;
    let (status, _, body) = site.ask("GET", "/v1/ports/up/egress", "").await;
    assert_eq!((status, &body["port"]), (200, &json!("up")));
    assert_eq!(body["output"]["overhead"], 24);
    assert_eq!(body["shares"][0]["sender"], "vm1");
    for port in ["vm1", "vm9"] {
        let path = format!("/v1/ports/{port}/egress");
        assert_eq!(site.refused("GET", &path, "").await.status, 404);
    }
}
