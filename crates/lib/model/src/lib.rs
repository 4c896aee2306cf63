//! The model that the processes of Lasthop share with its API and its configuration: access lists,
//! events, and the words of settings.
//!
//! The data path and the supervisor know these types and no others of the API. Their schemas are
//! derived with the feature `schema` alone, which the API has: the switch links no schemas.
#![forbid(unsafe_code)]

mod access;
mod chunked_list;
mod event;
pub mod event_text;
mod limits;
mod names;
#[doc(hidden)]
pub mod objects;
mod secret;
mod settings;
mod words;

pub use access::{
    AccessListSpec, AccessModel, AddressSet, Direction, Group, LogSpec, Otherwise, Pieces,
    PortText, RuleAction, RuleSpec, SegmentDefault,
};
pub use chunked_list::{Chunk, ChunkedList, ListDifference, NamedElement};
pub use event::{
    Action, ConnectionLimit, ConnectionOpener, Event, EventKind, EventLevel, FieldChange,
    PipeChange, PortState, PrefilterChange, ProcessChange, Progress, Requester, Subject,
};
pub use limits::{USER_FLOWS_MAX, USER_KEPT_MAX};
pub use names::{NAME_MAX, valid_name};
pub use secret::Secret;
pub use settings::{GuestStates, Iommu, KICK_US, Poll, VcpuSource};
