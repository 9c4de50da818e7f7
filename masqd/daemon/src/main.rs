//! The host daemon of masq.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use masq_driver::{DriverError, EventSink, RnicDriver};
use masq_model::DesiredState;
use masq_rnic::transport::Congestion;
use masq_rnic::{FaultInjection, Rnic, RnicConfig, UdpSockets};
use masq_types::Features;
use masqd::api::server::Patience;
use masqd::cli::Args;
use masqd::store::OpenError;
use masqd::{Config, Masqd, StartError};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

fn main() -> ExitCode {
    let Some(args) = Args::read(std::env::args_os()).unwrap_or_else(|e| e.exit()) else {
        println!("{:#}", masqd::api::openapi::json());
        return ExitCode::SUCCESS;
    };
    if let Err(e) = masqd::log::begin(&args.log, args.log_format) {
        eprintln!("masqd: {e}");
        return ExitCode::from(2);
    }
    end_with_the_rnic();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            error!("masqd cannot start: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), StartError> {
    let apply = args.apply.as_deref().map(read_desired_state).transpose()?;
    let config = Config {
        tls: args.tls(),
        host: args.host,
        store: args.store.with_files(args.etcd).map_err(OpenError::from)?,
        run_dir: args.run_dir,
        apply,
        patience: Patience::default(),
        features: if args.standard { Features::NONE } else { masq_rnic::limits::FEATURES },
    };
    let (faults, congestion) = (args.inject_faults, args.congestion);
    if let Some(faults) = &faults {
        warn!("received packets suffer on purpose: {faults:?}");
    }
    let network = Arc::new(masqd::segmentation::choose(args.udp));
    let engines = args.engines;
    let masqd = Masqd::start(config, |sink| start_rnic(sink, network, faults, engines, congestion))?;
    let caught = masqd.runtime().block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => Ok::<_, std::io::Error>("SIGTERM"),
            _ = interrupt.recv() => Ok("SIGINT"),
        }
    });
    info!("ending on {}", caught.map_err(StartError::Threads)?);
    masqd.shutdown();
    Ok(())
}

/// An RNIC that stopped in the middle of something serves nobody, and nothing can be said of its guests' memory any
/// more: masqd ends with it, so that whoever started masqd starts it anew, and guests find another epoch.
fn end_with_the_rnic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if std::thread::current().name() == Some(masq_rnic::THREAD_NAME) {
            error!("the RNIC has failed, and masqd ends with it: {panic}");
            std::process::abort();
        }
    }));
}

fn start_rnic(
    sink: Arc<dyn EventSink>,
    network: Arc<UdpSockets>,
    faults: Option<FaultInjection>,
    engines: u16,
    congestion: Congestion,
) -> Result<Arc<dyn RnicDriver>, DriverError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|e| DriverError::Os {
        what: "no random numbers for keys".into(),
        source: std::io::Error::other(e),
    })?;
    let mut config = RnicConfig { seed, network, faults, engines, ..RnicConfig::default() };
    config.transport.congestion = congestion;
    Ok(Arc::new(Rnic::start(config, sink)?))
}

fn read_desired_state(path: &Path) -> Result<DesiredState, StartError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| StartError::Read { path: path.to_owned(), source })?;
    let parsed = if text.trim_start().starts_with('{') {
        DesiredState::from_json(&text)
    } else {
        DesiredState::from_toml(&text)
    };
    parsed.map_err(|problems| StartError::DesiredState {
        path: path.to_owned(),
        reply: masqd::api::problem_reply(&problems),
    })
}
