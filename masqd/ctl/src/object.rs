//! `masqctl KIND create|show|list|set|delete`, the same for every kind.

use clap::{Arg, ArgMatches, Command, value_parser};
use hyper::{Method, StatusCode};
use masq_model::api::{Item, ItemList, ItemStatus};
use serde::Deserialize;
use serde_json::Value;

use crate::client::{Call, Client, ClientError};
use crate::failure::{Failure, check_realised};
use crate::flags;
use crate::form::plain;
use crate::kinds::{Field, KindSpec};
use crate::output::{Output, print, print_json};
use crate::table::Table;

/// How often a list is read and written again when somebody else has changed the object in between.
const ATTEMPTS: u32 = 5;

/// Longest time to wait for hosts, in seconds.
pub const MAX_WAIT_SECONDS: u16 = 300;

/// The subcommands of a kind.
pub fn command(spec: &KindSpec) -> Command {
    let word = spec.word;
    let verb = |verb: &'static str, about: String| Command::new(verb).about(about);
    let named = |command: Command| {
        let command =
            if spec.is_rule() { command.arg(name_arg("GROUP", "Its security group")) } else { command };
        command.arg(name_arg("NAME", "Its name"))
    };
    let mut list = verb("list", format!("List all objects of kind {word}"));
    if spec.is_rule() {
        let group = name_arg("GROUP", "Only the rules of this security group").required(false);
        list = verb("list", "List rules".into()).arg(group);
    }
    let show = named(verb("show", format!("Show one {word} and how far it is realised")));
    let mut command = Command::new(word)
        .about(spec.about)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([show, list]);
    if spec.kind.is_desired() {
        let create = named(verb("create", format!("Create a {word}"))).arg(wait_arg());
        let names = if spec.is_rule() { "<GROUP> <NAME>" } else { "<NAME>" };
        let set = named(verb("set", format!("Change fields of a {word}; what is not mentioned stays")))
            // The usage that is made from the definition names every option.
            .override_usage(format!("masqctl {word} set {names} --FIELD VALUE... [OPTIONS]"))
            .arg(flags::if_generation())
            .arg(wait_arg());
        let delete =
            named(verb("delete", format!("Delete a {word}"))).arg(flags::if_generation()).arg(wait_arg());
        command = command.subcommands([flags::for_create(spec, create), flags::for_set(spec, set), delete]);
    }
    command
}

fn name_arg(id: &'static str, help: &'static str) -> Arg {
    Arg::new(id).value_name(id).help(help).required(true)
}

/// The option that lets a write wait.
pub fn wait_arg() -> Arg {
    Arg::new("wait")
        .long("wait")
        .value_name("SECONDS")
        .help(format!(
            "Wait until all hosts concerned have brought it into force, at most so long; exit status 4 if they have not \
             [range: 0 to {MAX_WAIT_SECONDS}]"
        ))
        .value_parser(value_parser!(u16).range(..=i64::from(MAX_WAIT_SECONDS)))
        .default_value("0")
}

/// One object of a kind.
struct Name<'a> {
    spec: &'static KindSpec,
    group: Option<&'a str>,
    name: &'a str,
}

impl<'a> Name<'a> {
    fn of(spec: &'static KindSpec, matches: &'a ArgMatches) -> Name<'a> {
        let text = |id| matches.get_one::<String>(id).map(String::as_str);
        let group = if spec.is_rule() { text("GROUP") } else { None };
        Name { spec, group, name: text("NAME").unwrap_or_default() }
    }

    fn call(&self, method: Method) -> Call {
        match self.group {
            Some(group) => Call::new(method, &["security-groups", group, "rules", self.name]),
            None => Call::new(method, &[self.spec.collection, self.name]),
        }
    }

    fn label(&self) -> String {
        match self.group {
            Some(group) => format!("{} {group}/{}", self.spec.word, self.name),
            None => format!("{} {}", self.spec.word, self.name),
        }
    }
}

/// Does what a subcommand of a kind says.
pub async fn run(
    client: &Client,
    spec: &'static KindSpec,
    matches: &ArgMatches,
    output: Output,
) -> Result<(), Failure> {
    match matches.subcommand() {
        Some(("create", m)) => create(client, spec, m, output).await,
        Some(("show", m)) => show(client, &Name::of(spec, m), output).await,
        Some(("list", m)) => list(client, spec, m, output).await,
        Some(("set", m)) => set(client, spec, m, output).await,
        Some(("delete", m)) => delete(client, spec, m, output).await,
        _ => Err(Failure::Usage(format!("{} needs a subcommand", spec.word))),
    }
}

/// How long a write may wait, in seconds.
pub fn wait_of(matches: &ArgMatches) -> u16 {
    matches.get_one("wait").copied().unwrap_or(0)
}

