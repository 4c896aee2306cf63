//! The configuration space of a network device (virtio 1.3, 5.1.4) and the messages that read and
//! write it.

use super::backend::{Backend, Offer};
use super::fault::Refusal;
use super::message::{ConfigAccess, Payload, Reader};
use super::session::{Answer, Request, Session};

/// Longest access, as in QEMU (`VHOST_USER_MAX_CONFIG_SIZE`).
pub(super) const MAX_CONFIG: usize = 256;
/// Bytes in front of the accessed ones.
pub(super) const CONFIG_HEAD: usize = 12;
/// `struct virtio_net_config` up to and with `supported_hash_types`.
pub(super) const NET_CONFIG_LEN: usize = 24;

const AT_STATUS: usize = 6;
const AT_PAIRS: usize = 8;
const AT_MTU: usize = 10;
const AT_SPEED: usize = 12;
const AT_DUPLEX: usize = 16;

const LINK_UP: u16 = 1;
const DUPLEX_UNKNOWN: u8 = 0xff;
/// `flags` of an access: written by the front end for a live migration.
const FLAG_MIGRATION: u32 = 1;

/// The bytes that the driver sees, little-endian, zero behind the known fields.
#[derive(Debug, Clone)]
pub(super) struct NetConfig(pub(super) [u8; NET_CONFIG_LEN]);

impl NetConfig {
    pub(super) fn new(offer: &Offer) -> Self {
        let mut config = NetConfig([0; NET_CONFIG_LEN]);
        config.0[..6].copy_from_slice(&offer.mac);
        config.put(AT_PAIRS, &offer.queue_pairs.to_le_bytes());
        config.put(AT_SPEED, &u32::MAX.to_le_bytes());
        config.put(AT_DUPLEX, &[DUPLEX_UNKNOWN]);
        config.set_mtu(offer.mtu);
        config.set_link(offer.link_up);
        config
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn set_mtu(&mut self, mtu: u16) {
        self.put(AT_MTU, &mtu.to_le_bytes());
    }

    pub(super) fn set_link(&mut self, up: bool) {
        let status = if up { LINK_UP } else { 0 };
        self.put(AT_STATUS, &status.to_le_bytes());
    }

    /// Returns `size` bytes from `offset`, `None` when they reach beyond [`MAX_CONFIG`].
    fn read(&self, offset: u32, size: u32) -> Option<Vec<u8>> {
        let end = offset.checked_add(size)? as usize;
        if end > MAX_CONFIG {
            return None;
        }
        let byte = |at| self.0.get(at).copied().unwrap_or(0);
        Some((offset as usize..end).map(byte).collect())
    }

    fn write(&mut self, offset: u32, data: &[u8]) -> bool {
        let end = (offset as usize).checked_add(data.len());
        match end.and_then(|end| self.0.get_mut(offset as usize..end)) {
            Some(place) => {
                place.copy_from_slice(data);
                true
            }
            None => false,
        }
    }
}

/// `GET_CONFIG`. An access that cannot be served has a reply of size 0, as specified.
pub(super) fn get_config(
    session: &mut Session,
    request: Request,
    _: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let access: ConfigAccess = request.parse()?;
    let data = session.config.read(access.offset, access.size);
    let data = data.unwrap_or_default();
    let head = ConfigAccess {
        size: data.len() as u32,
        ..access
    };
    Ok(Answer::payload([head.to_bytes(), data].concat()))
}

/// `SET_CONFIG`. The driver may write no field; a migration may set them all.
pub(super) fn set_config(
    session: &mut Session,
    request: Request,
    _: &mut dyn Backend,
) -> Result<Answer, Refusal> {
    let mut reader = Reader::new(&request.payload);
    let access = ConfigAccess::parse(&mut reader).ok_or("payload too short")?;
    let data = reader.rest();
    if access.flags != FLAG_MIGRATION {
        return Err("the configuration of a network device is read-only".into());
    }
    if access.size as usize != data.len() || !session.config.write(access.offset, data) {
        return Err("an access outside the configuration of a network device".into());
    }
    Ok(Answer::Done)
}
