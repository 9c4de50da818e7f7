//! The command line of masqd.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use masq_rnic::FaultInjection;
use masq_rnic::transport::Congestion;

use crate::api::tls::TlsConfig;
use crate::segmentation::UdpMode;
use crate::store::{EtcdFiles, StoreAddress};

/// The host daemon of masq: gives tenants' VMs a virtual RDMA device.
///
/// For each vNIC that the desired state places on this host, masqd listens on RUN_DIR/<vnic>.sock for a
/// vhost-user front end (QEMU's vhost-user-rdma-pci), and on RUN_DIR/masqd.sock for masqctl.
#[derive(Parser, Debug)]
#[command(name = "masqd", version, max_term_width = 100)]
pub struct Args {
    /// This host's name in the desired state.
    #[arg(long, value_name = "NAME")]
    pub host: String,

    /// Where desired and realised state are kept: embedded:PATH (a file; for one host alone) or
    /// etcd:http://HOST:PORT[,http://HOST:PORT...] (for several hosts; https:// with --etcd-ca).
    #[arg(long, value_name = "STORE")]
    pub store: StoreAddress,

    /// Certificates and passwords for etcd.
    #[command(flatten)]
    pub etcd: EtcdFiles,

    /// Directory of the sockets; created if it is missing.
    #[arg(long, value_name = "DIR", default_value = "/run/masqd")]
    pub run_dir: PathBuf,

    /// Desired state (TOML or JSON) to put into the store at start, replacing what is there.
    #[arg(long, value_name = "FILE")]
    pub apply: Option<PathBuf>,

    /// Where the API can be reached over the network as well: with TLS, and only by clients that have a certificate.
    #[arg(long, value_name = "ADDR:PORT", requires_all = ["api_cert", "api_key", "api_client_ca"])]
    pub api_listen: Option<SocketAddr>,

    /// Certificate of the API (PEM; with those above it, up to the authority).
    #[arg(long, value_name = "FILE", requires = "api_listen")]
    pub api_cert: Option<PathBuf>,

    /// Private key of that certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "api_listen")]
    pub api_key: Option<PathBuf>,

    /// Authorities (PEM) whose certificates make a client an administrator.
    #[arg(long, value_name = "FILE", requires = "api_listen")]
    pub api_client_ca: Option<PathBuf>,

    /// Engine threads of the software RNIC, 1 to 64. vNICs are spread over them, and move when one has too much to do: more than one
    /// pays when several vNICs are busy, and as many processors are free.
    #[arg(
        long,
        value_name = "N",
        env = "MASQD_ENGINES",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pub engines: u16,

    /// How datagrams leave and come.
    #[arg(long, value_enum, default_value_t = UdpMode::Auto)]
    pub udp: UdpMode,

    /// What decides how fast connected queue pairs send to other hosts: swift (the delay of the network), dcqcn (ECN marks and CNPs)
    /// or none.
    #[arg(long, value_name = "ALGORITHM", default_value = "swift")]
    pub congestion: Congestion,

    /// What packets from the underlay suffer on purpose, in tests: drop=P,duplicate=P,reorder=P,corrupt=P,ecn=P,delay=MICROSECONDS,seed=N.
    #[arg(long, value_name = "FAULTS", hide = true)]
    pub inject_faults: Option<FaultInjection>,

    /// Use nothing beyond standard RoCEv2, as with peers that are not masq, in tests: no selective repair, no several paths.
    #[arg(long, hide = true)]
    pub standard: bool,

    /// Print the description of the API (OpenAPI 3.1, JSON), and end.
    #[arg(long, exclusive = true)]
    pub openapi: bool,

    /// Form of the log, which goes to standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// What to log: a level (error, warn, info, debug, trace) or filters such as masqd=debug.
    #[arg(long, value_name = "FILTER", env = "MASQD_LOG", default_value = "info")]
    pub log: String,
}

impl Args {
    /// What the command line says; nothing when it only asks for the description of the API.
    pub fn read<T: Into<OsString> + Clone>(
        line: impl IntoIterator<Item = T>,
    ) -> Result<Option<Args>, clap::Error> {
        let matches = Args::command().try_get_matches_from(line)?;
        if matches.get_flag("openapi") {
            return Ok(None);
        }
        Args::from_arg_matches(&matches).map(Some)
    }

    /// How the API can be reached over the network, if it can be.
    pub fn tls(&self) -> Option<TlsConfig> {
        Some(TlsConfig {
            listen: self.api_listen?,
            cert: self.api_cert.clone()?,
            key: self.api_key.clone()?,
            client_ca: self.api_client_ca.clone()?,
        })
    }
}

/// Forms of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serving<'a>(args: impl Iterator<Item = &'a &'a str>) -> Result<Args, clap::Error> {
        Args::read(args).map(Option::unwrap)
    }

    #[test]
    fn the_description_is_printed_alone() {
        assert!(Args::read(["masqd", "--openapi"]).unwrap().is_none());
        for wrong in [&["masqd", "--openapi", "--host", "h"][..], &["masqd"], &["masqd", "--host", "h"]] {
            assert!(Args::read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn nothing_listens_on_the_network_without_tls() {
        let parse = |more: &[&str]| {
            let args = ["masqd", "--host", "h", "--store", "embedded:x"].iter().chain(more);
            serving(args).map(|a| a.tls())
        };
        assert_eq!(parse(&[]).unwrap(), None);
        let all = ["--api-listen=[::1]:1", "--api-cert=c", "--api-key=k", "--api-client-ca=a"];
        let tls = parse(&all).unwrap().unwrap();
        assert_eq!((tls.listen, tls.client_ca), ("[::1]:1".parse().unwrap(), "a".into()));
        for missing in 0..all.len() {
            let some: Vec<&str> =
                all.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, a)| *a).collect();
            assert!(parse(&some).is_err(), "{some:?}");
        }
    }

    #[test]
    fn ways_into_etcd() {
        let parse = |store: &str, more: &[&str]| {
            let args = ["masqd", "--host", "h", "--store", store];
            serving(args.iter().chain(more)).map(|a| a.store.with_files(a.etcd))
        };
        let all = ["--etcd-ca=a", "--etcd-cert=c", "--etcd-key=k", "--etcd-user=u", "--etcd-password-file=p"];
        let StoreAddress::Etcd(config) = parse("etcd:https://a:1", &all).unwrap().unwrap() else {
            panic!("it is an etcd")
        };
        assert_eq!((config.files.key, config.files.user), (Some("k".into()), Some("u".into())));
        for missing in
            ["--etcd-ca=a", "--etcd-cert=c", "--etcd-key=k", "--etcd-user=u", "--etcd-password-file=p"]
        {
            let some: Vec<&str> = all.iter().copied().filter(|a| *a != missing).collect();
            assert!(parse("etcd:https://a:1", &some).is_err(), "{some:?}");
        }
        assert!(parse("etcd:https://a:1", &all[..1]).unwrap().is_ok());
        assert!(parse("embedded:x", &all[..1]).unwrap().is_err());
    }

    #[test]
    fn one_engine_to_sixty_four() {
        let args = ["masqd", "--host", "h", "--store", "embedded:x", "--engines"];
        for (engines, fits) in [("0", false), ("1", true), ("64", true), ("65", false)] {
            assert_eq!(serving(args.iter().chain(&[engines])).is_ok(), fits, "{engines}");
        }
    }
}
