//! Version 1 of the API: everything under `/v1/`.

mod access;
mod capture;
mod changes;
mod connections;
mod counts;
mod egress;
mod events;
mod flows;
mod pipes;
mod prefilter;
mod problem;
mod spec;
mod stats;
mod status;
mod trace;
mod user_status;
mod words;

#[cfg(test)]
mod tests;

pub use access::{AccessWarnings, Shadow};
pub use capture::{CAPTURE_BUFFER, CAPTURE_SNAPLEN, CaptureDirection, CaptureQuery};
pub use changes::{ChangeOptions, ChangesDocument, Step};
pub use connections::{
    AccountStatus, CONNECTIONS_DEFAULT, CONNECTIONS_MAX, ConnectionDirection, ConnectionEntry,
    ConnectionFlag, ConnectionTable, ConnectionsCount, ConnectionsDocument, ConnectionsFilter,
    ConnectionsFlush, ConnectionsSelection, PortConnections,
};
pub use counts::{AccessCounts, CountsFilter, ListCounts, RuleCounts};
pub use egress::{
    EgressDocument, EgressPortsDocument, EgressShare, EgressStatus, QosClassesDocument,
    QosGroupStatus, QosGroupsDocument,
};
pub use events::{EVENTS_KEPT, EventsFilter};
pub use flows::{FLOWS_DEFAULT, FLOWS_MAX, FlowEntry, FlowsDocument, FlowsFilter, PurgeFilter};
pub use model::{
    AccessListSpec, AccessModel, Action, AddressSet, Chunk, ChunkedList, ConnectionLimit,
    ConnectionOpener, Direction, Event, EventKind, EventLevel, FieldChange, Group, GuestStates,
    Iommu, ListDifference, LogSpec, NAME_MAX, NamedElement, Otherwise, Pieces, PipeChange, Poll,
    PortState, PortText, PrefilterChange, ProcessChange, Progress, Requester, RuleAction, RuleSpec,
    Secret, SegmentDefault, Subject, USER_FLOWS_MAX, USER_KEPT_MAX, VcpuSource, event_text,
    valid_name,
};
pub use pipes::{OpenPipe, PipeEnd, PipeStatus, PipesDocument};
pub use prefilter::{PrefilterDocument, PrefilterEntry, PrefilterStatus};
pub use problem::{Problem, ProblemKind};
pub use spec::{
    AdminState, ForwardSpec, USER_BUFFERS_MIB, USER_GUEST_BUFFERS_MIB, USER_NETWORK, USER_SEARCH,
    UserSpec,
};
pub use spec::{AllowedAddresses, AllowedWord, PortSecuritySpec, PortSecurityStatus};
pub use spec::{
    Beyond, DEFAULT_CLASS, EgressSpec, FullAction, PortQosSpec, QOS_WEIGHT, QosClassPatch,
    QosClassSpec, QosGroupPatch, QosGroupSpec, QosRates,
};
pub use spec::{
    CoalescingSpec, DEFAULT_SEGMENT, DesiredState, MetricsSpec, MirrorDirection, MirrorSpec, Patch,
    PatchTarget, PipeSpec, PollLimit, PortEnd, PortKey, PortKind, PortList, PortPatch, PortSpec,
    PrefilterMode, Role, SegmentPatch, SegmentSpec, StaticEntry, SwitchSpec, UplinkDriver, Workers,
    parse_mac,
};
pub use spec::{ConnectionsSpec, TimeoutsSpec, parse_seconds};
pub use spec::{FloodLimit, LimitsSpec, RateLimit, parse_si};
pub use stats::{
    ABSENT_GUEST, FdbDocument, FdbEntry, FdbFilter, FdbFlushResult, MirrorStats, PortStats,
    StatsDocument, Traffic, Work,
};
pub use status::{
    ClientStatus, DriverStatus, FrontEndStatus, GuestStateStatus, MirrorStatus, MirrorsDocument,
    Notifications, PortStatus, PortsDocument, ProcessState, ProcessStatus, ProcessUsage,
    QueueFault, RingFormat, SegmentStatus, SegmentsDocument, StatusDocument, SwitchStatus,
    TranslationStatus, VcpuSearch, Warning, WarningsDocument,
};
pub use trace::{
    TRACE_MAX, Trace, TraceAction, TraceDocument, TraceFrame, TraceLimit, TraceMirror,
    TraceOutcome, TraceReceiver, TraceRequest, TraceRuling, TraceStage, TraceStep, TracedFlow,
};
pub use user_status::{
    ForwardState, USER_LIST_DEFAULT, USER_LIST_MAX, USER_STALLED_MAX, UserFlowCount, UserFlowEntry,
    UserFlowTcp, UserFlowTimer, UserFlowWait, UserFlowsDocument, UserFlowsFilter, UserForwardEntry,
    UserForwardsDocument, UserLeaseEntry, UserLeasesDocument, UserPortStatus, UserResolverStatus,
    UserResolverWay,
};
