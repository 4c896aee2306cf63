//! Requests of `ethtool` (`linux/ethtool.h`).

use std::io;
use std::os::fd::AsRawFd;

use super::interface::{Control, Request, outcome};

/// `linux/sockios.h`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GFLAGS: u32 = 0x25;
const SFLAGS: u32 = 0x26;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const GLINKSETTINGS: u32 = 0x4c;
/// A speed that is not known (`SPEED_UNKNOWN`).
const UNKNOWN: u32 = u32::MAX;
/// Most words of each of the three link mode masks.
const MASK_WORDS: usize = 127;
/// The strings that are names of features (`ETH_SS_FEATURES`).
const FEATURE_NAMES: u32 = 4;
/// Bytes of a string (`ETH_GSTRING_LEN`).
const STRING: usize = 32;
/// Most features that are read; Linux 6.18 has 64.
const MOST_FEATURES: usize = 256;
/// The interface takes VLAN tags off received frames.
const FLAG_RXVLAN: u32 = 1 << 8;

/// A structure that starts with a command and is as long as that command wants it.
///
/// # Safety
/// The command of every value reads and writes no more than the value's bytes, and any bytes are a
/// value.
unsafe trait Command {}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

// SAFETY: it is made with GDRVINFO alone, which has this structure.
unsafe impl Command for DriverInfo {}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

// SAFETY: it is made with GFLAGS and SFLAGS alone, which have this structure.
unsafe impl Command for Value {}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

// SAFETY: it is made with GCHANNELS alone, which has this structure.
unsafe impl Command for Channels {}

/// `struct ethtool_link_settings`, with room for its masks.
#[repr(C)]
struct LinkSettings {
    command: u32,
    /// Megabits a second.
    speed: u32,
    modes: [u8; 7],
    /// Words of each mask. The kernel answers a wrong number with the right one, negative.
    words: i8,
    rest: [u8; 4],
    reserved: [u32; 7],
    masks: [u32; 3 * MASK_WORDS],
}

// SAFETY: it is made with GLINKSETTINGS alone, which has this structure, with up to 3 * 127 words
// of masks behind it.
unsafe impl Command for LinkSettings {}

/// `struct ethtool_sset_info` for one set of strings.
#[repr(C)]
struct SetInfo {
    command: u32,
    reserved: u32,
    sets: u64,
    /// Strings of the set.
    count: u32,
    padding: u32,
}

// SAFETY: it is made with GSSET_INFO alone and one bit in `sets`, for which the kernel writes one
// number behind this structure.
unsafe impl Command for SetInfo {}

/// `struct ethtool_gstrings`.
#[repr(C)]
struct Names {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; STRING]; MOST_FEATURES],
}

// SAFETY: it is made with GSTRINGS alone, and only for a set that fits: the kernel has as many
// strings of a set as it has reported, for as long as it runs.
unsafe impl Command for Names {}

/// `struct ethtool_get_features_block`: a bit for each of 32 features.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FeatureBlock {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// `struct ethtool_gfeatures`: features of an interface.
#[repr(C)]
pub(super) struct Features {
    command: u32,
    /// Number of blocks; the kernel writes no more.
    size: u32,
    blocks: [FeatureBlock; MOST_FEATURES / 32],
}

// SAFETY: it is made with GFEATURES alone, which has this structure, with the number of its blocks.
unsafe impl Command for Features {}

impl Features {
    /// Returns whether the feature with this number is active.
    pub(super) fn has(&self, number: usize) -> bool {
        let block = self.blocks.get(number / 32);
        block.is_some_and(|block| block.active & 1 << (number % 32) != 0)
    }
}

