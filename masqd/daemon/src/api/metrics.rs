//! What masqd has counted, for Prometheus: in base units, and never by queue pair.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE as CONTENT_TYPE_HEADER;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use masq_model::api::{Traffic, VnicState, VnicStatus};
use masq_model::{Kind, Object};
use masq_policy::quota::Resource;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

use super::Api;
use super::reply::Refused;
use crate::counts::VnicCounts;
use crate::inbox::Report;

/// The Prometheus text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

type Seconds = Counter<f64, AtomicU64>;
type RealGauge = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfVnic {
    vpc: String,
    vnic: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResource {
    vpc: String,
    vnic: String,
    resource: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRefusal {
    vpc: String,
    vnic: String,
    verb: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPathChange {
    /// `down` or `up`.
    to: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCounter {
    counter: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfVnicCounter {
    vpc: String,
    vnic: String,
    counter: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    method: &'static str,
    route: String,
    code: u16,
}

/// The requests that have been answered.
#[derive(Clone, Debug, Default)]
pub struct Requests(Family<OfRequest, Counter>);

/// Counts a request when it has been answered.
pub async fn count(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = method(request.method());
    let response = next.run(request).await;
    let code = response.status().as_u16();
    api.requests.0.get_or_create(&OfRequest { method, route, code }).inc();
    response
}

/// Its name; clients can think of any number of others.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// Everything, as text.
pub async fn metrics(State(api): State<Arc<Api>>) -> Result<Response, Refused> {
    let reports = api.devices.report(&api.host, &api.health, &api.run_dir).await;
    // An RNIC that tells nothing has nothing counted, but the rest is worth telling.
    let counters = api.rnic_counters().await.unwrap_or_default();
    let mut metrics = Metrics::new();
    metrics.host(&api);
    metrics.vnics(&api, &reports);
    for (counter, n) in counters {
        metrics.rnic.get_or_create(&OfCounter { counter }).inc_by(n);
    }
    let mut text = String::new();
    let failed = |e| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, e);
    prometheus_text::encode(&mut text, &metrics.registry).map_err(failed)?;
    Ok(([(CONTENT_TYPE_HEADER, CONTENT_TYPE)], text).into_response())
}

/// What is told, filled in for each answer.
struct Metrics {
    registry: Registry,
    rnic: Family<OfCounter, Counter>,
}

impl Metrics {
    fn new() -> Metrics {
        let mut metrics = Metrics { registry: Registry::with_prefix("masqd"), rnic: Family::default() };
        let help =
            "What the RNIC has counted; the names are those of Linux' hw_counters where they exist there";
        metrics.registry.register("rnic_events", help, metrics.rnic.clone());
        metrics
    }

    /// Adds a metric; tells where its values go.
    fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.registry.register(name, help, metric.clone());
        metric
    }

    fn host(&mut self, api: &Api) {
        self.registry.register(
            "api_requests",
            "Requests of the API that have been answered",
            api.requests.0.clone(),
        );
        let ready: Gauge = self.add("ready", "Whether masqd can do all its work: 1 or 0");
        ready.set(api.health.problems().is_empty().into());
        let age: RealGauge = self.add("store_silence_seconds", "How long ago the store last answered");
        age.set(api.host.freshness.age().as_secs_f64());
        let help = "Paths to other hosts that have gone down, or up again";
        let changes: Family<OfPathChange, Counter> = self.add("path_changes", help);
        let (down, up) = api.host.router.path_changes();
        for (to, n) in [("down", down), ("up", up)] {
            changes.get_or_create(&OfPathChange { to }).inc_by(n);
        }
        let directory = api.host.directory.read();
        let gauge: Gauge = self.add("store_revision", "Revision of the store that masqd has seen");
        let signed = |revision: u64| i64::try_from(revision).unwrap_or(i64::MAX);
        gauge.set(signed(directory.revision()));
        if let Some(Object::HostState(state)) = directory.get(Kind::HostState, &api.host.name) {
            let help = "Revision of the store up to which everything desired is in force on this host";
            let gauge: Gauge = self.add("realised_revision", help);
            gauge.set(signed(state.realised_revision));
        }
    }

    fn vnics(&mut self, api: &Api, reports: &[(VnicStatus, Report)]) {
        let objects: Family<OfResource, Gauge> =
            self.add("vnic_objects", "Objects that the vNIC's guest has");
        let rnic_objects: Family<OfResource, Gauge> =
            self.add("vnic_rnic_objects", "Objects of the vNIC that the RNIC has, by its own books");
        let quotas: Family<OfResource, Gauge> =
            self.add("vnic_quota", "Most objects that the vNIC's guest may have");
        let connections: Family<OfVnic, Gauge> =
            self.add("vnic_connections", "Connections of the vNIC's queue pairs");
        let peers: Family<OfVnic, Gauge> =
            self.add("vnic_peers", "Peers of the vNIC's datagrams that the RNIC was told of");
        let events: Family<OfVnicCounter, Counter> = self.add(
            "vnic_events",
            "What the vNIC's queue pairs have counted since the guest was attached, by the names of rnic_events",
        );
        let traffic = VnicTraffic::new(self);
        let counts = VnicCounters::new(self);
        let directory = api.host.directory.read();
        let mut counted = api.host.counts.of(|name| reports.iter().any(|(status, _)| status.name == name));
        for (status, report) in reports {
            let of = OfVnic { vpc: status.vpc.clone(), vnic: status.name.clone() };
            let most = directory.settings(&status.name).quotas;
            let (session, rnic) = (&report.objects, &report.rnic_objects);
            // Protection domains and XRC domains are numbers to the RNIC, not objects.
            for (resource, quota, used, in_rnic) in [
                ("contexts", Resource::Contexts, session.contexts, Some(rnic.contexts)),
                ("pds", Resource::Pds, session.pds, None),
                ("mrs", Resource::Mrs, session.mrs, Some(rnic.mrs)),
                ("cqs", Resource::Cqs, session.cqs, Some(rnic.cqs)),
                ("qps", Resource::Qps, session.qps, Some(rnic.qps)),
                ("srqs", Resource::Srqs, session.srqs, Some(rnic.srqs)),
                ("mws", Resource::Mws, session.mws, Some(rnic.mws)),
                ("xrcds", Resource::Xrcds, session.xrcds, None),
            ] {
                let of = OfResource { vpc: of.vpc.clone(), vnic: of.vnic.clone(), resource };
                let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
                quotas.get_or_create(&of).set(signed(most.get(quota)));
                objects.get_or_create(&of).set(signed(used));
                if let Some(n) = in_rnic {
                    rnic_objects.get_or_create(&of).set(signed(n));
                }
            }
            let n = i64::try_from(report.connections.len()).unwrap_or(i64::MAX);
            connections.get_or_create(&of).set(n);
            peers.get_or_create(&of).set(i64::try_from(report.peers).unwrap_or(i64::MAX));
            // Without a guest there is no traffic that could be counted.
            if matches!(status.state, VnicState::Connected | VnicState::Active) {
                traffic.set(&of, &report.traffic);
                for (counter, n) in &report.events {
                    let of = OfVnicCounter { vpc: of.vpc.clone(), vnic: of.vnic.clone(), counter };
                    events.get_or_create(&of).inc_by(*n);
                }
            }
            if let Some(c) = counted.remove(&status.name) {
                counts.set(&of, &c);
            }
        }
    }
}

struct VnicTraffic {
    tx_bytes: Family<OfVnic, Counter>,
    rx_bytes: Family<OfVnic, Counter>,
    tx_packets: Family<OfVnic, Counter>,
    rx_packets: Family<OfVnic, Counter>,
    limited: Family<OfVnic, Seconds>,
}

impl VnicTraffic {
    fn new(metrics: &mut Metrics) -> VnicTraffic {
        VnicTraffic {
            tx_bytes: metrics.add("vnic_tx_bytes", "Bytes of IP packets sent since the guest was attached"),
            rx_bytes: metrics
                .add("vnic_rx_bytes", "Bytes of IP packets received since the guest was attached"),
            tx_packets: metrics.add("vnic_tx_packets", "Packets sent since the guest was attached"),
            rx_packets: metrics.add("vnic_rx_packets", "Packets received since the guest was attached"),
            limited: metrics.add(
                "vnic_rate_limited_seconds",
                "Time for which there was something to send, but the rate did not allow it",
            ),
        }
    }

    fn set(&self, of: &OfVnic, traffic: &Traffic) {
        self.tx_bytes.get_or_create(of).inc_by(traffic.tx_bytes);
        self.rx_bytes.get_or_create(of).inc_by(traffic.rx_bytes);
        self.tx_packets.get_or_create(of).inc_by(traffic.tx_packets);
        self.rx_packets.get_or_create(of).inc_by(traffic.rx_packets);
        self.limited.get_or_create(of).inc_by(traffic.limited_ns as f64 / 1e9);
    }
}

struct VnicCounters {
    commands: Family<OfVnic, Counter>,
    revocations: Family<OfVnic, Counter>,
    refusals: Family<OfRefusal, Counter>,
}

impl VnicCounters {
    fn new(metrics: &mut Metrics) -> VnicCounters {
        VnicCounters {
            commands: metrics.add("vnic_commands", "Control commands of the vNIC's guests"),
            revocations: metrics
                .add("vnic_revocations", "Connections cut because they were no longer allowed"),
            refusals: metrics.add("vnic_refusals", "Control commands refused, by verb and reason"),
        }
    }

    fn set(&self, of: &OfVnic, counts: &VnicCounts) {
        self.commands.get_or_create(of).inc_by(counts.commands);
        self.revocations.get_or_create(of).inc_by(counts.revocations);
        for ((verb, reason), n) in &counts.refusals {
            let of = OfRefusal { vpc: of.vpc.clone(), vnic: of.vnic.clone(), verb, reason };
            self.refusals.get_or_create(&of).inc_by(*n);
        }
    }
}
