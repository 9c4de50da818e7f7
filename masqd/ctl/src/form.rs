//! The forms that values have on the command line and in tables, and what they are in JSON.
//!
//! Only the syntax is judged here; whether a value makes sense is for masqd to say, which names object and field.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use masq_model::{MAX_BURST_BITS, MAX_RATE_BITS_PER_SEC, MIN_BURST_BITS, MIN_RATE_BITS_PER_SEC};
use masq_types::MacAddr;
use serde_json::{Map, Value};

use crate::units;

/// What a value looks like.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A name, or other text; with what help calls it.
    Text(&'static str),
    /// A number with its range.
    Number(u64, u64),
    /// A rate in bit/s.
    Rate,
    /// A number of bits.
    Bits,
    /// A number of bytes.
    Bytes,
    /// An IP address.
    Address,
    /// A prefix; an address alone is one of full length.
    Prefix,
    /// An address with the length of its link's prefix.
    Interface,
    /// A MAC address.
    Mac,
    /// `yes` or `no`.
    YesNo,
    /// One of a few words, the value of an option.
    Word(&'static [&'static str]),
    /// One of a few words, each an option of its own, with its help.
    Switch(&'static [(&'static str, &'static str)]),
    /// Several values: the first as it stands, the others as `key=value`, all separated by commas.
    Parts(&'static [Part]),
    /// A block of QPNs; only shown.
    Block,
}

/// One of several values.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What it is called on the command line.
    pub key: &'static str,
    /// Its field.
    pub field: &'static str,
    /// Its form.
    pub form: Form,
    /// Whether it may be absent.
    pub optional: bool,
}

impl Form {
    /// What help calls the value.
    pub fn placeholder(self) -> String {
        match self {
            Form::Text(name) => name.into(),
            Form::Number(..) => "N".into(),
            Form::Rate => "RATE".into(),
            Form::Bits => "BITS".into(),
            Form::Bytes => "BYTES".into(),
            Form::Address => "ADDRESS".into(),
            Form::Prefix => "PREFIX".into(),
            Form::Interface => "ADDRESS/LENGTH".into(),
            Form::Mac => "MAC".into(),
            Form::YesNo => "yes|no".into(),
            Form::Word(words) => words.join("|"),
            Form::Switch(words) => words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join("|"),
            Form::Parts(parts) => parts.iter().enumerate().map(|(i, p)| p.placeholder(i == 0)).collect(),
            Form::Block => "BLOCK".into(),
        }
    }

    /// The range, if the form has one.
    pub fn range(self) -> Option<String> {
        let from_to = |least: String, most: String| Some(format!("{least} to {most}"));
        match self {
            Form::Number(0, u64::MAX) => None,
            Form::Number(least, most) => from_to(least.to_string(), most.to_string()),
            Form::Rate => from_to(units::rate(MIN_RATE_BITS_PER_SEC), units::rate(MAX_RATE_BITS_PER_SEC)),
            Form::Bits => from_to(units::bits(MIN_BURST_BITS), units::bits(MAX_BURST_BITS)),
            _ => None,
        }
    }

    /// Reads a value.
    pub fn parse(self, text: &str) -> Result<Value, String> {
        let quantity = |r: Result<u64, units::QuantityError>| r.map(Value::from).map_err(|e| e.to_string());
        match self {
            Form::Text(_) | Form::Switch(_) | Form::Block => Ok(text.into()),
            Form::Number(..) => text.parse::<u64>().map(Value::from).map_err(|_| "it is not a number".into()),
            Form::Rate => quantity(units::parse_rate(text)),
            Form::Bits => quantity(units::parse_bits(text)),
            Form::Bytes => quantity(units::parse_bytes(text)),
            Form::Address => canonical::<IpAddr>(text, "an IP address"),
            Form::Prefix => match text.parse::<IpAddr>() {
                Ok(address) => Ok(IpNet::from(address).to_string().into()),
                Err(_) => canonical::<IpNet>(text, "a prefix such as 192.168.0.0/24"),
            },
            Form::Interface => {
                canonical::<IpNet>(text, "an address with a prefix length such as 10.78.0.1/24")
            }
            Form::Mac => canonical::<MacAddr>(text, "a MAC address such as 52:54:00:00:00:01"),
            Form::YesNo => match text {
                "yes" => Ok(true.into()),
                "no" => Ok(false.into()),
                _ => Err("it is neither yes nor no".into()),
            },
            Form::Word(words) => match words.contains(&text) {
                true => Ok(text.into()),
                false => Err(format!("it is not one of {}", words.join(", "))),
            },
            Form::Parts(parts) => parse_parts(parts, text).map(Value::Object),
        }
    }

