//! Whether two ends may be connected, or exchange datagrams, in words.

use std::net::IpAddr;

use masq_model::Vpc;
use masq_model::api::{ExplainedEnd, ExplainedFlow, Explanation};
use masq_policy::rename::{Endpoints, Found};
use masq_policy::rules::{Action, Flow, Party, Transport};
use masq_types::Gid;

use super::Directory;

/// What is asked. An end is the name of a vNIC or of a static endpoint, or a virtual address.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// One end.
    pub from: &'a str,
    /// The other.
    pub to: &'a str,
    /// The network of addresses; when absent, that of an end that is a name.
    pub vpc: Option<&'a str>,
    /// What would pass between them.
    pub traffic: Traffic,
}

/// What passes between two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    /// A reliable connection.
    #[default]
    Rc,
    /// An unreliable connection.
    Uc,
    /// Datagrams from the first end to the other.
    Ud,
    /// Management datagrams, both ways, which set connections up.
    Cm,
}

impl Traffic {
    /// The transports of which one must be allowed.
    fn transports(self) -> &'static [Transport] {
        match self {
            Traffic::Rc => &[Transport::Rc],
            Traffic::Uc => &[Transport::Uc],
            Traffic::Ud => &[Transport::Ud],
            Traffic::Cm => &[Transport::Rc, Transport::Uc, Transport::Ud],
        }
    }

    /// Of the flows there and back, those of which one must be allowed.
    fn decisive(self, flows: &[Flow]) -> &[Flow] {
        match self {
            Traffic::Ud => flows.get(..1).unwrap_or_default(),
            Traffic::Rc | Traffic::Uc | Traffic::Cm => flows,
        }
    }
}

/// A question cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// A network that does not exist.
    #[error("there is no vpc {0:?}")]
    NoVpc(String),
    /// Neither the name of a vNIC or static endpoint nor an address.
    #[error("{0:?} is neither the name of a vNIC or static endpoint nor an address")]
    NoSuchEnd(String),
    /// A vNIC or static endpoint outside of the network that was named.
    #[error("{end} belongs to vpc {vpc:?}, not to {asked:?}")]
    WrongVpc {
        /// What it is, and its name.
        end: String,
        /// Its network.
        vpc: String,
        /// The network that was asked for.
        asked: String,
    },
    /// An address alone.
    #[error("the address {0} means nothing without a network: name a vpc")]
    WhichVpc(IpAddr),
    /// Nobody has the address.
    #[error("no vNIC of vpc {vpc:?} has the address {address}")]
    Nobody {
        /// The address.
        address: IpAddr,
        /// The network.
        vpc: String,
    },
}

/// One end.
struct End<'a> {
    name: &'a str,
    /// The host of its VM, if it has one.
    host: Option<&'a str>,
    security_groups: &'a [String],
    reach: Reach,
    vpc: &'a Vpc,
    /// The addresses that come into question, the preferred one first.
    gids: Vec<Gid>,
}

/// Whom an end can talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// vNICs.
    Vnics,
    /// vNICs and strangers: a vNIC with a dedicated alias.
    Everybody,
    /// vNICs that have a dedicated alias: a static endpoint.
    Alone,
}

