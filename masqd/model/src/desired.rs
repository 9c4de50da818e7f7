use std::collections::BTreeMap;

use crate::file::File;
use crate::validate::validate;
use crate::{Host, Key, Object, Problems, Rule, Vnic, Vpc};

/// A desired state that has been validated as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    pub(crate) hosts: Vec<Host>,
    pub(crate) vpcs: Vec<Vpc>,
    pub(crate) vnics: Vec<Vnic>,
    pub(crate) rules: Vec<Rule>,
}

impl DesiredState {
    /// Parses the declarative file in TOML. Reports everything that is wrong with it.
    pub fn from_toml(text: &str) -> Result<DesiredState, Problems> {
        let file: File = toml::from_str(text).map_err(|e| Problems::Syntax(e.to_string()))?;
        validate(file)
    }

    /// Parses the declarative file in JSON: `{"host": [...], "vpc": [...], "vnic": [...], "rule": [...]}`.
    pub fn from_json(text: &str) -> Result<DesiredState, Problems> {
        let file: File = serde_json::from_str(text).map_err(|e| Problems::Syntax(e.to_string()))?;
        validate(file)
    }

    /// The hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The networks.
    pub fn vpcs(&self) -> &[Vpc] {
        &self.vpcs
    }

    /// The vNICs.
    pub fn vnics(&self) -> &[Vnic] {
        &self.vnics
    }

    /// The rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// All objects by key.
    pub fn objects(&self) -> BTreeMap<Key, Object> {
        let hosts = self.hosts.iter().cloned().map(Object::Host);
        let vpcs = self.vpcs.iter().cloned().map(Object::Vpc);
        let vnics = self.vnics.iter().cloned().map(Object::Vnic);
        let rules = self.rules.iter().cloned().map(Object::Rule);
        hosts.chain(vpcs).chain(vnics).chain(rules).map(|o| (o.key(), o)).collect()
    }
}