    /// Shows a value to a person, nearly as it is written; empty when it is absent.
    pub fn show(self, value: &Value) -> String {
        if let Value::Array(values) = value {
            let separator = if matches!(self, Form::Parts(_)) { " " } else { "," };
            return values.iter().map(|v| self.show(v)).collect::<Vec<_>>().join(separator);
        }
        if let (Form::YesNo, Some(yes)) = (self, value.as_bool()) {
            return if yes { "yes" } else { "no" }.into();
        }
        match (self, value.as_u64()) {
            (Form::Rate, Some(n)) => units::rate(n),
            (Form::Bits, Some(n)) => units::bits(n),
            (Form::Bytes, Some(n)) => units::bytes(n),
            (Form::Parts(parts), _) => show_parts(parts, value),
            (Form::Block, _) => show_block(value),
            _ => plain(value),
        }
    }

    /// The form and the field by which a value is named among others of its list: its first part, or itself.
    pub fn identity(self) -> (Form, Option<&'static str>) {
        match self {
            Form::Parts([first, ..]) => (first.form, Some(first.field)),
            form => (form, None),
        }
    }
}

impl Part {
    fn placeholder(&self, first: bool) -> String {
        let value = self.form.placeholder();
        match (first, self.optional) {
            (true, _) => value,
            (false, false) => format!(",{}={value}", self.key),
            (false, true) => format!("[,{}={value}]", self.key),
        }
    }
}

fn canonical<T: FromStr + ToString>(text: &str, what: &str) -> Result<Value, String> {
    text.parse::<T>().map(|v| v.to_string().into()).map_err(|_| format!("it is not {what}"))
}

fn parse_parts(parts: &[Part], text: &str) -> Result<Map<String, Value>, String> {
    let mut object = Map::new();
    for (i, item) in text.split(',').enumerate() {
        let (part, value) = match (item.split_once('='), parts.first()) {
            (None, Some(first)) if i == 0 => (first, item),
            (Some((key, value)), _) => match parts.iter().find(|p| p.key == key) {
                Some(part) => (part, value),
                None => return Err(format!("{key} is not one of {}", keys(parts))),
            },
            _ => return Err(format!("{item:?} is not of the form KEY=VALUE with a KEY of {}", keys(parts))),
        };
        let value = part.form.parse(value).map_err(|e| format!("{}: {e}", part.key))?;
        if object.insert(part.field.into(), value).is_some() {
            return Err(format!("{} stands there twice", part.key));
        }
    }
    match parts.iter().find(|p| !p.optional && !object.contains_key(p.field)) {
        Some(missing) => Err(format!("{} is missing", missing.key)),
        None => Ok(object),
    }
}

fn keys(parts: &[Part]) -> String {
    parts.iter().map(|p| p.key).collect::<Vec<_>>().join(", ")
}

fn show_parts(parts: &[Part], value: &Value) -> String {
    let mut shown = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        if let Some(v) = value.get(part.field).filter(|v| !v.is_null()) {
            // Without a space, so that it can be written like this.
            let text = part.form.show(v).replace(' ', "");
            shown.push(if i == 0 { text } else { format!("{}={text}", part.key) });
        }
    }
    shown.join(",")
}

