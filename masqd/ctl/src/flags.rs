//! The options of `create` and `set`, made from the table of kinds, and the JSON that they stand for.

use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::form::Form;
use crate::kinds::{Field, KindSpec};

/// A change of a list.
#[derive(Clone, Debug)]
pub struct ListEdit {
    field: &'static Field,
    add: Vec<Value>,
    remove: Vec<Value>,
}

/// What `set` shall change.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// A JSON merge patch.
    pub patch: Map<String, Value>,
    /// What else, for which one must know the lists as they are.
    pub lists: Vec<ListEdit>,
}

/// Adds the options of `create`.
pub fn for_create(spec: &KindSpec, mut command: Command) -> Command {
    for field in spec.fields {
        let repeated = if field.many { "; may be given several times" } else { "" };
        command = add_field(command, field, repeated, field.default.is_none());
    }
    command
}

/// Adds the options of `set`.
pub fn for_set(spec: &KindSpec, mut command: Command) -> Command {
    for field in spec.fields {
        let repeated = if field.many { "; may be given several times, and replaces the list" } else { "" };
        command = add_field(command, field, repeated, false);
        if field.many {
            for (verb, form, preposition) in
                [("add", field.form, "to"), ("remove", field.form.identity().0, "from")]
            {
                let id = format!("{verb}-{}", field.flag);
                let verb = if verb == "add" { "Add" } else { "Remove" };
                let help = format!(
                    "{verb} one {preposition} what --{} lists; may be given several times",
                    field.flag
                );
                command = command
                    .arg(value_arg(id, form).help(help).action(ArgAction::Append).conflicts_with(field.flag));
            }
        }
    }
    let optional: Vec<&str> = spec.fields.iter().filter(|f| f.default.is_some()).map(|f| f.flag).collect();
    if !optional.is_empty() {
        let help = "Clear a field, so that its default holds; may be given several times";
        command = command.arg(
            Arg::new("unset")
                .long("unset")
                .value_name("FIELD")
                .help(help)
                .action(ArgAction::Append)
                .value_parser(PossibleValuesParser::new(optional)),
        );
    }
    command
}

fn add_field(mut command: Command, field: &Field, repeated: &str, required: bool) -> Command {
    if let Form::Switch(words) = field.form {
        for (word, help) in words {
            command = command.arg(Arg::new(*word).long(*word).help(*help).action(ArgAction::SetTrue));
        }
        let words = words.iter().map(|(word, _)| *word);
        return command.group(ArgGroup::new(field.flag).args(words).required(required));
    }
    let mut help = format!("{}{repeated}", field.help);
    if let Some(range) = field.form.range() {
        help += &format!(" [range: {range}]");
    }
    if let Some(default) = field.default {
        help += &format!(" [default: {default}]");
    }
    let action = if field.many { ArgAction::Append } else { ArgAction::Set };
    command.arg(value_arg(field.flag.into(), field.form).help(help).action(action).required(required))
}

fn value_arg(id: String, form: Form) -> Arg {
    let parser = match form {
        Form::Word(words) => ValueParser::from(PossibleValuesParser::new(words).map(Value::from)),
        _ => ValueParser::from(move |text: &str| form.parse(text)),
    };
    Arg::new(id.clone())
        .long(id)
        .value_name(form.placeholder())
        .hide_possible_values(true)
        .value_parser(parser)
}

/// The option that limits a write to one generation.
pub fn if_generation() -> Arg {
    Arg::new("if-generation")
        .long("if-generation")
        .value_name("N")
        .help("Only if the object still has this generation")
        .value_parser(value_parser!(u64))
}

/// The object that the options of `create` describe.
pub fn object(spec: &KindSpec, matches: &ArgMatches) -> Map<String, Value> {
    let mut object = Map::new();
    for field in spec.fields {
        if let Some(value) = given(field, matches) {
            insert(&mut object, field.path, value);
        }
    }
    object
}

/// What the options of `set` change.
pub fn changes(spec: &KindSpec, matches: &ArgMatches) -> Result<Changes, Failure> {
    let mut changes = Changes { patch: object(spec, matches), lists: Vec::new() };
    for field in spec.fields.iter().filter(|f| f.many) {
        let edit = ListEdit {
            field,
            add: several(matches, &format!("add-{}", field.flag)),
            remove: several(matches, &format!("remove-{}", field.flag)),
        };
        if !edit.add.is_empty() || !edit.remove.is_empty() {
            changes.lists.push(edit);
        }
    }
    let unset = matches.try_get_many::<String>("unset").ok().flatten();
    for field in unset.into_iter().flatten().filter_map(|flag| spec.field(flag)) {
        let edited = changes.lists.iter().any(|e| e.field.flag == field.flag);
        if edited || given(field, matches).is_some() {
            return Err(Failure::Usage(format!("{} cannot be both set and unset", field.flag)));
        }
        insert(&mut changes.patch, field.path, Value::Null);
    }
    if changes.patch.is_empty() && changes.lists.is_empty() {
        return Err(Failure::Usage(format!("set needs a field of the {} to change", spec.word)));
    }
    Ok(changes)
}

fn given(field: &Field, matches: &ArgMatches) -> Option<Value> {
    match field.form {
        Form::Switch(words) => {
            words.iter().find(|(word, _)| matches.get_flag(word)).map(|(word, _)| Value::from(*word))
        }
        _ if field.many => {
            Some(several(matches, field.flag)).filter(|values| !values.is_empty()).map(Value::Array)
        }
        _ => matches.get_one::<Value>(field.flag).cloned(),
    }
}

