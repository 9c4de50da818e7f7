//! masqctl: what people and scripts ask of a host's masqd.

mod capture;
mod cli;
mod client;
mod connect;
mod explain;
mod failure;
mod flags;
mod form;
mod kinds;
mod object;
mod output;
mod qp;
mod show;
mod table;
mod top;
mod units;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{ArgMatches, FromArgMatches};
use cli::{Action, Global, Shell};
use client::{Call, Client, ClientError};
use failure::{Failure, Outcome, check_realised};
use hyper::Method;
use masq_model::api::{Applied, ConnectionStatus, Explanation, QueuePair, Traffic};
use output::{Output, print, print_json};
use qp::QpAction;
use serde::Deserialize;
use serde_json::Value;

fn main() -> ExitCode {
    let matches = cli::command().get_matches();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("masqctl: cannot start: {e}");
            return ExitCode::from(1);
        }
    };
    match runtime.block_on(run(&matches)) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Denied) => ExitCode::from(5),
        // The reader of a pipe has had enough.
        Err(Failure::Write(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("masqctl: {e}");
            ExitCode::from(e.exit_status())
        }
    }
}

async fn run(matches: &ArgMatches) -> Result<Outcome, Failure> {
    let wrong = |e: clap::Error| Failure::Usage(e.to_string());
    let global = Global::from_arg_matches(matches).map_err(wrong)?;
    let output = global.output;
    if let Some((word, matches_of_kind)) = matches.subcommand()
        && let Some(spec) = kinds::by_word(word)
    {
        let client = Client::new(global.target(matches)?);
        object::run(&client, spec, matches_of_kind, output).await?;
        return Ok(Outcome::Done);
    }
    let action = Action::from_arg_matches(matches).map_err(wrong)?;
    if let Action::Completion { shell } = action {
        completion(shell)?;
        return Ok(Outcome::Done);
    }
    act(&Client::new(global.target(matches)?), action, output).await
}

async fn act(client: &Client, action: Action, output: Output) -> Result<Outcome, Failure> {
    match action {
        Action::Apply { file, prune, dry_run, wait } => {
            apply(client, &file, prune, dry_run, wait.seconds, output).await?;
        }
        Action::Export => print_json(&client.call::<Value>(Call::get(&["desired"])).await?)?,
        Action::Status => answer(client, Call::get(&["status"]), output, show::status).await?,
        Action::Connections { vnic, vpc } => {
            let call = Call::get(&["connections"]).query_if("vnic", vnic.as_deref());
            let text = |c: &Vec<ConnectionStatus>| show::connections(c, now_unix_seconds());
            answer(client, call.query_if("vpc", vpc.as_deref()), output, text).await?;
        }
        Action::Qp { action } => queue_pairs(client, action, output).await?,
        Action::Paths { vnic, vpc } => paths(client, vnic, vpc, output).await?,
        Action::Capture(wanted) => capture::run(client, &wanted).await?,
        Action::Counters => answer(client, Call::get(&["counters"]), output, show::counters).await?,
        Action::Explain { from, to, vpc, transport } => {
            let call = Call::get(&["explain"]).query("from", &from).query("to", &to);
            let call =
                call.query_if("vpc", vpc.as_deref()).query_if("transport", transport.map(|t| t.name()));
            let reply: Value = client.call(call).await?;
            let explanation = Explanation::deserialize(&reply).map_err(ClientError::from)?;
            match output {
                Output::Json => print_json(&reply)?,
                Output::Table => print(explain::text(&explanation))?,
            }
            return Ok(if explanation.allowed { Outcome::Done } else { Outcome::Denied });
        }
        Action::Top { interval, once } => top(client, interval, once, output).await?,
        Action::Completion { shell } => completion(shell)?,
    }
    Ok(Outcome::Done)
}

async fn queue_pairs(client: &Client, action: QpAction, output: Output) -> Result<(), Failure> {
    let (vnic, vpc) = match action {
        QpAction::Show { vnic: Some(vnic), qpn: Some(qpn) } => {
            let call = Call::get(&["queue-pairs", &vnic, &qpn.to_string()]);
            return answer(client, call, output, |q: &QueuePair| qp::single(q, now_unix_seconds())).await;
        }
        QpAction::Show { vnic, .. } => (vnic, None),
        QpAction::List { vnic, vpc } => (vnic, vpc),
    };
    let call = Call::get(&["queue-pairs"]).query_if("vnic", vnic.as_deref()).query_if("vpc", vpc.as_deref());
    answer(client, call, output, |all: &Vec<QueuePair>| qp::list(all)).await
}

async fn paths(
    client: &Client,
    vnic: Option<String>,
    vpc: Option<String>,
    output: Output,
) -> Result<(), Failure> {
    let call = Call::get(&["queue-pairs"]).query_if("vnic", vnic.as_deref()).query_if("vpc", vpc.as_deref());
    answer(client, call, output, |all: &Vec<QueuePair>| qp::paths(all, now_unix_seconds())).await
}

/// Prints what masqd answers, as it stands or made readable.
async fn answer<T: for<'de> Deserialize<'de>>(
    client: &Client,
    call: Call,
    output: Output,
    text: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    let reply: Value = client.call(call).await?;
    match output {
        Output::Json => print_json(&reply),
        Output::Table => print(text(&T::deserialize(&reply).map_err(ClientError::from)?)),
    }
}

async fn apply(
    client: &Client,
    file: &Path,
    prune: bool,
    dry_run: bool,
    wait_seconds: u16,
    output: Output,
) -> Result<(), Failure> {
    let text = read(file).map_err(|source| Failure::Read { path: file.into(), source })?;
    let json = text.trim_start().starts_with('{');
    let content_type = if json { "application/json" } else { "application/toml" };
    let call = Call::new(Method::POST, &["apply"])
        .query("prune", &prune.to_string())
        .query("dry_run", &dry_run.to_string())
        .wait(wait_seconds)
        .body(content_type, text);
    let reply: Value = client.call(call).await?;
    let applied = Applied::deserialize(&reply).map_err(ClientError::from)?;
    match output {
        Output::Json => print_json(&reply)?,
        Output::Table => print(show::applied(&applied))?,
    }
    match &applied.status {
        Some(status) => check_realised("what was applied", wait_seconds, status),
        None => Ok(()),
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    }
}

async fn top(client: &Client, interval: Duration, once: bool, output: Output) -> Result<(), Failure> {
    let sample = || async {
        let traffic: Vec<Traffic> = client.call(Call::get(&["traffic"])).await?;
        Ok::<_, ClientError>((traffic, Instant::now()))
    };
    let in_place = !once && output == Output::Table && std::io::stdout().is_terminal();
    let mut last = sample().await?;
    for round in 0u64.. {
        tokio::time::sleep(interval).await;
        let next = sample().await?;
        let rates = top::rates(&last.0, &next.0, next.1 - last.1);
        last = next;
        match output {
            // A line for each interval.
            Output::Json => {
                print(format_args!("{}\n", serde_json::to_string(&rates).map_err(std::io::Error::from)?))?;
            }
            // To the upper left corner, and clear what is below.
            Output::Table if in_place => print(format_args!("\x1b[H\x1b[J{}", top::text(&rates)))?,
            Output::Table => {
                let gap = if round > 0 { "\n" } else { "" };
                print(format_args!("{gap}{}", top::text(&rates)))?;
            }
        }
        if once {
            break;
        }
    }
    Ok(())
}

fn now_unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn completion(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(clap_complete::Shell::from(shell), &mut cli::command(), "masqctl", &mut script);
    print(String::from_utf8_lossy(&script))
}