fn if_generation_of(matches: &ArgMatches) -> Option<u64> {
    matches.get_one("if-generation").copied()
}

async fn create(
    client: &Client,
    spec: &'static KindSpec,
    matches: &ArgMatches,
    output: Output,
) -> Result<(), Failure> {
    let name = Name::of(spec, matches);
    let mut object = flags::object(spec, matches);
    object.insert(spec.name_field.into(), name.name.into());
    if let Some(group) = name.group {
        object.insert("security_group".into(), group.into());
    }
    let wait = wait_of(matches);
    let call = name.call(Method::PUT).json(&Value::Object(object)).if_new().wait(wait);
    match client.call(call).await {
        Err(ClientError::Refused { status: StatusCode::PRECONDITION_FAILED, .. }) => {
            Err(Failure::Exists { object: name.label(), word: spec.word })
        }
        reply => written(&name, "created", wait, reply?, output),
    }
}

async fn set(
    client: &Client,
    spec: &'static KindSpec,
    matches: &ArgMatches,
    output: Output,
) -> Result<(), Failure> {
    let name = Name::of(spec, matches);
    let changes = flags::changes(spec, matches)?;
    let wait = wait_of(matches);
    let asked = if_generation_of(matches);
    let mut attempt = 1;
    loop {
        let mut generation = asked;
        let mut current = Value::Null;
        if !changes.lists.is_empty() {
            let item: Item<Value> = client.call(name.call(Method::GET)).await?;
            current = item.spec;
            generation = asked.or(Some(item.status.generation));
        }
        let patch = changes.patch_of(&name.label(), &current)?;
        let mut call =
            name.call(Method::PATCH).body("application/merge-patch+json", patch.to_string()).wait(wait);
        if let Some(generation) = generation {
            call = call.if_generation(generation);
        }
        match client.call(call).await {
            Err(ClientError::Refused { status: StatusCode::PRECONDITION_FAILED, .. })
                if asked.is_none() && generation.is_some() && attempt < ATTEMPTS =>
            {
                attempt += 1;
            }
            reply => {
                let reply = reply.map_err(|e| refused(&name, generation, e))?;
                return written(&name, "changed", wait, reply, output);
            }
        }
    }
}

/// Why a write failed that was limited to a generation, if it was.
fn refused(name: &Name<'_>, generation: Option<u64>, error: ClientError) -> Failure {
    match (generation, error) {
        (Some(generation), ClientError::Refused { status: StatusCode::PRECONDITION_FAILED, reply }) => {
            Failure::Changed { object: name.label(), generation, reply }
        }
        (_, error) => error.into(),
    }
}

async fn delete(
    client: &Client,
    spec: &'static KindSpec,
    matches: &ArgMatches,
    output: Output,
) -> Result<(), Failure> {
    let name = Name::of(spec, matches);
    let wait = wait_of(matches);
    let mut call = name.call(Method::DELETE).wait(wait);
    if let Some(generation) = if_generation_of(matches) {
        call = call.if_generation(generation);
    }
    let reply: Value = client.call(call).await.map_err(|e| refused(&name, if_generation_of(matches), e))?;
    let status = ItemStatus::deserialize(&reply).map_err(ClientError::from)?;
    report(&name, "deleted", wait, &reply, &status, output)
}

/// Tells what has become of an object that was written.
fn written(name: &Name<'_>, what: &str, wait: u16, reply: Value, output: Output) -> Result<(), Failure> {
    let item = Item::<Value>::deserialize(&reply).map_err(ClientError::from)?;
    report(name, what, wait, &reply, &item.status, output)
}

fn report(
    name: &Name<'_>,
    what: &str,
    wait: u16,
    reply: &Value,
    status: &ItemStatus,
    output: Output,
) -> Result<(), Failure> {
    let label = name.label();
    match output {
        Output::Json => print_json(reply)?,
        Output::Table => {
            print(format_args!("{label} {what}: generation {}, {}\n", status.generation, status.state))?;
        }
    }
    check_realised(&label, wait, status)
}

async fn show(client: &Client, name: &Name<'_>, output: Output) -> Result<(), Failure> {
    let reply: Value = client.call(name.call(Method::GET)).await?;
    match output {
        Output::Json => print_json(&reply),
        Output::Table => print(block(name.spec, &Item::deserialize(&reply).map_err(ClientError::from)?)),
    }
}

async fn list(
    client: &Client,
    spec: &'static KindSpec,
    matches: &ArgMatches,
    output: Output,
) -> Result<(), Failure> {
    let group = if spec.is_rule() { matches.get_one::<String>("GROUP") } else { None };
    let call = match group {
        Some(group) => Call::get(&["security-groups", group, "rules"]),
        None => Call::get(&[spec.collection]),
    };
    let reply: Value = client.call(call).await?;
    match output {
        Output::Json => print_json(&reply),
        Output::Table => print(table(spec, &ItemList::deserialize(&reply).map_err(ClientError::from)?.items)),
    }
}

