//! The log, on standard error.

use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// Noise of libraries: guests could fill the log through the first.
const QUIET: [&str; 3] = ["virtio_queue=off", "h2=warn", "netlink_proto=warn"];

/// Why logging cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter has a mistake.
    #[error("--log: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Somebody logs already.
    #[error("cannot begin logging: {0}")]
    Taken(Box<dyn std::error::Error + Send + Sync>),
}

/// Begins logging.
pub fn begin(filter: &str, format: LogFormat) -> Result<(), LogError> {
    let mut filter = EnvFilter::builder().parse(filter)?;
    for directive in QUIET {
        filter = filter.add_directive(directive.parse()?);
    }
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).with_target(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    }
    .map_err(LogError::Taken)
}
