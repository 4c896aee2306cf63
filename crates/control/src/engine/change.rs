//! Reconciliation: makes the switch and the supervisor match the desired state.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use api::v1::{DesiredState, PortKind, PortSpec, PortStatus, Problem, ProblemKind, Role, Warning};
use channel::driving::{self, DriverState};
use channel::records::{Answer, Stale};
use channel::state::PARTS_MAX;
use channel::supervision::WatchedGuests;
use channel::switching::{self, PortConfig, PortState, SwitchCommand};
use policy::Model;
use port::PortId;

use super::plan::{Basis, Plan};
use super::saved::EncodedChunks;
use super::{Engine, documents, guests, unavailable};
use crate::command::{Changed, Desired, Request};
use config::desired;

/// Returns the switch's configuration of a desired port.
fn config_of(spec: &PortSpec, id: PortId) -> PortConfig {
    let (socket, role) = match (spec.kind, spec.role) {
        // The switch connects, and the supervisor connects a driver to the other side.
        (PortKind::Uplink | PortKind::Tap, _) => {
            (driving::address(&spec.name), switching::Role::Client)
        }
        (PortKind::VhostUser, Role::Server) => (spec.socket.clone(), switching::Role::Server),
        (PortKind::VhostUser, Role::Client) => (spec.socket.clone(), switching::Role::Client),
    };
    PortConfig {
        id,
        name: spec.name.clone(),
        socket,
        role,
        queues: spec.queues,
        mtu: spec.mtu,
        weight: spec.weight,
        mac: spec.mac.as_deref().and_then(api::v1::parse_mac),
    }
}

/// Returns whether the port can stay connected through the change.
fn keeps_guest(from: &PortConfig, to: &PortConfig) -> bool {
    let fixed = |p: &PortConfig| PortConfig {
        mtu: None,
        mac: None,
        weight: 0,
        ..p.clone()
    };
    fixed(from) == fixed(to)
}

/// Returns the problem of a desired state that could not be saved.
fn save_problem(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            let most = PARTS_MAX >> 20;
            let detail = format!("access lists are limited to {most} MiB as JSON");
            Problem::new(ProblemKind::TooLarge, detail)
        }
        _ => unavailable(error),
    }
}

impl Engine {
    /// Makes the ports, limits, mirrors and program of the switch match the desired state.
    ///
    /// # Errors
    /// The first port that cannot be created; earlier steps are not undone.
    pub(super) fn reconcile(&mut self) -> Result<(), Problem> {
        let model = self.model();
        let specs = self.saved.desired.ports.clone();
        let mut configs = BTreeMap::new();
        for spec in &specs {
            let id = self.saved.numbers.port_id(&spec.name);
            configs.insert(id, config_of(spec, id));
        }
        self.compile_access(&model)?;
        let metrics = self.claim_metrics()?;
        let claimed = match self.claim_sockets(&specs) {
            Ok(claimed) => claimed,
            Err(problem) => {
                self.release_metrics(&metrics)?;
                return Err(problem);
            }
        };
        let done = self.reconcile_switch(&specs, configs);
        for path in claimed {
            if !self.listens(&path) {
                self.unlisten(&path)?;
            }
        }
        if let Err(problem) = done {
            self.release_metrics(&metrics)?;
            return Err(problem);
        }
        self.serve_metrics(metrics)?;
        let watch = self.guest_watch();
        self.supervisor.watch_guests(watch).map_err(unavailable)?;
        self.publish(&model)?;
        self.pin_stations();
        self.save().map_err(save_problem)
    }

    /// Makes interfaces, ports, limits and mirrors match the desired state, whose sockets are open.
    fn reconcile_switch(
        &mut self,
        specs: &[PortSpec],
        configs: BTreeMap<PortId, PortConfig>,
    ) -> Result<(), Problem> {
        self.claim_dials(specs)?;
        // It closes the interfaces that are no longer desired, so all other claims come first.
        self.claim_interfaces(specs)?;
        self.reconcile_ports(configs)?;
        self.reconcile_limits(specs)?;
        // Before the program, with which a new switch starts to forward: no frame is forwarded
        // without its copies.
        self.reconcile_mirrors()
    }

    /// Opens the interfaces that are not open yet, so that a failure is known before anything else
    /// is changed. The supervisor holds them.
    fn claim_interfaces(&mut self, specs: &[PortSpec]) -> Result<(), Problem> {
        let mut drivers = Vec::new();
        for spec in specs {
            let id = self.saved.numbers.port_id(&spec.name);
            drivers.extend(desired::driver_of(spec, id));
        }
        let had = self.supervisor.drivers(drivers).map_err(unavailable)?;
        had.map_err(|(port, reason)| {
            Problem::conflict("interface", format!("port `{port}`: {reason}"))
        })
    }

