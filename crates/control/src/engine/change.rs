//! From the wanted state to what the switch has.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use api::v1::{PortKind, PortSpec, PortStatus, Problem, ProblemKind, Role, WantedState, Warning};
use channel::driving::{self, DriverState};
use channel::records::{Answer, Stale};
use channel::state::PARTS_MAX;
use channel::supervision::WatchedGuests;
use channel::switching::{self, Order, PortConfig, PortState};
use policy::Model;
use port::PortId;

use super::plan::{Basis, Plan};
use super::saved::Written;
use super::{Engine, documents, guests, unavailable};
use crate::command::{Changed, Request, Wanted};
use crate::wanted;

/// What the switch is to know of a wanted port.
fn config_of(spec: &PortSpec, id: PortId) -> PortConfig {
    let (socket, role) = match (spec.kind, spec.role) {
        // The switch dials, and the supervisor answers with a driver.
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

/// Whether the port can stay connected through the change.
fn keeps_guest(from: &PortConfig, to: &PortConfig) -> bool {
    let fixed = |p: &PortConfig| PortConfig {
        mtu: None,
        mac: None,
        weight: 0,
        ..p.clone()
    };
    fixed(from) == fixed(to)
}

/// Why what is wanted could not be kept.
fn unsaved(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::FileTooLarge => {
            let most = PARTS_MAX >> 20;
            let detail = format!("access lists may take {most} MiB as JSON, and these take more");
            Problem::new(ProblemKind::TooLarge, detail)
        }
        _ => unavailable(error),
    }
}

impl Engine {
    /// Makes the switch have what is wanted, and nothing else.
    ///
    /// # Errors
    /// The first port that cannot be made; what was done before it stays done.
    pub(super) fn reconcile(&mut self) -> Result<(), Problem> {
        let model = self.model();
        let specs = self.saved.wanted.ports.clone();
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
                self.drop_metrics(&metrics)?;
                return Err(problem);
            }
        };
        // Interfaces that are not wanted any more go with that, so it comes last.
        let done = self.claim_dials(&specs);
        let done = done.and_then(|()| self.claim_interfaces(&specs));
        let done = done.and_then(|()| self.reconcile_ports(configs));
        let done = done.and_then(|()| self.reconcile_limits(&specs));
        // Before the program, with which a new switch begins to serve: nothing goes by uncopied.
        let done = done.and_then(|()| self.reconcile_mirrors());
        for path in claimed {
            if !self.listens(&path) {
                self.unlisten(&path)?;
            }
        }
        if let Err(problem) = done {
            self.drop_metrics(&metrics)?;
            return Err(problem);
        }
        self.serve_metrics(metrics)?;
        let watch = self.guest_watch();
        self.supervisor.watch_guests(watch).map_err(unavailable)?;
        self.publish(&model)?;
        self.pin_stations();
        self.save().map_err(unsaved)
    }

    /// Opens the interfaces that are not open yet, so that one which cannot be had is known before anything else is
    /// changed. The supervisor keeps them.
    fn claim_interfaces(&mut self, specs: &[PortSpec]) -> Result<(), Problem> {
        let mut drivers = Vec::new();
        for spec in specs {
            let id = self.saved.numbers.port_id(&spec.name);
            drivers.extend(wanted::driver_of(spec, id));
        }
        let had = self.supervisor.drivers(drivers).map_err(unavailable)?;
        had.map_err(|(port, reason)| {
            Problem::conflict("interface", format!("port `{port}`: {reason}"))
        })
    }

    /// Has the supervisor know where the switch may have it connect to.
    fn claim_dials(&mut self, specs: &[PortSpec]) -> Result<(), Problem> {
        let client = specs.iter().filter(|spec| wanted::dials(spec));
        let all = client.map(|spec| (self.saved.numbers.port_id(&spec.name), spec.socket.clone()));
        let taken = self.supervisor.dials(all.collect()).map_err(unavailable)?;
        taken.map_err(|reason| Problem::conflict("socket", reason))
    }

    fn reconcile_ports(&mut self, configs: BTreeMap<PortId, PortConfig>) -> Result<(), Problem> {
        let gone: Vec<PortId> = self
            .ports
            .iter()
            .filter(|(id, have)| configs.get(id).is_none_or(|want| !keeps_guest(have, want)))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.drop_port(id)?;
        }
        for (id, want) in configs {
            // There may be many: the supervisor hears meanwhile that we live.
            self.supervisor.hear();
            match self.ports.get(&id) {
                None => self.make_port(want)?,
                Some(have) => {
                    let is_same = *have == want;
                    self.reconcile_peer(&want)?;
                    if !is_same {
                        self.change_port(want)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Has the switch hold ports to what is wanted.
    fn reconcile_limits(&mut self, specs: &[PortSpec]) -> Result<(), Problem> {
        for spec in specs {
            let id = self.saved.numbers.port_id(&spec.name);
            let wanted = wanted::limits_of(&spec.limits);
            if self.limits.get(&id).copied().unwrap_or_default() != wanted {
                self.supervisor.hear();
                self.order(Order::SetLimits(id, wanted))?;
                self.limits.insert(id, wanted);
            }
        }
        Ok(())
    }

    fn make_port(&mut self, config: PortConfig) -> Result<(), Problem> {
        let socket = match config.role {
            switching::Role::Server => Some(self.listen_again(&config)?),
            switching::Role::Client => None,
        };
        // Before anybody can connect.
        self.reconcile_peer(&config)?;
        let fds: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
        let order = Order::AddPort(config.clone());
        if let Err(error) = self.switch.request(order, &fds, |report, _| Some(report)) {
            return Err(unavailable(error));
        }
        self.ports.insert(config.id, config);
        Ok(())
    }

    fn change_port(&mut self, config: PortConfig) -> Result<(), Problem> {
        let order = Order::SetPort(config.clone());
        self.order(order)?;
        self.ports.insert(config.id, config);
        Ok(())
    }

    fn drop_port(&mut self, id: PortId) -> Result<(), Problem> {
        self.order(Order::RemovePort(id))?;
        self.limits.remove(&id);
        self.peers.remove(&id);
        self.forget_mirrors_of(id);
        self.ports_told.remove(&id);
        self.phases_untold.remove(&id);
        let Some(config) = self.ports.remove(&id) else {
            return Ok(());
        };
        if config.role == switching::Role::Server {
            self.unlisten(&config.socket)?;
        }
        // What it asked last is in the ring by now, and its number may be another port's soon.
        self.forget_questions(id).map_err(unavailable)?;
        let effects = self.fdb.forget_port(id);
        self.carry_out(effects);
        self.connected.remove(&id);
        self.saved.bound.remove(&id);
        self.forget_flows(id);
        Ok(())
    }

    pub(super) fn order(&mut self, order: Order) -> Result<(), Problem> {
        self.switch
            .request(order, &[], |report, _| Some(report))
            .map_err(unavailable)
    }

    pub(super) fn forget_flows(&mut self, port: PortId) {
        self.send(Answer::Forget(Stale::Port(port)));
    }

    /// Compiles the program and publishes it if it differs. Flows of ports whose segments changed are taken
    /// back; all others stay.
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
        self.order(Order::Program {
            outdated: was_running.then(|| program.outdated(&self.program)),
            program: program.without_rules(),
        })?;
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        let old = std::mem::replace(&mut self.program, program);
        self.saved.epoch = epoch + 1;
        for port in ports {
            if was_running && old.ingress(port) != self.program.ingress(port) {
                let effects = self.fdb.forget_port(port);
                self.carry_out(effects);
                self.forget_flows(port);
            }
            if was_running {
                self.guard_changed(port, old.guard(port));
            }
        }
        Ok(())
    }

    /// What the switch runs under this epoch. If that is the epoch of the state file, it is the program of the
    /// state file, and nothing need be published.
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
        self.saved.numbers.model(&self.saved.wanted)
    }

    /// Wants something else; if it cannot be had, everything is as before.
    fn want(&mut self, new: WantedState) -> Result<(), Problem> {
        let old = std::mem::replace(&mut self.saved.wanted, new);
        // Ports and segments that stay must keep their numbers, also those that are not wanted for a moment.
        let numbers = self.saved.numbers.clone();
        let compiled = self.access.clone();
        let Err(problem) = self.reconcile() else {
            self.log_shared_macs(&old);
            return Ok(());
        };
        self.saved.wanted = old;
        self.saved.numbers.take_back(numbers);
        self.ahead = Some(compiled);
        if let Err(second) = self.reconcile() {
            tracing::error!("the change could not be taken back: {second}");
        }
        Err(problem)
    }

    /// Warns of what was not so before a change.
    fn log_shared_macs(&self, before: &WantedState) {
        let known: Vec<Warning> = wanted::shared_macs(before).collect();
        let new = wanted::shared_macs(&self.saved.wanted);
        for warning in new.filter(|warning| !known.contains(warning)) {
            tracing::warn!("{}", warning.text);
        }
    }

    /// What is wanted.
    pub(super) fn wanted(&self) -> Wanted {
        let state = self.saved.wanted.clone();
        let version = wanted::version(&state);
        Wanted {
            state,
            version,
            port: None,
            changes: None,
        }
    }

    /// What a change starts from.
    pub(super) fn basis(&self) -> Basis {
        Basis {
            wanted: self.saved.wanted.clone(),
            access: self.access.clone(),
            numbers: self.saved.numbers.clone(),
            reach: self.reach.clone(),
        }
    }

    /// Does what a client asks for, if everything is still as it was when that was planned.
    ///
    /// # Errors
    /// What the switch or the system have against it; nothing has changed then.
    pub(super) fn follow_plan(
        &mut self,
        planned: Box<(Request, Plan)>,
    ) -> Result<Changed, Problem> {
        let basis = self.basis();
        let wanted = match planned.1.starts_from(&basis) {
            true => Some(self.carry_through(&planned.0, &planned.1)?),
            false => None,
        };
        Ok(Changed {
            wanted,
            basis,
            planned,
        })
    }

    fn carry_through(&mut self, request: &Request, plan: &Plan) -> Result<Wanted, Problem> {
        self.ahead = Some(plan.access.clone());
        self.saved.written.clone_from(&plan.written);
        let done = self.want(plan.after.clone());
        self.ahead = None;
        self.saved.written = Written::default();
        done?;
        let port = request.change.port();
        let port = port.map(|name| self.port_status(name)).transpose()?;
        Ok(Wanted {
            port,
            changes: None,
            ..self.wanted()
        })
    }

    fn port_status(&mut self, name: &str) -> Result<PortStatus, Problem> {
        let (states, _) = self.switch.port_states().map_err(unavailable)?;
        let drivers = self.driver_states()?;
        let watched = self.supervisor.watched_guests().map_err(unavailable)?;
        let found = self.statuses(&states, &drivers, &watched);
        let found = found.into_iter().find(|p| p.name == name);
        found.ok_or_else(|| Problem::no_such_port(name))
    }

    /// How the drivers are. Without one nobody is asked.
    pub(super) fn driver_states(&mut self) -> Result<Vec<DriverState>, Problem> {
        let needs_one = |port: &PortSpec| port.kind != PortKind::VhostUser;
        match self.saved.wanted.ports.iter().any(needs_one) {
            true => self.supervisor.driver_states().map_err(unavailable),
            false => Ok(Vec::new()),
        }
    }

    /// All wanted ports, in the operator's order.
    pub(super) fn statuses(
        &self,
        states: &[PortState],
        drivers: &[DriverState],
        watched: &WatchedGuests,
    ) -> Vec<PortStatus> {
        let wanted = self.saved.wanted.ports.iter();
        wanted
            .map(|spec| {
                let state = states.iter().find(|s| s.config.name == spec.name);
                let driver = drivers.iter().find(|d| d.name == spec.name);
                let id = self.saved.numbers.ports.get(&spec.name).copied();
                PortStatus {
                    vcpu_threads: guests::threads_of(watched, id),
                    work: state.map(|s| self.work_of(s)).unwrap_or_default(),
                    guard: self.guard_status(spec, id),
                    ..documents::port_status(spec, state, driver)
                }
            })
            .collect()
    }
}
