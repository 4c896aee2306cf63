//! The normal form of a desired state.

use api::v1::{DEFAULT_SEGMENT, DesiredState, PortKind, SegmentSpec, UplinkDriver};

use super::{device, fdb, pipes, port_security, process, qos};

/// Brings a checked desired state into its normal form: the default segment is listed, every port
/// has its segment or its trunk, an uplink its driver, a TAP port its interface, and MAC addresses
/// are lower-case.
pub fn normalise(state: &mut DesiredState) {
    if state.segment(DEFAULT_SEGMENT).is_none() {
        let default = SegmentSpec {
            name: DEFAULT_SEGMENT.to_owned(),
            vlan: None,
            neighbour_suppression: false,
        };
        state.segments.insert(0, default);
    }
    fdb::normalise(&mut state.fdb);
    state.pipes.iter_mut().for_each(pipes::normalise);
    qos::normalise(state);
    for port in &mut state.ports {
        if port.segment.is_none() && port.trunk.is_none() {
            port.segment = Some(DEFAULT_SEGMENT.to_owned());
        }
        if let Some(mac) = &mut port.mac {
            mac.make_ascii_lowercase();
        }
        port_security::normalise(&mut port.port_security);
        match port.kind {
            PortKind::VhostUser | PortKind::User => {}
            PortKind::Netmap | PortKind::Memif => process::normalise(port),
            PortKind::Uplink => {
                port.driver = port.driver.or(Some(UplinkDriver::default()));
                device::normalise(port);
            }
            PortKind::Tap => {
                device::normalise(port);
                port.interface.get_or_insert_with(|| port.name.clone());
                // As it was before this kind had the key: builds from then read the state.
                port.driver = port.driver.filter(|driver| *driver != UplinkDriver::Auto);
            }
        }
    }
}
