//! masqctl: what people and scripts ask of a host's masqd.

mod client;
mod show;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use client::{Client, ClientError};
use masq_model::api::Applied;
use masq_model::{Host, Rule, Vnic, Vpc};
use serde::Deserialize;

/// Controls masqd, the host daemon of masq, through its socket.
///
/// Exit status: 0 done, 1 masqd refused or failed, 2 wrong usage, 3 masqd cannot be reached.
#[derive(Parser, Debug)]
#[command(name = "masqctl", version, max_term_width = 100)]
struct Args {
    /// masqd's socket.
    #[arg(
        long,
        value_name = "PATH",
        env = "MASQD_SOCKET",
        default_value = "/run/masqd/masqd.sock",
        global = true
    )]
    socket: PathBuf,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Replace the desired state of all hosts by what a file says.
    Apply {
        /// The file, TOML or JSON; "-" reads standard input.
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Only tell what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Show how the host and its vNICs are.
    Status {
        /// How to write it.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// List objects.
    Get {
        /// Of what kind.
        #[arg(value_enum)]
        kind: Kind,
        /// How to write them.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// List the connections of this host's guests.
    Connections {
        /// How to write them.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Show what the host's RNIC has counted.
    Counters {
        /// How to write it.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Machines that run masqd.
    Hosts,
    /// Tenants' networks.
    Vpcs,
    /// Virtual NICs.
    Vnics,
    /// Who may connect to whom.
    Rules,
    /// vNICs that a host has realised.
    Endpoints,
}

/// The desired state, as masqd gives it.
#[derive(Deserialize, Debug)]
struct Desired {
    host: Vec<Host>,
    vpc: Vec<Vpc>,
    vnic: Vec<Vnic>,
    rule: Vec<Rule>,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write the output: {0}")]
    Write(#[from] std::io::Error),
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Client(ClientError::Connect { .. }) => 3,
            Failure::Read { .. } => 2,
            _ => 1,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("masqctl: cannot start: {e}");
            return ExitCode::from(1);
        }
    };
    match runtime.block_on(run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe has had enough.
        Err(Failure::Write(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("masqctl: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}

async fn run(args: Args) -> Result<(), Failure> {
    let client = Client::new(&args.socket);
    match args.command {
        Command::Apply { file, dry_run } => {
            let text = read(&file).map_err(|source| Failure::Read { path: file.clone(), source })?;
            let json = text.trim_start().starts_with('{');
            let content_type = if json { "application/json" } else { "application/toml" };
            let path = if dry_run { "/v1/desired?dry_run=true" } else { "/v1/desired" };
            let applied: Applied = client.put(path, content_type, text).await?;
            show::applied(&applied)
        }
        Command::Status { output } => show::status(&client.get("/v1/status").await?, output),
        Command::Get { kind: Kind::Endpoints, output } => {
            show::endpoints(&client.get::<Vec<_>>("/v1/endpoints").await?, output)
        }
        Command::Get { kind, output } => {
            let desired: Desired = client.get("/v1/desired").await?;
            match kind {
                Kind::Hosts => show::hosts(&desired.host, output),
                Kind::Vpcs => show::vpcs(&desired.vpc, output),
                Kind::Vnics => show::vnics(&desired.vnic, output),
                Kind::Rules | Kind::Endpoints => show::rules(&desired.rule, output),
            }
        }
        Command::Connections { output } => {
            show::connections(&client.get::<Vec<_>>("/v1/connections").await?, output)
        }
        Command::Counters { output } => show::counters(&client.get("/v1/counters").await?, output),
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }
}
