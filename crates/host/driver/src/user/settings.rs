//! The network of a user port, out of the supervisor's message.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use ipc::driving::UserNetwork;
use usernet::network::{Access, Network, NetworkError, ParseError, Prefix};
use usernet::services::dns::Zone;
use usernet::services::{Leases, Search};
use usernet::{Time, TimeError, Times};
use wire::MacAddr;

use super::buffers::Budget;

/// Why the supervisor's message is of no use; control has checked it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("{0}: {1}")]
    Text(String, ParseError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("{0}: {1}")]
    Time(String, TimeError),
    #[error("it cannot change while the process runs")]
    Changed,
}

fn parse<T: FromStr<Err = ParseError>>(text: &str) -> Result<T, SettingsError> {
    let wrong = |error| SettingsError::Text(text.to_owned(), error);
    text.parse().map_err(wrong)
}

fn all<T: FromStr<Err = ParseError>>(texts: &[String]) -> Result<Vec<T>, SettingsError> {
    texts.iter().map(|text| parse(text)).collect()
}

/// Returns the addresses.
pub(super) fn network(of: &UserNetwork) -> Result<Network, SettingsError> {
    let prefix6 = of.network6.as_deref().map(parse::<Prefix>).transpose()?;
    let prefix = parse(&of.network)?;
    Ok(Network::new(prefix, prefix6, MacAddr(of.mac), of.mtu)?)
}

/// Returns the destinations that guests may reach.
pub(super) fn access(of: &UserNetwork) -> Result<Access, SettingsError> {
    Ok(Access {
        allow: all(&of.allow)?,
        deny: all(&of.deny)?,
        host: all(&of.host)?,
    })
}

/// Returns how long flows may be silent.
pub(super) fn times(of: &UserNetwork) -> Result<Times, SettingsError> {
    of.times.iter().try_fold(Times::default(), |times, text| {
        let time = text.parse::<Time>();
        let time = time.map_err(|error| SettingsError::Time(text.clone(), error))?;
        Ok(times.with(time))
    })
}

/// Returns the resolvers; none where questions are not answered.
pub(super) fn resolvers(of: &UserNetwork) -> &[SocketAddr] {
    match of.dns {
        true => &of.resolvers,
        false => &[],
    }
}

/// Returns the domains that guests are offered; control has checked them.
pub(super) fn search(of: &UserNetwork) -> Search {
    of.search.parse().unwrap_or_else(|_| Search::none())
}

/// Returns the budgets of the buffers of sockets.
pub(super) fn budget(of: &UserNetwork) -> Budget {
    Budget {
        guest: of.buffers.guest,
        port: of.buffers.port,
    }
}

/// Returns the stations of guests that are known by their ports.
pub(super) fn stations(of: &UserNetwork) -> impl Iterator<Item = MacAddr> {
    of.guests.iter().filter_map(|guest| guest.mac.map(MacAddr))
}

/// Returns the addresses that port security lists, by station.
pub(super) fn reserved(of: &UserNetwork) -> Vec<(MacAddr, Ipv4Addr)> {
    let v4 = |address: &IpAddr| match address {
        IpAddr::V4(v4) => Some(*v4),
        IpAddr::V6(_) => None,
    };
    let first = |addresses: &[IpAddr]| addresses.iter().find_map(v4);
    let guests = of.guests.iter();
    guests
        .filter_map(|guest| Some((MacAddr(guest.mac?), first(&guest.addresses)?)))
        .collect()
}

/// Returns the names of the ports with known addresses.
pub(super) fn zone(of: &UserNetwork, leases: &Leases) -> Zone {
    let listed = of.guests.iter().flat_map(|guest| {
        let addresses = guest.addresses.iter();
        addresses.map(|address| (guest.name.as_str(), *address))
    });
    let leased = leases.iter().filter_map(|lease| {
        let mut guests = of.guests.iter();
        let guest = guests.find(|guest| guest.mac == Some(lease.mac.0))?;
        Some((guest.name.as_str(), IpAddr::V4(lease.address)))
    });
    Zone::new(listed.chain(leased))
}