impl Control {
    fn ethtool<T: Command>(&self, name: &str, command: &mut T) -> io::Result<()> {
        let address = (std::ptr::from_mut(command) as usize).to_ne_bytes();
        let mut request = Request::new(name)?.with(&address);
        // SAFETY: the request is a `struct ifreq` whose union points to a structure of the
        // command's size (see `Command`); both live until the call returns.
        outcome(unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL, &raw mut request) })
    }

    /// The name of the kernel's driver behind an interface: "tun" for TAP devices. None where it
    /// has no name.
    pub(super) fn driver(&self, name: &str) -> io::Result<Option<String>> {
        let mut info = DriverInfo {
            command: GDRVINFO,
            driver: [0; 32],
            rest: [0; 160],
        };
        let asked = self.ethtool(name, &mut info);
        Ok(known(asked)?.map(|()| {
            let end = info.driver.iter().position(|b| *b == 0).unwrap_or(0);
            String::from_utf8_lossy(&info.driver[..end]).into_owned()
        }))
    }

    /// Returns the number of receive queues; one if it is not reported.
    pub(super) fn receive_queues(&self, name: &str) -> io::Result<u32> {
        let mut channels = Channels {
            command: GCHANNELS,
            ..Channels::default()
        };
        let asked = self.ethtool(name, &mut channels);
        let count = known(asked)?.map(|()| channels.receive.saturating_add(channels.combined));
        Ok(count.unwrap_or(1).max(1))
    }

    /// Returns the speed of the link in megabits a second; none where that is not known, as while
    /// there is no link.
    pub(super) fn speed(&self, name: &str) -> io::Result<Option<u32>> {
        let mut words = 0;
        // The first request finds out the length of the masks.
        for _ in 0..2 {
            let mut settings = LinkSettings {
                command: GLINKSETTINGS,
                speed: UNKNOWN,
                modes: [0; 7],
                words,
                rest: [0; 4],
                reserved: [0; 7],
                masks: [0; 3 * MASK_WORDS],
            };
            if known(self.ethtool(name, &mut settings))?.is_none() {
                return Ok(None);
            }
            if settings.words > 0 {
                let speed = settings.speed;
                return Ok(Some(speed).filter(|speed| ![0, UNKNOWN].contains(speed)));
            }
            words = settings.words.saturating_neg();
        }
        Ok(None)
    }

    /// Returns the numbers of features by their names; none for a name that this kernel does not
    /// have. They are the same for all interfaces.
    pub(super) fn feature_numbers<const N: usize>(
        &self,
        name: &str,
        features: [&str; N],
    ) -> io::Result<[Option<usize>; N]> {
        let mut info = SetInfo {
            command: GSSET_INFO,
            reserved: 0,
            sets: 1 << FEATURE_NAMES,
            count: 0,
            padding: 0,
        };
        self.ethtool(name, &mut info)?;
        let count = info.count as usize;
        if count > MOST_FEATURES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut names = Names {
            command: GSTRINGS,
            set: FEATURE_NAMES,
            count: info.count,
            names: [[0; STRING]; MOST_FEATURES],
        };
        self.ethtool(name, &mut names)?;
        let names = &names.names[..count];
        let is = |known: &[u8; STRING], feature: &str| {
            known
                .strip_prefix(feature.as_bytes())
                .is_some_and(|rest| rest.first() == Some(&0))
        };
        Ok(features.map(|feature| names.iter().position(|known| is(known, feature))))
    }

    /// Returns the features of an interface.
    pub(super) fn active_features(&self, name: &str) -> io::Result<Features> {
        let blocks = [FeatureBlock::default(); MOST_FEATURES / 32];
        let mut features = Features {
            command: GFEATURES,
            size: blocks.len() as u32,
            blocks,
        };
        self.ethtool(name, &mut features)?;
        Ok(features)
    }

    /// Returns whether it takes VLAN tags off received frames.
    pub(super) fn takes_tags_off(&self, name: &str) -> io::Result<bool> {
        Ok(self.flags(name)? & FLAG_RXVLAN != 0)
    }

    /// Turns stripping of VLAN tags on or off.
    pub(super) fn take_tags_off(&self, name: &str, desired: bool) -> io::Result<()> {
        let old = self.flags(name)?;
        let data = if desired {
            old | FLAG_RXVLAN
        } else {
            old & !FLAG_RXVLAN
        };
        let command = SFLAGS;
        self.ethtool(name, &mut Value { command, data })
    }

    fn flags(&self, name: &str) -> io::Result<u32> {
        let mut value = Value {
            command: GFLAGS,
            data: 0,
        };
        let asked = self.ethtool(name, &mut value);
        Ok(known(asked)?.map_or(0, |()| value.data))
    }
}

/// None where the interface does not know the command.
fn known(asked: io::Result<()>) -> io::Result<Option<()>> {
    match asked {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        other => other.map(Some),
    }
}
