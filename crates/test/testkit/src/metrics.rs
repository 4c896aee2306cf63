//! A reader of Prometheus's text format 0.0.4 and of OpenMetrics, stricter than collectors are: for
//! tests of what is exposed.

use std::collections::{BTreeMap, BTreeSet};

/// A page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// The kinds of the families by their names.
    pub kinds: BTreeMap<String, String>,
    /// Values by name and labels, as they are written: `name{a="b"}`.
    pub samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Reads a page.
    ///
    /// # Errors
    /// The first line that breaks a rule, and which.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut page = Self::default();
        let (mut family, mut over) = (Family::default(), BTreeSet::new());
        let (open, text) = match text.strip_suffix("# EOF\n") {
            Some(text) => (true, text),
            None => (false, text),
        };
        if !text.ends_with('\n') {
            return Err("the last line has no end".to_owned());
        }
        for line in text.lines() {
            let blame = |why: &str| format!("{why}: {line}");
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').ok_or_else(|| blame("no help"))?;
                over.insert(std::mem::take(&mut family.name));
                if over.contains(name) || help.is_empty() || !is_name(name) {
                    return Err(blame("a family a second time, without help or name"));
                }
                name.clone_into(&mut family.name);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| blame("no type"))?;
                if name != family.name || !["counter", "gauge", "histogram"].contains(&kind) {
                    return Err(blame("a type of another family, or an unknown one"));
                }
                if (kind == "counter" && !open) != name.ends_with("_total") {
                    return Err(blame("_total is for counters"));
                }
                kind.clone_into(&mut family.kind);
                page.kinds.insert(name.to_owned(), kind.to_owned());
            } else {
                let (key, value) = line.rsplit_once(' ').ok_or_else(|| blame("no value"))?;
                let name = key.split('{').next().unwrap_or_default();
                if !family.has(name, open) {
                    return Err(blame("a sample of another family"));
                }
                check_labels(&key[name.len()..]).map_err(blame)?;
                let value: f64 = value.parse().map_err(|_| blame("no number"))?;
                if value < 0.0 || page.samples.insert(key.to_owned(), value).is_some() {
                    return Err(blame("less than nothing, or a sample a second time"));
                }
            }
        }
        Ok(page)
    }

    /// One sample; 0 where there is none.
    #[must_use]
    pub fn get(&self, key: &str) -> f64 {
        self.samples.get(key).copied().unwrap_or(0.0)
    }

    /// Names of all samples.
    #[must_use]
    pub fn names(&self) -> BTreeSet<&str> {
        let keys = self.samples.keys();
        keys.filter_map(|key| key.split('{').next()).collect()
    }

    /// The counters that are less than they were.
    #[must_use]
    pub fn fallen_since(&self, before: &Self) -> Vec<String> {
        let counters = before
            .samples
            .iter()
            .filter(|(key, _)| key.contains("_total"));
        let fallen =
            counters.filter(|(key, was)| self.samples.get(*key).is_some_and(|is| is < was));
        fallen.map(|(key, _)| key.clone()).collect()
    }
}

/// The family that is being read.
#[derive(Default)]
struct Family {
    name: String,
    kind: String,
}

impl Family {
    /// Returns whether one of its samples has this name.
    fn has(&self, sample: &str, open: bool) -> bool {
        let Some(suffix) = sample.strip_prefix(&self.name) else {
            return false;
        };
        match &*self.kind {
            "counter" if open => suffix == "_total",
            "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
            _ => suffix.is_empty(),
        }
    }
}

fn is_name(name: &str) -> bool {
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    name.bytes().all(inside) && name.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
}

/// Labels in braces, each once, their values without anything that would have to be escaped.
fn check_labels(text: &str) -> Result<(), &'static str> {
    if text.is_empty() {
        return Ok(());
    }
    let inner = text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix("\"}"));
    let mut seen = BTreeSet::new();
    for label in inner.ok_or("no braces")?.split("\",") {
        let (name, value) = label.split_once("=\"").ok_or("no label")?;
        if !is_name(name) || value.contains(['"', '\\', ',']) || !seen.insert(name) {
            return Err("a label a second time, or a wrong one");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"c\",d=\"e\"} 1\n";
        let read = Metrics::read(good).unwrap();
        assert_eq!(read.get("a_total{b=\"c\",d=\"e\"}"), 1.0);
        let open = "# HELP a A.\n# TYPE a counter\na_total 1.5\n# EOF\n";
        assert_eq!(Metrics::read(open).unwrap().get("a_total"), 1.5);
        let histogram =
            "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_sum 2\na_count 1\n";
        assert_eq!(Metrics::read(histogram).unwrap().get("a_sum"), 2.0);
        assert!(Metrics::read(&histogram.replace("a_sum", "a_all")).is_err());
        for (from, to) in [
            ("a_total{", "b_total{"),
            ("counter", "gauge"),
            ("} 1", "} x"),
            ("d=", "b="),
            ("# HELP a_total A.\n", ""),
            ("1\n", "1"),
            ("\"e\"", "\"e"),
            ("1\n", "1\na_total{b=\"c\",d=\"e\"} 1\n"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert!(Metrics::read(&bad).is_err(), "{bad}");
        }
        let later = Metrics::read(&good.replace("} 1", "} 0")).unwrap();
        assert!(!later.fallen_since(&read).is_empty());
        assert!(read.fallen_since(&later).is_empty());
    }
}