    /// Sends the supervisor the sockets to which the switch may connect.
    fn claim_dials(&mut self, specs: &[PortSpec]) -> Result<(), Problem> {
        let client = specs.iter().filter(|spec| desired::dials(spec));
        let all = client.map(|spec| (self.saved.numbers.port_id(&spec.name), spec.socket.clone()));
        let taken = self.supervisor.dials(all.collect()).map_err(unavailable)?;
        taken.map_err(|reason| Problem::conflict("socket", reason))
    }

    fn reconcile_ports(&mut self, configs: BTreeMap<PortId, PortConfig>) -> Result<(), Problem> {
        let removed: Vec<PortId> = self
            .ports
            .iter()
            .filter(|(id, old)| configs.get(id).is_none_or(|new| !keeps_guest(old, new)))
            .map(|(id, _)| *id)
            .collect();
        for id in removed {
            self.drop_port(id)?;
        }
        for (id, new) in configs {
            // There may be many ports: the supervisor gets its heartbeats meanwhile.
            self.supervisor.handle_events();
            match self.ports.get(&id) {
                None => self.make_port(new)?,
                Some(old) => {
                    let is_same = *old == new;
                    self.reconcile_peer(&new)?;
                    if !is_same {
                        self.change_port(new)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends the switch the rate limits that differ.
    fn reconcile_limits(&mut self, specs: &[PortSpec]) -> Result<(), Problem> {
        for spec in specs {
            let id = self.saved.numbers.port_id(&spec.name);
            let desired = desired::limits_of(&spec.limits);
            if self.limits.get(&id).copied().unwrap_or_default() != desired {
                self.supervisor.handle_events();
                self.order(SwitchCommand::SetLimits(id, desired))?;
                self.limits.insert(id, desired);
            }
        }
        Ok(())
    }

    fn make_port(&mut self, config: PortConfig) -> Result<(), Problem> {
        let socket = match config.role {
            switching::Role::Server => Some(self.reopen_socket(&config)?),
            switching::Role::Client => None,
        };
        // Before the first client can connect.
        self.reconcile_peer(&config)?;
        let fds: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
        let order = SwitchCommand::AddPort(config.clone());
        if let Err(error) = self.switch.request(order, &fds, |report, _| Some(report)) {
            return Err(unavailable(error));
        }
        self.ports.insert(config.id, config);
        Ok(())
    }

    fn change_port(&mut self, config: PortConfig) -> Result<(), Problem> {
        let order = SwitchCommand::SetPort(config.clone());
        self.order(order)?;
        self.ports.insert(config.id, config);
        Ok(())
    }

    fn drop_port(&mut self, id: PortId) -> Result<(), Problem> {
        self.order(SwitchCommand::RemovePort(id))?;
        self.limits.remove(&id);
        self.peers.remove(&id);
        self.remove_from_mirrors(id);
        self.event_limiters.remove(&id);
        self.pending_phases.remove(&id);
        let Some(config) = self.ports.remove(&id) else {
            return Ok(());
        };
        if config.role == switching::Role::Server {
            self.unlisten(&config.socket)?;
        }
        // The port's last upcalls are in the ring by now, and its number may soon be another
        // port's.
        self.discard_upcalls(id).map_err(unavailable)?;
        let effects = self.fdb.forget_port(id);
        self.apply_effects(effects);
        self.connected.remove(&id);
        self.saved.bound.remove(&id);
        self.remove_flows(id);
        Ok(())
    }

    pub(super) fn order(&mut self, order: SwitchCommand) -> Result<(), Problem> {
        self.switch
            .request(order, &[], |report, _| Some(report))
            .map_err(unavailable)
    }

    pub(super) fn remove_flows(&mut self, port: PortId) {
        self.send(Answer::Forget(Stale::Port(port)));
    }

    /// Compiles the program and publishes it if it differs. Flows of ports whose segments changed
    /// are removed; all others stay.
    fn publish(&mut self, model: &Model) -> Result<(), Problem> {
        let epoch = self.saved.epoch;
        let invalid = |e: policy::CompileError| Problem::internal(e.to_string());
        let compiled = self.compiled(model, epoch).map_err(invalid)?;
        let same = compiled.with_rules(self.rules(), epoch);
        if epoch != 0 && same == self.program {
            return Ok(());
        }
        let program = same.with_rules(self.rules(), epoch + 1);
        let was_running = self.program.epoch() != 0;
        self.order(SwitchCommand::Program {
            outdated: was_running.then(|| program.outdated(&self.program)),
            program: program.without_rules(),
        })?;
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        let old = std::mem::replace(&mut self.program, program);
        self.saved.epoch = epoch + 1;
        for port in ports {
            if was_running && old.ingress(port) != self.program.ingress(port) {
                let effects = self.fdb.forget_port(port);
                self.apply_effects(effects);
                self.remove_flows(port);
            }
            if was_running {
                self.port_security_changed(port, old.port_security(port));
            }
        }
        Ok(())
    }

    /// Adopts the program that the switch runs under this epoch. If that is the epoch of the state
    /// file, it is the program of the state file, and is not published again.
    pub(super) fn adopt_program(&mut self, running: u64) {
        let model = self.model();
        if running == self.saved.epoch
            && self.compile_access(&model).is_ok()
            && let Ok(program) = self.compiled(&model, running)
        {
            self.program = program.with_rules(self.rules(), running);
        }
        self.saved.epoch = self.saved.epoch.max(running);
    }

    pub(super) fn model(&mut self) -> Model {
        self.saved.numbers.model(&self.saved.desired)
    }

    /// Applies a new desired state; if that fails, restores the old one.
    fn apply_desired(&mut self, new: DesiredState) -> Result<(), Problem> {
        let old = std::mem::replace(&mut self.saved.desired, new);
        // Ports and segments that stay must keep their numbers, also those that the failed change
        // would have removed.
        let numbers = self.saved.numbers.clone();
        let compiled = self.access.clone();
        let Err(problem) = self.reconcile() else {
            self.log_shared_macs(&old);
            return Ok(());
        };
        self.saved.desired = old;
        self.saved.numbers.restore(numbers);
        self.precompiled = Some(compiled);
        if let Err(second) = self.reconcile() {
            tracing::error!("rollback of a change failed: {second}");
        }
        Err(problem)
    }

    /// Logs the warnings that a change has caused.
    fn log_shared_macs(&self, before: &DesiredState) {
        let known: Vec<Warning> = desired::shared_macs(before).collect();
        let new = desired::shared_macs(&self.saved.desired);
        for warning in new.filter(|warning| !known.contains(warning)) {
            tracing::warn!("{}", warning.text);
        }
    }

    /// Returns the desired state.
    pub(super) fn desired(&self) -> Desired {
        let state = self.saved.desired.clone();
        let version = desired::version(&state);
        Desired {
            state,
            version,
            port: None,
            changes: None,
        }
    }

    /// Returns the basis of a change.
    pub(super) fn basis(&self) -> Basis {
        Basis {
            desired: self.saved.desired.clone(),
            access: self.access.clone(),
            numbers: self.saved.numbers.clone(),
            reach: self.reach.clone(),
        }
    }

    /// Applies a planned change, if its basis is still the current state.
    ///
    /// # Errors
    /// The refusal of the switch or the system; nothing has changed then.
    pub(super) fn execute_plan(
        &mut self,
        planned: Box<(Request, Plan)>,
    ) -> Result<Changed, Problem> {
        let basis = self.basis();
        let desired = if planned.1.is_based_on(&basis) {
            Some(self.apply_plan(&planned.0, &planned.1)?)
        } else {
            None
        };
        Ok(Changed {
            desired,
            basis,
            planned,
        })
    }

    fn apply_plan(&mut self, request: &Request, plan: &Plan) -> Result<Desired, Problem> {
        self.precompiled = Some(plan.access.clone());
        self.saved.encoded.clone_from(&plan.encoded);
        let done = self.apply_desired(plan.after.clone());
        self.precompiled = None;
        self.saved.encoded = EncodedChunks::default();
        done?;
        let port = request.change.port();
        let port = port.map(|name| self.port_status(name)).transpose()?;
        Ok(Desired {
            port,
            changes: None,
            ..self.desired()
        })
    }

    fn port_status(&mut self, name: &str) -> Result<PortStatus, Problem> {
        let (states, _) = self.switch.port_states().map_err(unavailable)?;
        let drivers = self.driver_states()?;
        let watched = self.supervisor.watched_guests().map_err(unavailable)?;
        let found = self.statuses(&states, &drivers, &watched);
        let found = found.into_iter().find(|p| p.name == name);
        found.ok_or_else(|| Problem::no_such("port", name))
    }

    /// Returns the states of the drivers. Without any the supervisor is not asked.
    pub(super) fn driver_states(&mut self) -> Result<Vec<DriverState>, Problem> {
        let needs_one = |port: &PortSpec| port.kind != PortKind::VhostUser;
        if self.saved.desired.ports.iter().any(needs_one) {
            self.supervisor.driver_states().map_err(unavailable)
        } else {
            Ok(Vec::new())
        }
    }

    /// Returns the status of all desired ports, in the operator's order.
    pub(super) fn statuses(
        &self,
        states: &[PortState],
        drivers: &[DriverState],
        watched: &WatchedGuests,
    ) -> Vec<PortStatus> {
        let desired = self.saved.desired.ports.iter();
        desired
            .map(|spec| {
                let state = states.iter().find(|s| s.config.name == spec.name);
                let driver = drivers.iter().find(|d| d.name == spec.name);
                let id = self.saved.numbers.ports.get(&spec.name).copied();
                PortStatus {
                    vcpu_threads: guests::threads_of(watched, id),
                    work: state.map(|s| self.work_of(s)).unwrap_or_default(),
                    port_security: self.port_security_status(spec, id),
                    ..documents::port_status(spec, state, driver)
                }
            })
            .collect()
    }
}
