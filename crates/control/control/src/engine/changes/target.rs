//! The target of a change, and its parts for switch and supervisor.

use std::sync::Arc;

use api::v1::{AdminState, DesiredState, MirrorDirection, MirrorSpec, Problem};
use config::desired::{self, qos};
use ipc::capture::Way;
use ipc::mirrors::Mirror;
use policy::acl::Names;
use policy::port_security::{PortSecurity, PortSecurityTable};
use policy::{DscpClasses, Model, Program};
use port::PortId;
use port::counters::Counters;

use crate::plan::Access;
use crate::saved::{EncodedChunks, Numbers};

/// The state that a change makes switch and supervisor match.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Target {
    pub(in crate::engine) desired: DesiredState,
    pub(in crate::engine) numbers: Numbers,
    /// Compiled access lists: those of the desired state once [`Target::compile_access`] has
    /// succeeded, earlier ones before.
    pub(in crate::engine) access: Access,
    /// Encoded chunks of the access lists.
    pub(in crate::engine) encoded: EncodedChunks,
    /// It has not been in effect before: its guarantees are checked against the speeds of
    /// interfaces.
    pub(in crate::engine) is_new: bool,
}

impl Target {
    /// Returns the desired ports and segments by number.
    pub(in crate::engine) fn model(&mut self) -> Model {
        self.numbers.model(&self.desired)
    }

    /// Compiles the access lists, unless the ones at hand are for exactly this model.
    ///
    /// # Errors
    /// The first error in them.
    pub(super) fn compile_access(
        &mut self,
        model: &Model,
        in_effect: &Access,
    ) -> Result<(), Problem> {
        let access = Arc::clone(&self.desired.access);
        let names = Names {
            segments: &model.segments,
            ports: &self.numbers.ports,
            classes: &self.numbers.classes,
        };
        if self.access.has_names(names) && self.access.was_compiled_from(&access) {
            return Ok(());
        }
        let compiled = in_effect.compiled(&access, names);
        let invalid = |error| desired::placed(&access, &error).to_problem_in(None);
        self.access = compiled.map_err(invalid)?;
        Ok(())
    }

    /// Compiles the program under this epoch.
    pub(super) fn program(&mut self, model: &Model, epoch: u64) -> Result<Program, Problem> {
        let invalid = |e: policy::CompileError| Problem::internal(e.to_string());
        let program = Program::compile(model, epoch).map_err(invalid)?;
        let (segments, numbers) = (&self.desired.segments, &mut self.numbers);
        let port_security = self.desired.ports.iter().map(|spec| {
            let port_security = PortSecurity {
                answers: desired::has_neighbour_suppression(segments, spec),
                ..desired::port_security_of(spec)
            };
            (numbers.port_id(&spec.name), port_security)
        });
        let port_security: PortSecurityTable = port_security.collect();
        let dscp_classes = self.dscp_classes();
        let program = program.with_port_security(port_security);
        let program = program.with_dscp_classes(dscp_classes);
        Ok(program.with_rules(self.access.rules(), epoch))
    }

    /// Returns the classes of DSCPs, and the ports whose DSCPs count.
    fn dscp_classes(&self) -> DscpClasses {
        if self
            .desired
            .qos_classes
            .iter()
            .all(|class| class.dscp.is_empty())
        {
            return DscpClasses::default();
        }
        let ports = self.desired.ports.iter();
        let trusted = ports.filter(|spec| qos::trusts_dscp(spec));
        let trusted = trusted.filter_map(|spec| self.numbers.ports.get(&spec.name));
        let classes = qos::dscp_of_classes(&self.desired, &self.numbers);
        DscpClasses::new(classes, trusted.copied())
    }

    /// Returns the names of vCPU threads, by port.
    pub(super) fn thread_names(&self) -> Vec<(PortId, String)> {
        let threads = self.desired.ports.iter().filter_map(|spec| {
            let id = self.numbers.ports.get(&spec.name)?;
            Some((*id, spec.vcpu_threads.clone()?))
        });
        threads.collect()
    }

    /// Returns the mirrors for the switch. The counters of new ones start at 0.
    pub(super) fn mirrors(&mut self, counters: &Counters) -> Vec<Mirror> {
        let desired = &self.desired;
        let is_down = |name: &str| {
            let port = desired.port(name);
            port.is_some_and(|port| port.admin_state == AdminState::Down)
        };
        // A port that is administratively down gets no copies either.
        let specs = desired.mirrors.iter().filter(|spec| !is_down(&spec.to));
        let specs: Vec<&MirrorSpec> = specs.collect();
        let numbers = &mut self.numbers;
        let mut number = |name: &str| {
            let (number, is_new) = numbers.mirror_number(name);
            if is_new {
                counters.clear_mirror(number);
            }
            number
        };
        let mirrors: Vec<u8> = specs.iter().map(|spec| number(&spec.name)).collect();
        let one = |(spec, number): (&&MirrorSpec, u8)| Mirror {
            number,
            to: numbers.port_id(&spec.to),
            ports: spec
                .ports
                .iter()
                .map(|name| numbers.port_id(name))
                .collect(),
            way: match spec.direction {
                MirrorDirection::Both => None,
                MirrorDirection::In => Some(Way::In),
                MirrorDirection::Out => Some(Way::Out),
            },
            segments: spec
                .segments
                .iter()
                .map(|name| numbers.segment_id(name))
                .collect(),
            everything: spec.ports.is_empty() && spec.segments.is_empty(),
            filter: spec.filter.clone().unwrap_or_default(),
        };
        specs.iter().zip(mirrors).map(one).collect()
    }
}