fn show_block(value: &Value) -> String {
    let number = |field| value.get(field).and_then(Value::as_u64);
    match (number("first"), number("len")) {
        (Some(first), Some(len)) => format!("{first:#x}-{:#x}", first.saturating_add(len.saturating_sub(1))),
        _ => plain(value),
    }
}

/// A value without a form of its own; null is empty.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{ALIAS, CLASS_RATE};

    #[test]
    fn values_are_canonical() {
        assert_eq!(Form::Address.parse("2001:DB8::0:1"), Ok(json!("2001:db8::1")));
        assert_eq!(Form::Prefix.parse("192.168.0.1"), Ok(json!("192.168.0.1/32")));
        assert_eq!(Form::Prefix.parse("192.168.0.0/24"), Ok(json!("192.168.0.0/24")));
        assert_eq!(Form::Mac.parse("52:54:00:AB:00:01"), Ok(json!("52:54:00:ab:00:01")));
        assert_eq!(Form::Number(1, 5).parse("7"), Ok(json!(7)));
        for (text, value) in [("yes", json!(true)), ("no", json!(false))] {
            assert_eq!(Form::YesNo.parse(text), Ok(value.clone()));
            assert_eq!(Form::YesNo.show(&value), text);
        }
        for (form, bad) in [
            (Form::Address, "192.168.0.1/24"),
            (Form::Prefix, "blue"),
            (Form::Interface, "10.78.0.1"),
            (Form::Mac, "5254.00ab.0001"),
            (Form::Number(1, 5), "-1"),
            (Form::Word(&["rc", "uc"]), "tcp"),
            (Form::YesNo, "true"),
        ] {
            assert!(form.parse(bad).is_err(), "{form:?} {bad}");
        }
    }

    #[test]
    fn parts_are_read_as_they_are_shown() {
        for (form, text, value) in [
            (ALIAS, "10.78.0.1/24,link=eth1", json!({"address": "10.78.0.1/24", "link": "eth1"})),
            (
                ALIAS,
                "10.78.0.1/24,link=eth1,gateway=10.78.0.254",
                json!({"address": "10.78.0.1/24", "link": "eth1", "gateway": "10.78.0.254"}),
            ),
            (
                CLASS_RATE,
                "3,rate=2.5Gbit/s,burst=10Mbit",
                json!({"class": 3, "rate_bits_per_sec": 2_500_000_000u64, "burst_bits": 10_000_000}),
            ),
        ] {
            assert_eq!(form.parse(text), Ok(value.clone()));
            assert_eq!(form.show(&value), text);
        }
        assert_eq!(ALIAS.placeholder(), "ADDRESS/LENGTH,link=LINK[,gateway=ADDRESS]");
    }

    #[test]
    fn parts_that_are_wrong_are_named() {
        for (text, reason) in [
            ("10.78.0.1/24", "link is missing"),
            ("link=eth1", "address is missing"),
            (
                "10.78.0.1/24,eth1",
                "\"eth1\" is not of the form KEY=VALUE with a KEY of address, link, gateway",
            ),
            ("10.78.0.1/24,dev=eth1", "dev is not one of address, link, gateway"),
            ("10.78.0.1/24,link=a,link=b", "link stands there twice"),
            ("10.78.0.1/24,link=a,gateway=b", "gateway: it is not an IP address"),
        ] {
            assert_eq!(ALIAS.parse(text), Err(reason.into()), "{text}");
        }
    }

    #[test]
    fn lists_and_absent_values_are_shown() {
        assert_eq!(Form::Address.show(&json!(["10.0.0.1", "10.0.0.2"])), "10.0.0.1,10.0.0.2");
        assert_eq!(Form::Block.show(&json!([{"first": 256, "len": 256}])), "0x100-0x1ff");
        assert_eq!(Form::Rate.show(&json!(1_000_000)), "1 Mbit/s");
        assert_eq!(Form::Rate.show(&Value::Null), "");
    }
}
