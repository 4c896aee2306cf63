//! Peers whose first port is an output that others share, each with what it has for that: scheduled
//! ports, two-rate policers of OVS-DPDK, `tc htb` of the kernel.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use crate::peers::{Kind, Peer, bridge, lasthop, ovs};
use crate::plan::Plan;

/// A port that sends to the output.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    /// Guaranteed bits a second, or 0.
    pub(super) min: u64,
    /// Most bits a second.
    pub(super) max: Option<u64>,
    pub(super) weight: u32,
    pub(super) priority: u8,
    /// Frames beyond are dropped.
    pub(super) drops: bool,
}

impl Default for Sender {
    fn default() -> Self {
        Self {
            min: 0,
            max: None,
            weight: 100,
            priority: 0,
            drops: false,
        }
    }
}

/// An output: port 0. Senders have the next ports, and others that do not send to it the last.
#[derive(Debug, Clone, Default)]
pub(super) struct Output {
    /// Bits a second.
    pub(super) rate: u64,
    pub(super) senders: Vec<Sender>,
    pub(super) others: usize,
    /// Queue pairs of each port.
    pub(super) pairs: u16,
}

impl Output {
    /// Starts a peer with it.
    pub(super) fn start(&self, kind: Kind, plan: &Plan) -> Result<Peer> {
        match kind {
            Kind::Lasthop => lasthop::with_tables(plan, &self.tables()),
            Kind::Ovs => ovs::with_commands(plan, self.ports()?, &[self.policer()], &self.flows()),
            Kind::Bridge => bridge::with(self.ports()?, self.htb()),
            Kind::Forwarder | Kind::Router => bail!("{} has two ports", kind.name()),
        }
    }

    fn ports(&self) -> Result<u32> {
        Ok(u32::try_from(1 + self.senders.len() + self.others)?)
    }

    /// Lasthop's tables of ports.
    fn tables(&self) -> Vec<String> {
        let queues = format!("queues = {}\n", self.pairs);
        let output = format!("{queues}[port.egress]\nrate = {}\n", self.rate);
        let sender = |sender: &Sender| {
            let mut table = format!("{queues}[port.qos]\nweight = {}\n", sender.weight);
            // Writing to a string does not fail.
            let _ = writeln!(table, "priority = {}", sender.priority);
            if sender.min > 0 {
                let _ = writeln!(table, "min = {}", sender.min);
            }
            if let Some(max) = sender.max {
                let _ = writeln!(table, "max = {max}");
            }
            if sender.drops {
                table += "beyond = \"drop\"\n";
            }
            table
        };
        let others = std::iter::repeat_n(queues.clone(), self.others);
        let senders = self.senders.iter().map(sender);
        std::iter::once(output)
            .chain(senders)
            .chain(others)
            .collect()
    }

    /// Bytes of a burst of a policer: 10 ms.
    fn burst(&self) -> u64 {
        (self.rate / 800).max(100_000)
    }

    /// A queue of the policer for each sender, numbered as its port.
    fn policer(&self) -> String {
        let burst = self.burst();
        let rates = |committed: u64, excess: u64| {
            format!(
                "other-config:cir={} other-config:cbs={burst} other-config:eir={} \
                 other-config:ebs={burst}",
                committed / 8,
                excess / 8
            )
        };
        let promised: u64 = self.senders.iter().map(|sender| sender.min).sum();
        let mut command = format!(
            "set port v0 qos=@q -- --id=@q create qos type=trtcm-policer {}",
            rates(promised, self.rate - promised)
        );
        let mut queues = String::new();
        for (sender, number) in self.senders.iter().zip(1..) {
            let _ = write!(command, " queues:{number}=@q{number}");
            let excess = sender.max.unwrap_or(self.rate).saturating_sub(sender.min);
            let rates = rates(sender.min, excess);
            let _ = write!(queues, " -- --id=@q{number} create queue {rates}");
        }
        command + &queues
    }

    fn flows(&self) -> Vec<String> {
        let numbers = 1..=self.senders.len();
        let flow =
            |number: usize| format!("in_port={},actions=set_queue:{number},normal", number + 1);
        numbers.map(flow).collect()
    }

    /// A class of the kernel's for each sender, which the last byte of its address selects.
    fn htb(&self) -> Vec<String> {
        let rate = self.rate;
        let weights: u32 = self.senders.iter().map(|sender| sender.weight).sum();
        let promised: u64 = self.senders.iter().map(|sender| sender.min).sum();
        let mut commands = vec![
            "qdisc add dev tap0 root handle 1: htb default 0".to_owned(),
            format!("class add dev tap0 parent 1: classid 1:fff htb rate {rate}bit"),
        ];
        for (sender, number) in self.senders.iter().zip(1_u32..) {
            let part = (rate - promised) / u64::from(weights) * u64::from(sender.weight);
            let own = match sender.min {
                0 => part.max(8),
                min => min,
            };
            let ceiling = sender.max.unwrap_or(rate);
            let quantum = 1514 * sender.weight.div_ceil(100);
            // In tc a low number goes first.
            let priority = 7 - sender.priority.min(7);
            commands.push(format!(
                "class add dev tap0 parent 1:fff classid 1:{number:x} htb rate {own}bit ceil \
                 {ceiling}bit prio {priority} quantum {quantum}"
            ));
            let address = number + 1;
            commands.push(format!(
                "filter add dev tap0 parent 1: protocol ip u32 match u8 {address:#x} 0xff at -3 \
                 flowid 1:{number:x}"
            ));
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> Output {
        let guaranteed = Sender {
            min: 200_000_000,
            priority: 6,
            ..Sender::default()
        };
        Output {
            rate: 1_000_000_000,
            senders: vec![guaranteed, Sender::default()],
            others: 1,
            pairs: 1,
        }
    }

    #[test]
    fn each_peer_has_its_own_words_for_it() {
        let tables = output().tables();
        assert_eq!(tables.len(), 4);
        assert!(tables[0].ends_with("[port.egress]\nrate = 1000000000\n"));
        assert!(tables[1].ends_with("priority = 6\nmin = 200000000\n"));
        let policer = output().policer();
        assert!(policer.contains("other-config:cir=25000000 other-config:cbs=1250000"));
        assert!(policer.contains(" queues:1=@q1 queues:2=@q2 -- --id=@q1 create queue "));
        assert_eq!(output().flows()[1], "in_port=3,actions=set_queue:2,normal");
        let htb = output().htb();
        assert!(htb[2].contains("rate 200000000bit ceil 1000000000bit prio 1 "));
        assert!(htb[5].ends_with("match u8 0x3 0xff at -3 flowid 1:2"));
    }
}