fn several(matches: &ArgMatches, id: &str) -> Vec<Value> {
    matches.get_many::<Value>(id).into_iter().flatten().cloned().collect()
}

/// Puts a value at a path whose parts are separated by dots.
fn insert(object: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(object.insert(path.into(), value)),
        Some((first, rest)) => {
            let inner = object.entry(first).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

impl Changes {
    /// The whole merge patch, for an object that is `spec` now.
    pub fn patch_of(&self, label: &str, spec: &Value) -> Result<Value, Failure> {
        let mut patch = self.patch.clone();
        for edit in &self.lists {
            insert(&mut patch, edit.field.path, edit.apply(label, spec)?);
        }
        Ok(Value::Object(patch))
    }
}

impl ListEdit {
    fn apply(&self, label: &str, spec: &Value) -> Result<Value, Failure> {
        let pointer = format!("/{}", self.field.path.replace('.', "/"));
        let mut list = spec.pointer(&pointer).and_then(Value::as_array).cloned().unwrap_or_default();
        let (form, part) = self.field.form.identity();
        let name_of = |item: &Value| part.map_or(Some(item), |part| item.get(part)).cloned();
        for value in &self.remove {
            let Some(position) = list.iter().position(|item| name_of(item).as_ref() == Some(value)) else {
                let (object, flag) = (label.to_owned(), self.field.flag);
                return Err(Failure::NotInList { object, flag, value: form.show(value) });
            };
            list.remove(position);
        }
        list.extend(self.add.iter().cloned());
        Ok(Value::Array(list))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::by_word;

    fn parse(word: &str, set: bool, args: &[&str]) -> Result<ArgMatches, clap::Error> {
        let spec = by_word(word).unwrap();
        let command = Command::new("x").no_binary_name(true);
        let command = if set { for_set(spec, command) } else { for_create(spec, command) };
        command.try_get_matches_from(args)
    }

    fn set(word: &str, args: &[&str]) -> Changes {
        changes(by_word(word).unwrap(), &parse(word, true, args).unwrap()).unwrap()
    }

    #[test]
    fn options_become_an_object() {
        let args = "--vpc blue --host h1 --mac 52:54:00:00:00:01 --address 10.0.0.1 --address fd00::1 \
                    --security-group blue --qos gold --quota-qps 100 --quota-pinned-bytes 4Gi --paths 2";
        let matches =
            parse("vnic", false, &args.split(' ').filter(|a| !a.is_empty()).collect::<Vec<_>>()).unwrap();
        assert_eq!(
            Value::Object(object(by_word("vnic").unwrap(), &matches)),
            json!({
                "vpc": "blue", "host": "h1", "mac": "52:54:00:00:00:01", "addresses": ["10.0.0.1", "fd00::1"],
                "security_groups": ["blue"], "qos_policy": "gold",
                "quota": {"qps": 100, "pinned_bytes": 1u64 << 32}, "paths": 2
            })
        );
        let matches = parse("rule", false, &["--egress", "--deny", "--transport", "ud"]).unwrap();
        assert_eq!(
            Value::Object(object(by_word("rule").unwrap(), &matches)),
            json!({"direction": "egress", "action": "deny", "transport": "ud"})
        );
    }

    #[test]
    fn what_is_required_exclusive_or_wrong_is_refused() {
        assert!(parse("rule", false, &["--ingress"]).is_err());
        assert!(parse("rule", false, &["--ingress", "--egress", "--allow"]).is_err());
        assert!(parse("rule", false, &["--ingress", "--allow", "--transport", "tcp"]).is_err());
        assert!(parse("vpc", false, &[]).is_err());
        assert!(parse("vpc", false, &["--vni", "blue"]).is_err());
        let nothing = parse("vnic", true, &[]).unwrap();
        assert!(matches!(changes(by_word("vnic").unwrap(), &nothing), Err(Failure::Usage(_))));
        assert!(parse("vnic", true, &["--unset", "mac"]).is_err());
        assert!(parse("vnic", true, &["--address", "10.0.0.1", "--add-address", "10.0.0.2"]).is_err());
        let matches = parse("vnic", true, &["--host", "h2", "--unset", "host"]).unwrap();
        assert!(matches!(changes(by_word("vnic").unwrap(), &matches), Err(Failure::Usage(_))));
    }

    #[test]
    fn set_makes_a_merge_patch() {
        let changes =
            set("vnic", &["--host", "h2", "--unset", "qos", "--unset", "quota-qps", "--quota-cqs", "7"]);
        assert!(changes.lists.is_empty());
        assert_eq!(
            Value::Object(changes.patch),
            json!({"host": "h2", "qos_policy": null, "quota": {"qps": null, "cqs": 7}})
        );
    }

    #[test]
    fn lists_are_edited_as_they_are() {
        let changes = set(
            "vnic",
            &["--add-security-group", "red", "--remove-address", "FD00::1", "--add-address", "10.0.0.3"],
        );
        let spec = json!({"addresses": ["10.0.0.1", "fd00::1"]});
        assert_eq!(
            changes.patch_of("vnic v", &spec).unwrap(),
            json!({"addresses": ["10.0.0.1", "10.0.0.3"], "security_groups": ["red"]})
        );
        let missing = changes.patch_of("vnic v", &json!({"addresses": ["10.0.0.1"]})).unwrap_err();
        assert_eq!(missing.to_string(), "vnic v: --remove-address: fd00::1 is not in the list");

        let changes = set("host", &["--remove-class-rate", "3"]);
        let spec = json!({"class_rates": [{"class": 1}, {"class": 3}]});
        assert_eq!(changes.patch_of("host h", &spec).unwrap(), json!({"class_rates": [{"class": 1}]}));
    }
}