impl Directory {
    /// Whether two ends may be connected or exchange datagrams, and what says so.
    pub fn explain(&self, question: &Question<'_>) -> Result<Explanation, AskError> {
        let vpc_of = |end| {
            let vnic = self.vnic(end).map(|v| v.vpc.as_str());
            vnic.or_else(|| self.static_endpoint(end).map(|s| s.vpc.as_str()))
        };
        let vpc = question.vpc.or_else(|| vpc_of(question.from)).or_else(|| vpc_of(question.to));
        let from = self.end(question.from, question.vpc, vpc)?;
        let to = self.end(question.to, question.vpc, vpc)?;
        let same_vnic = from.name == to.name;
        let judge = |(a, b): (Gid, Gid)| {
            let apart = same_vnic || from.vpc.name != to.vpc.name;
            if apart { Vec::new() } else { self.flows(question.traffic, &from, a, &to, b) }
        };
        let passes = |flows: &[Flow]| question.traffic.decisive(flows).iter().any(Flow::is_allowed);
        let pairs = pairs(&from, &to);
        let preferred = pairs[0];
        // Rules about prefixes can deny one pair of addresses and leave another, such as the link-local ones.
        let is_allowed = |pair: &(Gid, Gid)| passes(&judge(*pair));
        let (a, b) = pairs.iter().copied().find(is_allowed).unwrap_or(preferred);
        let flows = judge((a, b));
        let obstacles = self.obstacles(&from, a, &to, b);
        let rules_allow = same_vnic || passes(&flows);
        let decisive = question.traffic.decisive(&flows);
        let summary = match (obstacles.first(), decisive.iter().find(|f| f.is_allowed())) {
            (Some(obstacle), _) => obstacle.clone(),
            (None, Some(flow)) if (a, b) != preferred => {
                format!("{flow} (between {} and {} no traffic is allowed)", preferred.0, preferred.1)
            }
            (None, Some(flow)) => flow.to_string(),
            (None, None) if same_vnic => "both ends are the same vNIC".into(),
            (None, None) => decisive.iter().map(Flow::to_string).collect::<Vec<_>>().join("; "),
        };
        Ok(Explanation {
            allowed: rules_allow && obstacles.is_empty(),
            summary,
            from: from.explained(a),
            to: to.explained(b),
            flows: flows.iter().map(explained_flow).collect(),
            obstacles,
        })
    }

    fn end(&self, text: &str, asked: Option<&str>, vpc: Option<&str>) -> Result<End<'_>, AskError> {
        if let Some(end) = self.named_end(text) {
            let end = end?;
            if let Some(asked) = asked.filter(|asked| *asked != end.vpc.name) {
                let vpc = end.vpc.name.clone();
                return Err(AskError::WrongVpc { end: end.label(), vpc, asked: asked.into() });
            }
            return Ok(end);
        }
        let address: IpAddr = text.parse().map_err(|_| AskError::NoSuchEnd(text.into()))?;
        let vpc = self.known_vpc(vpc.ok_or(AskError::WhichVpc(address))?)?;
        let gid = Gid::from(address);
        let name = match self.find(vpc.vni, gid) {
            Found::Realised(peer) => &*peer.vnic,
            // Which of the two is asked about makes no difference: neither gets it.
            Found::Desired { vnic, .. } | Found::Contested { vnic, .. } => vnic,
            Found::Unknown => return Err(AskError::Nobody { address, vpc: vpc.name.clone() }),
        };
        let nobody = AskError::Nobody { address, vpc: vpc.name.clone() };
        let end = self.named_end(name).ok_or(nobody)??;
        Ok(End { vpc, gids: vec![gid], ..end })
    }

    /// The vNIC or static endpoint with this name.
    fn named_end(&self, name: &str) -> Option<Result<End<'_>, AskError>> {
        let gids = |addresses: &[IpAddr]| addresses.iter().copied().map(Gid::from).collect::<Vec<_>>();
        let vnic = self.vnic(name).map(|vnic| {
            let mut gids = gids(&vnic.addresses);
            gids.push(Gid::from(vnic.mac.link_local()));
            Ok(End {
                name: &vnic.name,
                host: vnic.host.as_deref(),
                security_groups: &vnic.security_groups,
                reach: if vnic.dedicated_alias.is_some() { Reach::Everybody } else { Reach::Vnics },
                vpc: self.known_vpc(&vnic.vpc)?,
                gids,
            })
        });
        let stranger = || {
            let endpoint = self.static_endpoint(name)?;
            let known = self.known_vpc(&endpoint.vpc).map(|vpc| End {
                name: &endpoint.name,
                host: None,
                security_groups: &endpoint.security_groups,
                reach: Reach::Alone,
                vpc,
                gids: gids(&endpoint.addresses),
            });
            Some(known)
        };
        vnic.or_else(stranger)
    }

    fn known_vpc(&self, name: &str) -> Result<&Vpc, AskError> {
        self.vpc(name).ok_or_else(|| AskError::NoVpc(name.into()))
    }

    /// There and back; of several transports, for the first that may pass.
    fn flows(&self, traffic: Traffic, from: &End<'_>, a: Gid, to: &End<'_>, b: Gid) -> Vec<Flow> {
        let party = |end: &End<'_>, gid| {
            let contested = matches!(self.find(end.vpc.vni, gid), Found::Contested { .. });
            // An address that two claim is nobody's: no group stands behind it.
            Party { vnic: "", gid, groups: if contested { &[] } else { self.groups_of(end.name) } }
        };
        let (one, other) = (party(from, a), party(to, b));
        let judge = |transport: &Transport| {
            vec![self.groups.flow(*transport, one, other), self.groups.flow(*transport, other, one)]
        };
        let all: Vec<Vec<Flow>> = traffic.transports().iter().map(judge).collect();
        let allowed = all.iter().position(|flows| flows.iter().any(Flow::is_allowed));
        all.into_iter().nth(allowed.unwrap_or(0)).unwrap_or_default()
    }

    /// What is in the way beside the rules.
    fn obstacles(&self, from: &End<'_>, a: Gid, to: &End<'_>, b: Gid) -> Vec<String> {
        let mut obstacles = Vec::new();
        if from.vpc.name != to.vpc.name {
            obstacles.push(format!(
                "{} belongs to vpc {} and {} to vpc {}, and networks do not reach one another",
                from.label(),
                from.vpc.name,
                to.label(),
                to.vpc.name
            ));
        }
        match (from.reach, to.reach) {
            (Reach::Alone, Reach::Alone) => {
                obstacles.push("both ends are static endpoints, between which masq has no part".into());
            }
            (Reach::Alone, Reach::Vnics) => obstacles.push(no_alias(from, to)),
            (Reach::Vnics, Reach::Alone) => obstacles.push(no_alias(to, from)),
            _ => {}
        }
        let mut ends = vec![(from, a)];
        if from.name != to.name || a != b {
            ends.push((to, b));
        }
        obstacles.extend(ends.into_iter().filter_map(|(end, gid)| self.obstacle(end, gid)));
        obstacles
    }

    fn obstacle(&self, end: &End<'_>, gid: Gid) -> Option<String> {
        match self.find(end.vpc.vni, gid) {
            Found::Realised(_) => None,
            Found::Desired { vnic, host: Some(host) } => {
                Some(format!("host {host} has not realised vNIC {vnic}"))
            }
            Found::Desired { vnic, host: None } => Some(format!("vNIC {vnic} is assigned to no host")),
            Found::Contested { vnic, other } => {
                Some(format!("both vNIC {vnic} and vNIC {other} claim the address {gid}"))
            }
            Found::Unknown => Some(format!("no vNIC of vpc {} has the address {gid}", end.vpc.name)),
        }
    }
}

