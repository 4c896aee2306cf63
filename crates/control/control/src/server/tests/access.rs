//! Access lists over the API.

use super::*;

#[tokio::test]
async fn warnings_name_rules_that_never_decide_and_unattached_lists() {
    let site = Site::start();
    let lists = r#"{"lists":[{"name":"idle","direction":"to-guest","rules":[
        {"name":"all","action":"allow"},{"name":"web","action":"allow","protocol":"tcp"}]}]}"#;
    assert_eq!(site.ask("PUT", "/v1/access", lists).await.0, 200);
    let (status, _, warnings) = site.ask("GET", "/v1/access/warnings", "").await;
    let expected = json!({
        "shadowed": [{"list": "idle", "rule": "web", "by": "all"}],
        "unattached": ["idle"],
    });
    assert_eq!((status, warnings), (200, expected));
    let (status, _, all) = site.ask("GET", "/v1/warnings", "").await;
    let expected = json!({"warnings": [
        {"text": "acl \"idle\" has no ports, groups or segments, and does nothing", "ports": []},
        {"text": "acl \"idle\", rule \"web\" is never reached: \"all\" comes first", "ports": []},
    ]});
    assert_eq!((status, all), (200, expected));
}

#[tokio::test]
async fn an_object_that_a_rule_names_is_not_removed() {
    let site = Site::start();
    let lists = r#"{"address_sets":[{"name":"office","addresses":["10.0.0.0/8"]}],
        "groups":[{"name":"web","ports":[]}],
        "lists":[{"name":"in","direction":"to-guest","rules":[
            {"name":"1","action":"allow","source":["@office"],"peer_groups":["web"]}]}]}"#;
    assert_eq!(site.ask("PUT", "/v1/access", lists).await.0, 200);
    for (path, what) in [
        ("/v1/access/groups/web", "group `web`"),
        ("/v1/access/address_sets/office", "address set `office`"),
    ] {
        let problem = site.refused("DELETE", path, "").await;
        let expected = format!(
            "{what} cannot be removed: rule `1` of access list `in` names it; \
             change or remove that first"
        );
        assert_eq!((problem.status, problem.detail), (409, expected));
    }
    let gone = "/v1/access/lists/in/rules/1";
    assert_eq!(site.ask("DELETE", gone, "").await.0, 204);
    for path in ["/v1/access/groups/web", "/v1/access/address_sets/office"] {
        assert_eq!(site.ask("DELETE", path, "").await.0, 204);
    }
}

#[tokio::test]
async fn sets_and_groups_are_read_one_by_one_and_counts_of_rules() {
    let site = Site::start();
    let model = r#"{"address_sets":[{"name":"office","addresses":["10.0.0.0/8"]}],
        "groups":[{"name":"web","ports":[]}],
        "lists":[{"name":"in","direction":"to-guest","groups":["web"],
        "rules":[{"name":"1","action":"allow"}]}]}"#;
    assert_eq!(site.ask("PUT", "/v1/access", model).await.0, 200);
    for (path, expected) in [
        (
            "/v1/access/address_sets/office",
            json!({"name": "office", "addresses": ["10.0.0.0/8"]}),
        ),
        ("/v1/access/groups/web", json!({"name": "web", "ports": []})),
    ] {
        let (status, head, body) = site.ask("GET", path, "").await;
        assert_eq!((status, body), (200, expected));
        assert!(head.to_lowercase().contains("etag: "), "{head}");
        let missing = site.refused("GET", &format!("{path}2"), "").await;
        assert_eq!(missing.status, 404, "{missing}");
    }
    let (status, _, counts) = site.ask("GET", "/v1/access/counts?list=in", "").await;
    let list = json!({"name": "in", "direction": "to-guest", "groups": ["web"],
        "rules": [{"name": "1", "packets": 0, "bytes": 0}]});
    assert_eq!((status, counts), (200, json!({"lists": [list]})));
    let (_, _, counts) = site.ask("GET", "/v1/access/counts?limit=5", "").await;
    assert_eq!(counts, json!({"lists": []}), "nothing was hit");
    for (query, status) in [("list=out", 404), ("rule=1", 422), ("limit=x", 422)] {
        let path = format!("/v1/access/counts?{query}");
        assert_eq!(site.refused("GET", &path, "").await.status, status);
    }
}
