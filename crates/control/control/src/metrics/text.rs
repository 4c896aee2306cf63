//! The two text formats: <https://prometheus.io/docs/instrumenting/exposition_formats/> and
//! OpenMetrics 1.0.

use std::fmt::{Display, Write};

/// Text formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text format 0.0.4.
    #[default]
    Plain,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format for a client's `Accept` header.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Plain
        }
    }

    /// Returns the content type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Types of families.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A value that only grows; its samples end in `_total`.
    Counter,
    /// A current value.
    Gauge,
    /// Counts up to each bound; see [`Page::histogram`].
    Histogram,
}

/// The labels of a sample.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page that is being written.
pub(super) struct Page {
    format: Format,
    text: String,
}

impl Page {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            text: String::new(),
        }
    }

    /// Starts a family; `name` is without `_total`.
    pub(super) fn family(&mut self, kind: Kind, name: &'static str, help: &str) -> Family<'_> {
        let suffix = match kind {
            Kind::Counter => "_total",
            Kind::Gauge | Kind::Histogram => "",
        };
        let told = match self.format {
            Format::Plain => suffix,
            // In OpenMetrics only samples have the suffix.
            Format::OpenMetrics => "",
        };
        let word = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.put(format_args!(
            "# HELP {name}{told} {help}\n# TYPE {name}{told} {word}\n"
        ));
        Family {
            page: self,
            name,
            suffix,
        }
    }

    /// Writes a family of one histogram. `counts` has the counts of each bucket, not cumulated;
    /// `beyond` is the count above the last bound.
    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        counts: impl Iterator<Item = (f64, u64)>,
        (beyond, sum): (u64, f64),
    ) {
        self.family(Kind::Histogram, name, help);
        let mut all = 0;
        for (bound, count) in counts {
            all += count;
            self.put(format_args!("{name}_bucket{{le=\"{bound}\"}} {all}\n"));
        }
        all += beyond;
        self.put(format_args!(
            "{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum {sum}\n{name}_count {all}\n"
        ));
    }

    fn put(&mut self, what: impl Display) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "{what}");
    }

    /// Returns the whole page.
    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// A family whose samples are being written.
pub(super) struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
    suffix: &'static str,
}

impl Family<'_> {
    /// Writes a sample.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        let (name, suffix) = (self.name, self.suffix);
        self.page.put(format_args!("{name}{suffix}"));
        for (at, (label, text)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            self.page
                .put(format_args!("{before}{label}=\"{}\"", escaped(text)));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        self.page.put(format_args!("{after} {value}\n"));
    }
}

/// Escapes backslashes, quotes and line ends in a label's value.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}