impl End<'_> {
    fn explained(&self, address: Gid) -> ExplainedEnd {
        ExplainedEnd {
            vnic: self.name.into(),
            address,
            security_groups: self.security_groups.to_vec(),
            host: self.host.map(Into::into),
        }
    }

    /// What it is, and its name.
    fn label(&self) -> String {
        match self.reach {
            Reach::Alone => format!("static endpoint {}", self.name),
            Reach::Vnics | Reach::Everybody => format!("vNIC {}", self.name),
        }
    }
}

fn no_alias(stranger: &End<'_>, vnic: &End<'_>) -> String {
    format!("{} reaches vNICs with a dedicated alias alone, which {} lacks", stranger.label(), vnic.label())
}

/// The pairs of addresses over which two ends could talk, the one that programs would take first; never empty.
fn pairs(from: &End<'_>, to: &End<'_>) -> Vec<(Gid, Gid)> {
    let all = || from.gids.iter().flat_map(|a| to.gids.iter().map(move |b| (*a, *b)));
    let alike = |(a, b): &(Gid, Gid)| a.ip().is_ipv4() == b.ip().is_ipv4();
    let mut pairs: Vec<_> = all().filter(alike).collect();
    // One link-local address and another one: possible, but the last that anybody would try.
    pairs.sort_by_key(|(a, b)| is_link_local(*a) != is_link_local(*b));
    if pairs.is_empty() {
        let first = |gids: &[Gid]| gids.first().copied().unwrap_or_default();
        pairs.push((first(&from.gids), first(&to.gids)));
    }
    pairs
}

fn is_link_local(gid: Gid) -> bool {
    matches!(gid.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn explained_flow(flow: &Flow) -> ExplainedFlow {
    ExplainedFlow {
        from: flow.from,
        to: flow.to,
        allowed: flow.is_allowed(),
        egress: flow.egress.by.to_string(),
        egress_allowed: flow.egress.action == Action::Allow,
        ingress: flow.ingress.by.to_string(),
        ingress_allowed: flow.ingress.action == Action::Allow,
    }
}
