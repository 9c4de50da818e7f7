//! What JSON Schema says about values that JSON carries as texts.

use serde_json::json;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AnyOfBuilder, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

const NAME: &str = "^[a-z0-9][a-z0-9._-]{0,62}$";
const MAC: &str = "^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$";
const IPV4_PREFIX: &str = "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}\
                           (25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])/(3[0-2]|[12]?[0-9])$";
const IPV6_PREFIX: &str = "^(([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|([0-9a-fA-F]{1,4}:){1,7}:\
                           |([0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}\
                           |([0-9a-fA-F]{1,4}:){1,5}(:[0-9a-fA-F]{1,4}){1,2}\
                           |([0-9a-fA-F]{1,4}:){1,4}(:[0-9a-fA-F]{1,4}){1,3}\
                           |([0-9a-fA-F]{1,4}:){1,3}(:[0-9a-fA-F]{1,4}){1,4}\
                           |([0-9a-fA-F]{1,4}:){1,2}(:[0-9a-fA-F]{1,4}){1,5}\
                           |[0-9a-fA-F]{1,4}:(:[0-9a-fA-F]{1,4}){1,6}|:((:[0-9a-fA-F]{1,4}){1,7}|:))\
                           /(12[0-8]|1[01][0-9]|[1-9]?[0-9])$";

/// A type of text: what it is, an example, and its forms.
macro_rules! text {
    ($name:ident, $description:literal, $example:literal, $($form:expr),+) => {
        #[doc = $description]
        pub struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                either(vec![$($form),+], $description, $example)
            }
        }

        impl ToSchema for $name {}
    };
}

text!(Name, "1 to 63 lower-case letters, digits, '-', '_' and '.'", "blue-1", pattern(NAME));
text!(Address, "An IPv4 or IPv6 address.", "192.168.0.1", format("ipv4"), format("ipv6"));
text!(
    Prefix,
    "A prefix of addresses; an address alone is one of full length.",
    "192.168.0.0/24",
    pattern(IPV4_PREFIX),
    pattern(IPV6_PREFIX),
    format("ipv4"),
    format("ipv6")
);
text!(
    LinkAddress,
    "An address with the length of its link's prefix.",
    "10.78.0.1/24",
    pattern(IPV4_PREFIX),
    pattern(IPV6_PREFIX)
);
text!(Mac, "A MAC address.", "52:54:00:64:00:01", pattern(MAC));

fn pattern(pattern: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern))
}

fn format(format: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::Custom(format.into())))
}

fn either(forms: Vec<ObjectBuilder>, description: &str, example: &str) -> RefOr<Schema> {
    let all = AnyOfBuilder::new().description(Some(description)).examples([json!(example)]);
    forms.into_iter().fold(all, |all, form| all.item(form)).into()
}

/// A block of queue pair numbers.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a type of a crate that knows no schemas")]
pub struct Block {
    /// The first number.
    first: u32,
    /// How many.
    len: u32,
}
