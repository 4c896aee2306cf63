//! The ports of a desired state.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::PortSpec;

/// The ports of a desired state, which its copies share until one changes them: a host has up to
/// 1024, and each change of a state makes several copies. Otherwise it is as a vector, and so it is
/// in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PortList(Arc<Vec<PortSpec>>);

impl PortList {
    /// Returns the shared list.
    #[must_use]
    pub fn shared(&self) -> &Arc<Vec<PortSpec>> {
        &self.0
    }
}

impl Deref for PortList {
    type Target = Vec<PortSpec>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Copies the list if another state shares it.
impl DerefMut for PortList {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl PartialEq for PortList {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for PortList {}

impl From<Vec<PortSpec>> for PortList {
    fn from(ports: Vec<PortSpec>) -> Self {
        Self(Arc::new(ports))
    }
}

impl<const N: usize> From<[PortSpec; N]> for PortList {
    fn from(ports: [PortSpec; N]) -> Self {
        Vec::from(ports).into()
    }
}

impl<const N: usize> PartialEq<[PortSpec; N]> for PortList {
    fn eq(&self, other: &[PortSpec; N]) -> bool {
        self.as_slice() == other
    }
}

impl FromIterator<PortSpec> for PortList {
    fn from_iter<T: IntoIterator<Item = PortSpec>>(ports: T) -> Self {
        Self(Arc::new(ports.into_iter().collect()))
    }
}

impl IntoIterator for PortList {
    type Item = PortSpec;
    type IntoIter = std::vec::IntoIter<PortSpec>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).into_iter()
    }
}

impl<'a> IntoIterator for &'a PortList {
    type Item = &'a PortSpec;
    type IntoIter = std::slice::Iter<'a, PortSpec>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a mut PortList {
    type Item = &'a mut PortSpec;
    type IntoIter = std::slice::IterMut<'a, PortSpec>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::DesiredState;

    #[test]
    fn copies_share_the_ports_until_one_changes_them() {
        let state = DesiredState {
            ports: vec![PortSpec::vhost_user("vm1", "vm1.sock")].into(),
            ..DesiredState::default()
        };
        let mut copy = state.clone();
        assert!(Arc::ptr_eq(state.ports.shared(), copy.ports.shared()));
        copy.ports.push(PortSpec::vhost_user("vm2", "vm2.sock"));
        assert_eq!((state.ports.len(), copy.ports.len()), (1, 2));
        assert_ne!(state, copy);
        copy.ports.pop();
        assert!(!Arc::ptr_eq(state.ports.shared(), copy.ports.shared()));
        assert_eq!(state, copy, "by their contents");
        let json = serde_json::to_string(&state.ports).unwrap();
        assert_eq!(json, serde_json::to_string(&*state.ports).unwrap());
        let read: PortList = serde_json::from_str(&json).unwrap();
        assert_eq!(read, state.ports);
    }
}
