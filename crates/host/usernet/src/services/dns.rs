//! DNS (RFC 1035, RFC 6891): questions of guests are answered from the names of ports, or go to the
//! host's resolvers.
//!
//! The message to a resolver is built anew: the guest's question, and its EDNS buffer size. Nothing
//! else of its bytes leaves the host. An answer counts only if it comes from the resolver that was
//! asked, to the socket that asked, with the random id and the question (RFC 5452). Where a
//! resolver has none, the next is asked, as by the C library of a host; where no resolver has one,
//! the guest gets the last error.

mod forward;
mod message;
mod resolvers;
mod stream;
#[cfg(test)]
mod tests;
mod zone;

pub use forward::{Ask, Asker, Forwarder, ResolverAnswer, Step, Ticket, Transport, Trouble};
pub use message::{MalformedError, Query, Rcode};
pub use resolvers::{Outcome, RESOLVERS_MAX, Resolver, ResolverState};
pub use stream::{Stream, StreamError, framed};
pub use zone::{DOMAIN, Zone};

/// Port of DNS servers.
pub const PORT: u16 = 53;
