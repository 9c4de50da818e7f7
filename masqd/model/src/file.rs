use serde::Deserialize;

/// The declarative file as written: every value is text or a number, so that all mistakes can be
/// reported together and not only the first.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    #[serde(default)]
    pub host: Vec<FileHost>,
    #[serde(default)]
    pub vpc: Vec<FileVpc>,
    #[serde(default)]
    pub vnic: Vec<FileVnic>,
    #[serde(default)]
    pub rule: Vec<FileRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileHost {
    pub name: String,
    pub underlay: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileVpc {
    pub name: String,
    pub vni: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileVnic {
    pub name: String,
    pub vpc: String,
    pub host: String,
    pub mac: String,
    pub addresses: Vec<String>,
    pub paths: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRule {
    pub name: Option<String>,
    pub vpc: String,
    pub source: String,
    pub destination: String,
    pub action: String,
    pub priority: Option<i64>,
}
