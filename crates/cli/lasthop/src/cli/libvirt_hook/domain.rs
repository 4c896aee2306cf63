//! The vhost-user interfaces of a domain with their `<bandwidth>`, read from libvirt's XML.
//!
//! Units are libvirt's: kilobytes (1000 bytes) a second, and kibibytes for a burst
//! (<https://libvirt.org/formatnetwork.html#quality-of-service>).

use std::path::PathBuf;

use roxmltree::{Document, Node, ParsingOptions};

/// Maximum number of XML nodes of a domain. A domain of libvirt's with 28 disks and as many
/// interfaces has about three thousand.
const MAX_NODES: u32 = 1 << 20;

/// A domain.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Domain {
    /// Its name.
    pub(super) name: String,
    /// Its UUID, which it keeps, or its name if the XML has none.
    pub(super) id: String,
    /// The vhost-user interfaces with a socket.
    pub(super) interfaces: Vec<Interface>,
    /// Interfaces whose `<bandwidth>` cannot be read, with the reason.
    pub(super) bad: Vec<String>,
}

/// An interface; without a `<bandwidth>` all of its numbers are 0.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Interface {
    /// The path of its vhost-user socket.
    pub(super) socket: PathBuf,
    /// `<inbound>`: traffic to the guest.
    pub(super) inbound: Bandwidth,
    /// `<outbound>`: traffic from the guest.
    pub(super) outbound: Bandwidth,
}

/// Attributes of one direction; 0 is the same as no attribute, as for libvirt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bandwidth {
    /// Average rate in kilobytes a second.
    pub(super) average: u64,
    /// Rate of bursts in kilobytes a second.
    pub(super) peak: u64,
    /// Length of a burst in kibibytes.
    pub(super) burst: u64,
    /// Guaranteed rate in kilobytes a second.
    pub(super) floor: u64,
}

impl Interface {
    /// Returns whether it has a `<bandwidth>` that says something.
    pub(super) fn is_limited(&self) -> bool {
        [self.inbound, self.outbound] != [Bandwidth::default(); 2]
    }
}

/// Reads a domain, as hooks get it on standard input, or a status file of libvirt's, which has the
/// domain in it.
pub(super) fn read(xml: &str) -> Result<Domain, String> {
    let options = ParsingOptions {
        nodes_limit: MAX_NODES,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(xml, options);
    let document = document.map_err(|error| format!("no XML: {error}"))?;
    let root = document.root_element();
    let domain = match root.tag_name().name() {
        "domain" => Some(root),
        "domstatus" => child(root, "domain"),
        _ => None,
    };
    let domain = domain.ok_or("no <domain> in the XML")?;
    let name = child(domain, "name").and_then(|name| name.text());
    let name = name.ok_or("no <name> in the <domain>")?.to_owned();
    let (mut interfaces, mut bad) = (Vec::new(), Vec::new());
    for interface in child(domain, "devices")
        .into_iter()
        .flat_map(|of| of.children())
    {
        if interface.has_tag_name("interface") && interface.attribute("type") == Some("vhostuser") {
            match with_socket(interface) {
                Ok(found) => interfaces.extend(found),
                Err(reason) => bad.push(reason),
            }
        }
    }
    let id = child(domain, "uuid").and_then(|uuid| uuid.text());
    let id = id.unwrap_or(&name).to_owned();
    Ok(Domain {
        name,
        id,
        interfaces,
        bad,
    })
}

/// Returns an interface if it has a socket.
fn with_socket(interface: Node<'_, '_>) -> Result<Option<Interface>, String> {
    let socket = child(interface, "source").and_then(|source| source.attribute("path"));
    let Some(socket) = socket else {
        return Ok(None);
    };
    let of = child(interface, "bandwidth");
    let [inbound, outbound] = ["inbound", "outbound"].map(|direction| {
        let of = of.and_then(|of| child(of, direction));
        let read = of.map_or(Ok(Bandwidth::default()), bandwidth);
        read.map_err(|error| format!("{socket}: {direction}: {error}"))
    });
    Ok(Some(Interface {
        socket: PathBuf::from(socket),
        inbound: inbound?,
        outbound: outbound?,
    }))
}

fn bandwidth(direction: Node<'_, '_>) -> Result<Bandwidth, String> {
    let number = |name: &str| match direction.attribute(name) {
        None => Ok(0),
        Some(text) => text
            .parse()
            .map_err(|_| format!("{name}: expected an integer from 0, found {text:?}")),
    };
    Ok(Bandwidth {
        average: number("average")?,
        peak: number("peak")?,
        burst: number("burst")?,
        floor: number("floor")?,
    })
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}
