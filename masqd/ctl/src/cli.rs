//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand, ValueEnum};

use crate::capture::Capture;
use crate::connect::{Server, Target, tls};
use crate::failure::Failure;
use crate::kinds::KINDS;
use crate::object;
use crate::output::Output;
use crate::qp::QpAction;
use crate::units::parse_interval;

const ABOUT: &str = "Controls masqd, the host daemon of masq: RDMA for tenants' VMs";

const AFTER_HELP: &str = "\
Rates are in bit/s, bursts in bits, with decimal multiples: 100M, 2.5G, 50Mbit, 72kbit.
Sizes are in bytes: 64Mi and 64MiB are binary multiples, 64M and 64MB decimal ones.

Exit status:
  0  done
  1  masqd refused, or it failed
  2  wrong usage, or a file that cannot be read
  3  masqd cannot be reached, or did not answer
  4  written, but not realised within --wait
  5  explain: the connection is denied";

/// What every command takes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// masqd's Unix socket.
    #[arg(
        long,
        value_name = "PATH",
        env = "MASQD_SOCKET",
        hide_env_values = true,
        default_value = "/run/masqd/masqd.sock",
        global = true
    )]
    socket: PathBuf,

    /// A masqd that listens on TCP with mutual TLS, in place of the socket; needs --cert, --key and --ca.
    #[arg(
        long,
        value_name = "https://HOST:PORT",
        env = "MASQD_SERVER",
        hide_env_values = true,
        global = true
    )]
    server: Option<Server>,

    /// Certificate of this client, with its chain (PEM).
    #[arg(long, value_name = "FILE", env = "MASQD_CERT", hide_env_values = true, global = true)]
    cert: Option<PathBuf>,

    /// Private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", env = "MASQD_KEY", hide_env_values = true, global = true)]
    key: Option<PathBuf>,

    /// Certificate of the CA that signed the server's (PEM).
    #[arg(long, value_name = "FILE", env = "MASQD_CA", hide_env_values = true, global = true)]
    ca: Option<PathBuf>,

    /// How to write the answer: for people, or for programs as masqd's API gives it.
    #[arg(short, long, value_enum, default_value_t = Output::Table, global = true)]
    pub output: Output,
}

/// What is not about a single object.
#[derive(Subcommand, Clone, Debug)]
pub enum Action {
    /// Create and update what a declarative file says, in one transaction.
    Apply {
        /// The file, TOML or JSON; "-" reads standard input.
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Also delete what the file lacks.
        #[arg(long)]
        prune: bool,
        /// Only tell what would change.
        #[arg(long, conflicts_with = "wait")]
        dry_run: bool,
        #[command(flatten)]
        wait: Wait,
    },
    /// Write the whole desired state, as JSON that apply takes.
    Export,
    /// Show how the host and its vNICs are.
    Status,
    /// List the connections of this host's guests: who talks to whom, and what allowed it.
    Connections {
        /// Only those of this vNIC.
        #[arg(long, value_name = "NAME")]
        vnic: Option<String>,
        /// Only those of this network.
        #[arg(long, value_name = "NAME")]
        vpc: Option<String>,
    },
    /// Tell whether two vNICs may be connected, or exchange datagrams, and which rules decide. Exit status 0 allowed, 5 denied.
    Explain {
        /// A vNIC, or a virtual address.
        from: String,
        /// The other one.
        to: String,
        /// The network in which addresses are meant.
        #[arg(long, value_name = "NAME")]
        vpc: Option<String>,
        /// The transport service [default: rc]; ud is about what the first one sends, cm about the management datagrams of rdma_cm.
        #[arg(long)]
        transport: Option<TransportService>,
    },
    /// Show what each vNIC of this host sends and receives.
    Top {
        /// Seconds between two samples, 0.1 to 3600.
        #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_interval)]
        interval: Duration,
        /// Show one interval, and end.
        #[arg(long)]
        once: bool,
    },
    /// Show how queue pairs of this host's guests are.
    Qp {
        #[command(subcommand)]
        action: QpAction,
    },
    /// Show the paths of queue pairs of this host's guests that use several.
    Paths {
        /// Only those of this vNIC.
        vnic: Option<String>,
        /// Only those in this network.
        #[arg(long, value_name = "NAME")]
        vpc: Option<String>,
    },
    /// Write the packets of a queue pair to a file, for Wireshark.
    Capture(Capture),
    /// Show what the host's RNIC has counted.
    Counters,
    /// Write a script that completes masqctl's command lines in a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// The option that lets a write wait.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// How long at most, in seconds.
    pub seconds: u16,
}

