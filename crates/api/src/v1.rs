//! Version 1 of the API: everything under `/v1/`.

mod capture;
mod changes;
mod counts;
mod egress;
mod event;
pub mod event_text;
mod flows;
mod objects;
pub mod old_names;
mod pipes;
mod problem;
mod spec;
mod stats;
mod status;
mod trace;
mod user_status;
mod words;

#[cfg(test)]
mod tests;

pub use capture::{CAPTURE_BUFFER, CAPTURE_SNAPLEN, CaptureDirection, CaptureQuery};
pub use changes::{Action, ChangeOptions, ChangesDocument, FieldChange, Step, Subject};
pub use counts::{AccessCounts, CountsFilter, ListCounts, RuleCounts};
pub use egress::{
    EgressDocument, EgressPortsDocument, EgressShare, EgressStatus, QosClassesDocument,
    QosGroupStatus, QosGroupsDocument,
};
pub use event::{
    EVENTS_KEPT, Event, EventKind, EventLevel, EventsFilter, ProcessChange, Progress, Requester,
};
pub use flows::{FLOWS_DEFAULT, FLOWS_MAX, FlowEntry, FlowsDocument, FlowsFilter, PurgeFilter};
pub use pipes::{OpenPipe, PipeChange, PipeEnd, PipeStatus, PipesDocument};
pub use problem::{Problem, ProblemKind};
pub use spec::{
    AccessListSpec, AccessModel, AccessWarnings, AddressSet, AdminState, Direction, ForwardSpec,
    Group, LogSpec, Otherwise, Pieces, PortText, RuleAction, RuleSpec, SegmentDefault, Shadow,
    USER_BUFFERS_MIB, USER_GUEST_BUFFERS_MIB, USER_NETWORK, UserSpec,
};
pub use spec::{Allowed, AllowedWord, PortSecurityPatch, PortSecuritySpec, PortSecurityStatus};
pub use spec::{
    Beyond, DEFAULT_CLASS, EgressSpec, Full, PortQosSpec, QOS_WEIGHT, QosClassPatch, QosClassSpec,
    QosGroupPatch, QosGroupSpec, QosRates,
};
pub use spec::{Chunk, ChunkedList, ListDifference, Named};
pub use spec::{
    CoalescingSpec, DEFAULT_SEGMENT, DesiredState, GuestStates, Iommu, MetricsSpec,
    MirrorDirection, MirrorSpec, NAME_MAX, PipeSpec, Poll, PortKind, PortPatch, PortSpec, Role,
    Secret, SegmentPatch, SegmentSpec, StaticEntry, SwitchSpec, UplinkDriver, Workers, parse_mac,
    valid_name,
};
pub use spec::{Enabled, HelpersSpec};
pub use spec::{FloodLimit, LimitsSpec, RateLimit, parse_si};
pub use stats::{
    FdbDocument, FdbEntry, FdbFilter, FdbFlushed, MirrorStats, PortStats, StatsDocument, Traffic,
    Work,
};
pub use status::{
    ClientStatus, DriverStatus, FrontEndStatus, GuestStateStatus, MirrorStatus, MirrorsDocument,
    Notifications, PortState, PortStatus, PortsDocument, ProcessState, ProcessStatus, ProcessUsage,
    QueueFault, RingFormat, SegmentStatus, SegmentsDocument, StatusDocument, SwitchStatus,
    TranslationStatus, VcpuSearch, VcpuSource, Warning, WarningsDocument,
};
pub use trace::{
    TRACE_MAX, Trace, TraceAction, TraceDocument, TraceFrame, TraceLimit, TraceMirror,
    TraceOutcome, TraceReceiver, TraceRequest, TraceRuling, TraceStage, TraceStep, TracedFlow,
};
pub use user_status::{
    USER_FLOWS_MAX, USER_KEPT_MAX, USER_LIST_DEFAULT, USER_LIST_MAX, UserFlowCount, UserFlowEntry,
    UserFlowsDocument, UserFlowsFilter, UserLeaseEntry, UserLeasesDocument, UserPortStatus,
};