fn cell(field: &Field, spec: &Value) -> String {
    let pointer = format!("/{}", field.path.replace('.', "/"));
    spec.pointer(&pointer).map(|v| field.form.show(v)).unwrap_or_default()
}

fn text(spec: &Value, field: &str) -> String {
    spec.get(field).map(plain).unwrap_or_default()
}

/// All that is known of one object, a field a line.
fn block(spec: &KindSpec, item: &Item<Value>) -> Table {
    let mut table = Table::default();
    let mut line = |title: &str, value: String| table.row([title.to_owned(), value]);
    line("name", text(&item.spec, spec.name_field));
    if spec.is_rule() {
        line("security-group", text(&item.spec, "security_group"));
    }
    for field in spec.fields {
        line(field.flag, cell(field, &item.spec));
    }
    if spec.kind.is_desired() {
        let status = &item.status;
        line("generation", status.generation.to_string());
        line("realised-generation", status.realised_generation.to_string());
        line("state", status.state.to_string());
        line("waiting-for", status.waiting_for.join(","));
    }
    table
}

/// Objects, one a line.
fn table(spec: &KindSpec, items: &[Item<Value>]) -> Table {
    let columns: Vec<&Field> = spec.fields.iter().filter(|f| f.column).collect();
    let mut header: Vec<String> = Vec::new();
    if spec.is_rule() {
        header.push("GROUP".into());
    }
    header.push("NAME".into());
    header.extend(columns.iter().map(|f| f.flag.to_uppercase()));
    if spec.kind.is_desired() {
        header.push("STATE".into());
    }
    let mut table = Table::new(header.iter().map(String::as_str));
    for item in items {
        let mut row = Vec::new();
        if spec.is_rule() {
            row.push(text(&item.spec, "security_group"));
        }
        row.push(text(&item.spec, spec.name_field));
        row.extend(columns.iter().map(|f| cell(f, &item.spec)));
        if spec.kind.is_desired() {
            row.push(item.status.state.to_string());
        }
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use masq_model::api::RealisedState;
    use serde_json::json;

    use super::*;
    use crate::kinds::{KINDS, by_word};

    fn item(spec: Value) -> Item<Value> {
        let status = ItemStatus {
            generation: 12,
            realised_generation: 9,
            state: RealisedState::PartiallyRealised,
            waiting_for: vec!["h2".into(), "h3".into()],
        };
        Item { spec, status }
    }

    #[test]
    fn the_definitions_are_consistent() {
        KINDS.iter().for_each(|spec| command(spec).debug_assert());
    }

    #[test]
    fn one_object_is_a_block() {
        let spec = json!({"name": "gold", "rate_bits_per_sec": 2_500_000_000u64, "weight": 4, "class": 0});
        let expected = "\
name                 gold
rate                 2.5 Gbit/s
burst                -
weight               4
class                0
dscp                 -
trust-dscp           -
generation           12
realised-generation  9
state                partially-realised
waiting-for          h2,h3
";
        assert_eq!(block(by_word("qos-policy").unwrap(), &item(spec)).to_string(), expected);
    }

    #[test]
    fn objects_are_a_table() {
        let rules = [
            item(json!({"security_group": "blue", "name": "in", "direction": "ingress",
                        "remote_prefix": "10.0.0.0/8", "transport": "any", "priority": 1000, "action": "allow"})),
            item(json!({"security_group": "red", "name": "out", "direction": "egress",
                        "remote_group": "blue", "transport": "rc", "priority": 1, "action": "deny"})),
        ];
        let expected = "\
GROUP  NAME  DIRECTION  REMOTE-PREFIX  REMOTE-GROUP  TRANSPORT  PRIORITY  ACTION  STATE
blue   in    ingress    10.0.0.0/8     -             any        1000      allow   partially-realised
red    out   egress     -              blue          rc         1         deny    partially-realised
";
        assert_eq!(table(by_word("rule").unwrap(), &rules).to_string(), expected);

        let endpoint =
            item(json!({"vnic": "blue-1", "vni": 100, "gids": ["fe80::1", "10.0.0.1"], "host": "h1",
            "addresses": ["127.0.0.1"], "qpn_blocks": [{"first": 256, "len": 256}], "generation": 3}));
        let expected = "\
NAME    VNI  HOST  UNDERLAY   QPNS         GID
blue-1  100  h1    127.0.0.1  0x100-0x1ff  fe80::1,10.0.0.1
";
        assert_eq!(table(by_word("endpoint").unwrap(), &[endpoint]).to_string(), expected);
    }
}