impl Args for Wait {
    fn augment_args(command: Command) -> Command {
        command.arg(object::wait_arg())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Wait {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Wait { seconds: object::wait_of(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A transport service, or what sets all of them up.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum TransportService {
    Rc,
    Uc,
    Ud,
    Cm,
}

impl TransportService {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            TransportService::Rc => "rc",
            TransportService::Uc => "uc",
            TransportService::Ud => "ud",
            TransportService::Cm => "cm",
        }
    }
}

/// A shell that completes command lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl From<Shell> for clap_complete::Shell {
    fn from(shell: Shell) -> clap_complete::Shell {
        match shell {
            Shell::Bash => clap_complete::Shell::Bash,
            Shell::Zsh => clap_complete::Shell::Zsh,
            Shell::Fish => clap_complete::Shell::Fish,
        }
    }
}

/// The whole definition.
pub fn command() -> Command {
    let command = Command::new("masqctl")
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(AFTER_HELP)
        .max_term_width(100)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(KINDS.iter().map(object::command));
    // Last, as the derived types bring descriptions of themselves.
    Action::augment_subcommands(Global::augment_args(command)).about(ABOUT).long_about(None)
}

impl Global {
    /// Where to find masqd: what the command line says before what the environment says, and a server before a socket.
    pub fn target(self, matches: &ArgMatches) -> Result<Target, Failure> {
        let told = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        if told("socket") && told("server") {
            return Err(Failure::Usage("masqd listens at --socket or at --server, not at both".into()));
        }
        let Some(server) = self.server.filter(|_| !told("socket")) else {
            return Ok(Target::Socket(self.socket));
        };
        let (Some(cert), Some(key), Some(ca)) = (self.cert, self.key, self.ca) else {
            return Err(Failure::Usage("--server needs --cert, --key and --ca".into()));
        };
        Ok(Target::Server(server, tls(&cert, &key, &ca)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_kind_has_its_verbs() {
        let command = command();
        for spec in KINDS {
            let verbs: Vec<&str> = command
                .find_subcommand(spec.word)
                .unwrap()
                .get_subcommands()
                .map(Command::get_name)
                .collect();
            let expected: &[&str] = if spec.kind.is_desired() {
                &["show", "list", "create", "set", "delete"]
            } else {
                &["show", "list"]
            };
            assert_eq!(verbs, expected, "{}", spec.word);
        }
    }

    fn target(args: &[&str]) -> Result<Target, Failure> {
        let args = [&["masqctl", "status"], args].concat();
        let matches = command().try_get_matches_from(args).unwrap();
        Global::from_arg_matches(&matches).unwrap().target(&matches)
    }

    #[test]
    fn a_server_needs_certificates_and_excludes_a_socket() {
        assert!(
            matches!(target(&["--socket", "/s"]), Ok(Target::Socket(p)) if p == std::path::Path::new("/s"))
        );
        assert!(matches!(target(&["--server", "https://h:1"]), Err(Failure::Usage(_))));
        assert!(matches!(target(&["--server", "https://h:1", "--socket", "/s"]), Err(Failure::Usage(_))));
        let files =
            ["--server", "https://h:1", "--cert", "/nowhere", "--key", "/nowhere", "--ca", "/nowhere"];
        assert!(matches!(target(&files), Err(Failure::Identity(_))));
    }
}
