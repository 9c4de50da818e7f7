//! The description of the API, made of the same table of collections as its routes, and of the types that it takes and
//! answers: OpenAPI 3.1.

use masq_model::api::{
    Applied, ConnectionStatus, ErrorReply, Explanation, Item, ItemStatus, QueuePair, Status, Traffic,
};
use masq_model::schema::Name;
use masq_model::{
    DesiredFile, Endpoint, Host, HostState, Kind, QosPolicy, SecurityGroup, SecurityGroupRule,
    StaticEndpoint, Vnic, Vpc,
};
use serde_json::Value;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItemBuilder,
    PathsBuilder,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::schema::{
    AdditionalProperties, AnyOfBuilder, ArrayBuilder, ComponentsBuilder, KnownFormat, Object, ObjectBuilder,
    Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{Content, HeaderBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Required};
use utoipa::{PartialSchema, ToSchema};

use super::collections::{COLLECTIONS, Collection};
use super::queue_pairs;
use super::request::MAX_WAIT_SECONDS;

const JSON: &str = "application/json";
const WAIT: &str = "For how many seconds to wait until it is realised; 0 by default. When many wait already, the answer comes at once";
/// `*`, or tags such as `"7"`.
const TAGS: &str = "^(\\*|[ ,]*(\"[^\",]*\"( *,[ ,]*\"[^\",]*\")*)?[ ,]*)$";

/// The schemas of a kind of object.
struct Schemas {
    spec: &'static str,
    item: RefOr<Schema>,
    list: RefOr<Schema>,
}

/// The document.
pub fn document() -> OpenApi {
    let mut doc = Document::default();
    for collection in COLLECTIONS {
        let schemas = doc.schemas_of(collection.kind);
        doc.collection(&collection, &schemas);
    }
    doc.rules();
    doc.desired_state();
    doc.host();
    doc.finish()
}

#[derive(Default)]
struct Document {
    paths: PathsBuilder,
    components: ComponentsBuilder,
}

impl Document {
    fn schemas_of(&mut self, kind: Kind) -> Schemas {
        match kind {
            Kind::Host => self.spec::<Host>("Host"),
            Kind::Vpc => self.spec::<Vpc>("Vpc"),
            Kind::SecurityGroup => self.spec::<SecurityGroup>("SecurityGroup"),
            Kind::SecurityGroupRule => self.spec::<SecurityGroupRule>("SecurityGroupRule"),
            Kind::QosPolicy => self.spec::<QosPolicy>("QosPolicy"),
            Kind::Vnic => self.spec::<Vnic>("Vnic"),
            Kind::StaticEndpoint => self.spec::<StaticEndpoint>("StaticEndpoint"),
            Kind::Endpoint => self.spec::<Endpoint>("Endpoint"),
            Kind::HostState => self.spec::<HostState>("HostState"),
        }
    }

    fn spec<T: ToSchema>(&mut self, spec: &'static str) -> Schemas {
        self.schema::<T>();
        if let RefOr::T(Schema::Object(object)) = T::schema() {
            self.add(&format!("{spec}Patch"), RefOr::T(Schema::Object(patch(object))));
        }
        self.schema::<ItemStatus>();
        // The names of generic types do not tell their arguments.
        let item = format!("{spec}Item");
        self.add(&item, Item::<T>::schema());
        let item = RefOr::from(Ref::from_schema_name(item));
        let list = ObjectBuilder::new()
            .property("items", ArrayBuilder::new().items(item.clone()))
            .required("items")
            .description(Some(format!("All {spec} objects, by name.")));
        self.add(&format!("{spec}List"), list.into());
        Schemas { spec, item, list: Ref::from_schema_name(format!("{spec}List")).into() }
    }

    /// Adds a type with those that it is made of; tells how to refer to it.
    fn schema<T: ToSchema>(&mut self) -> RefOr<Schema> {
        let mut all = Vec::new();
        T::schemas(&mut all);
        all.push((T::name().into(), T::schema()));
        all.into_iter().for_each(|(name, schema)| self.add(&name, schema));
        Ref::from_schema_name(T::name()).into()
    }

    fn add(&mut self, name: &str, schema: RefOr<Schema>) {
        self.components = std::mem::take(&mut self.components).schema(name, schema);
    }

    fn path(&mut self, path: &str, operations: Vec<(HttpMethod, Operation)>) {
        let add = |item: PathItemBuilder, (method, operation)| item.operation(method, operation);
        let item = operations.into_iter().fold(PathItemBuilder::new(), add).build();
        self.paths = std::mem::take(&mut self.paths).path(path, item);
    }

    fn collection(&mut self, collection: &Collection, schemas: &Schemas) {
        let (name, kind) = (collection.name, collection.kind);
        let list = Asked::new(&format!("list-{name}"), &format!("All objects of the kind {kind}, by name"))
            .answers(200, "All of them", schemas.list.clone());
        self.path(&format!("/v1/{name}"), vec![(HttpMethod::Get, list.build())]);
        let names = [path_parameter("name", "Name of the object")];
        self.single(&format!("/v1/{name}/{{name}}"), kind, schemas, &names);
    }

    fn rules(&mut self) {
        let kind = Kind::SecurityGroupRule;
        let schemas = self.schemas_of(kind);
        let group = path_parameter("group", "Name of the security group");
        let list = Asked::new("list-security-group-rules", "All rules of all groups").answers(
            200,
            "All of them",
            schemas.list.clone(),
        );
        self.path("/v1/security-group-rules", vec![(HttpMethod::Get, list.build())]);
        let list = Asked::new("list-rules-of-group", "The rules of one security group")
            .takes(group.clone())
            .answers(200, "All of them", schemas.list.clone())
            .refuses(404, "There is no such group");
        self.path("/v1/security-groups/{group}/rules", vec![(HttpMethod::Get, list.build())]);
        let names = [group, path_parameter("name", "Name of the rule")];
        self.single("/v1/security-groups/{group}/rules/{name}", kind, &schemas, &names);
    }

    fn single(&mut self, path: &str, kind: Kind, schemas: &Schemas, names: &[Parameter]) {
        let id = |verb: &str| format!("{verb}-{}", kind.name().replace('_', "-"));
        let ask = |verb: &str, summary: String| {
            let asked = Asked::new(&id(verb), &summary).refuses(404, "There is no such object");
            names.iter().cloned().fold(asked, Asked::takes)
        };
        let get = ask("get", format!("One object of the kind {kind}")).answers_item(
            200,
            "The object",
            &schemas.item,
        );
        let mut operations = vec![(HttpMethod::Get, get.build())];
        if kind.is_desired() {
            let spec = Ref::from_schema_name(schemas.spec);
            let put = ask("put", format!("Creates or replaces an object of the kind {kind}"))
                .writes()
                .body(&[JSON], spec.into())
                .answers_item(200, "It has been replaced, or was like this", &schemas.item)
                .answers_item(201, "It has been created", &schemas.item);
            let changes = Ref::from_schema_name(format!("{}Patch", schemas.spec));
            let patch = ask("patch", format!("Changes fields of an object of the kind {kind} (RFC 7396)"))
                .writes()
                .body(&["application/merge-patch+json", JSON], changes.into())
                .answers_item(200, "It has been changed, or was like this", &schemas.item);
            let status = self.schema::<ItemStatus>();
            let delete = ask("delete", format!("Deletes an object of the kind {kind}")).writes().answers(
                200,
                "It is gone; how far that is in force",
                status,
            );
            operations.extend([
                (HttpMethod::Put, put.build()),
                (HttpMethod::Patch, patch.build()),
                (HttpMethod::Delete, delete.build()),
            ]);
        }
        self.path(path, operations);
    }

    fn desired_state(&mut self) {
        let file = self.schema::<DesiredFile>();
        let applied = self.schema::<Applied>();
        let flag = |name, description| {
            query_parameter(name, description, ObjectBuilder::new().schema_type(Type::Boolean).into())
        };
        let apply = Asked::new("apply", "Writes the objects of a declarative file, all at once or none")
            .takes(flag("prune", "Whether what the file lacks is deleted; false by default"))
            .takes(flag("dry_run", "Whether to tell only what would be changed; false by default"))
            .takes(wait())
            .body(&[JSON, "application/toml"], file.clone())
            .answers(200, "What has been changed", applied)
            .refuses(408, "The body came too slowly")
            .refuses(413, "The body is too long")
            .refuses(415, "The body is of another type")
            .refuses(422, "The desired state would not be consistent");
        self.path("/v1/apply", vec![(HttpMethod::Post, apply.build())]);
        let desired = Asked::new("desired", "The whole desired state, in the form of the declarative file")
            .answers(200, "The file", file)
            .refuses(500, "The store holds what cannot be read");
        self.path("/v1/desired", vec![(HttpMethod::Get, desired.build())]);
    }

    fn host(&mut self) {
        let connections = list_of(self.schema::<ConnectionStatus>());
        let connections = Asked::new("connections", "The connections of this host's guests")
            .takes(query_parameter("vnic", "Only those of this vNIC", text()))
            .takes(query_parameter("vpc", "Only those in this network", text()))
            .answers(200, "The connections", connections);
        self.path("/v1/connections", vec![(HttpMethod::Get, connections.build())]);
        let transport =
            ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["rc", "uc", "ud", "cm"]));
        let required = |name, description| {
            let mut parameter = query_parameter(name, description, text());
            parameter.required = Required::True;
            parameter
        };
        let explanation = self.schema::<Explanation>();
        let explain = Asked::new(
            "explain",
            "Whether two ends may be connected or exchange datagrams, and why",
        )
        .takes(required("from", "One end: the name of a vNIC, or an address"))
        .takes(required("to", "The other end"))
        .takes(query_parameter("vpc", "The network of addresses, if no end is a name", text()))
        .takes(query_parameter(
            "transport",
            "The transport, rc by default; ud is about what 'from' sends, cm about management datagrams",
            transport.into(),
        ))
        .answers(200, "The explanation", explanation)
        .refuses(404, "There is no such end or network");
        self.path("/v1/explain", vec![(HttpMethod::Get, explain.build())]);
        self.queue_pairs();
        let status = self.schema::<Status>();
        let traffic = list_of(self.schema::<Traffic>());
        let counters = ObjectBuilder::new()
            .additional_properties(Some(AdditionalProperties::from(RefOr::<Schema>::from(
                ObjectBuilder::new().schema_type(Type::Integer),
            ))))
            .into();
        for (id, summary, schema) in [
            ("traffic", "What the vNICs of this host have sent and received", traffic),
            ("status", "How this host and its vNICs are", status),
            ("counters", "What the RNIC has counted, by name", counters),
        ] {
            let get = Asked::new(id, summary).answers(200, summary, schema);
            self.path(&format!("/v1/{id}"), vec![(HttpMethod::Get, get.build())]);
        }
        for (path, id, summary, media) in [
            ("/healthz", "healthz", "Whether masqd runs", "text/plain; charset=utf-8"),
            ("/readyz", "readyz", "Whether masqd can do all its work", "text/plain; charset=utf-8"),
            ("/metrics", "metrics", "What masqd has counted, for Prometheus", super::metrics::CONTENT_TYPE),
        ] {
            let mut get = Asked::new(id, summary);
            let content = Content::new(Some(text()));
            get.response(200, ResponseBuilder::new().description("It is so").content(media, content).build());
            self.path(path, vec![(HttpMethod::Get, get.build())]);
        }
        let any = ObjectBuilder::new().schema_type(Type::Object).into();
        let openapi = Asked::new("openapi", "This document").answers(200, "The document", any);
        self.path("/openapi.json", vec![(HttpMethod::Get, openapi.build())]);
    }

    fn queue_pairs(&mut self) {
        let queue_pair = self.schema::<QueuePair>();
        let list = Asked::new("queue-pairs", "The queue pairs of this host's guests")
            .takes(query_parameter("vnic", "Only those of this vNIC", text()))
            .takes(query_parameter("vpc", "Only those in this network", text()))
            .answers(200, "The queue pairs", list_of(queue_pair.clone()));
        self.path("/v1/queue-pairs", vec![(HttpMethod::Get, list.build())]);
        let named = |id: &str, summary: &str| {
            let mut qpn = path_parameter("qpn", "Number of the queue pair, as its guest knows it");
            qpn.schema = Some(bounded(0, (1 << 24) - 1));
            let nobody = "The vNIC has no such queue pair on this host";
            Asked::new(id, summary)
                .takes(path_parameter("vnic", "Name of the vNIC"))
                .takes(qpn)
                .refuses(404, nobody)
        };
        let get = named("queue-pair", "How a queue pair is").answers(200, "The queue pair", queue_pair);
        self.path("/v1/queue-pairs/{vnic}/{qpn}", vec![(HttpMethod::Get, get.build())]);
        let number =
            |name, description, least, most| query_parameter(name, description, bounded(least, most));
        let mut capture = named("capture", "The packets of a queue pair, as they come")
            .takes(number("count", "After how many packets to end", 1, queue_pairs::MAX_COUNT))
            .takes(number(
                "seconds",
                "After how many seconds to end; 60 by default",
                1,
                queue_pairs::MAX_SECONDS.into(),
            ))
            .takes(number(
                "snaplen",
                "Most bytes of a packet that are kept; all by default",
                queue_pairs::MIN_SNAPLEN.into(),
                queue_pairs::MAX_SNAPLEN.into(),
            ))
            .refuses(409, "It exchanges no packets, or is captured already")
            .refuses(500, "The RNIC does not do it");
        let file = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
        let content = Content::new(Some(RefOr::<Schema>::from(file)));
        let response =
            ResponseBuilder::new().description("A pcapng file").content(queue_pairs::CAPTURE_TYPE, content);
        capture.response(200, response.build());
        self.path("/v1/queue-pairs/{vnic}/{qpn}/capture", vec![(HttpMethod::Get, capture.build())]);
    }

    fn finish(mut self) -> OpenApi {
        self.schema::<ErrorReply>();
        self.schema::<Name>();
        let info = InfoBuilder::new()
            .title("masqd")
            .version(env!("CARGO_PKG_VERSION"))
            .description(Some("RDMA for tenants' VMs: networks, vNICs, security groups, QoS, and how far they are realised."))
            .build();
        OpenApiBuilder::new().info(info).paths(self.paths).components(Some(self.components.build())).build()
    }
}

/// An operation in the making.
struct Asked(OperationBuilder);

impl Asked {
    fn new(id: &str, summary: &str) -> Asked {
        Asked(OperationBuilder::new().operation_id(Some(id)).summary(Some(summary)))
            .refuses(400, "The request makes no sense, and why")
            .refuses(503, "The store cannot be reached, others keep writing, or masqd is not ready")
    }

    fn response(&mut self, status: u16, response: Response) {
        self.0 = std::mem::take(&mut self.0).response(status.to_string(), response);
    }

    fn answers(mut self, status: u16, what: &str, schema: RefOr<Schema>) -> Asked {
        let content = Content::new(Some(schema));
        self.response(status, ResponseBuilder::new().description(what).content(JSON, content).build());
        self
    }

    /// An object with its ETag.
    fn answers_item(mut self, status: u16, what: &str, schema: &RefOr<Schema>) -> Asked {
        let tag = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^\"[0-9]+\"$"));
        let etag = HeaderBuilder::new().schema(tag).description(Some("The object's generation")).build();
        let content = Content::new(Some(schema.clone()));
        let response = ResponseBuilder::new().description(what).content(JSON, content).header("ETag", etag);
        self.response(status, response.build());
        self
    }

    fn refuses(self, status: u16, why: &str) -> Asked {
        self.answers(status, why, Ref::from_schema_name(ErrorReply::name()).into())
    }

    fn takes(mut self, parameter: Parameter) -> Asked {
        self.0 = self.0.parameter(parameter);
        self
    }

    /// What all writes of an object have in common.
    fn writes(self) -> Asked {
        self.takes(header_parameter("If-Match", "Only if the object has one of these ETags; *: if it exists"))
            .takes(header_parameter("If-None-Match", "Only if it has none of these; *: if it does not exist"))
            .takes(wait())
            .refuses(409, "It is in use")
            .refuses(412, "A condition does not hold")
    }

    fn body(mut self, types: &[&str], schema: RefOr<Schema>) -> Asked {
        let mut body: RequestBodyBuilder = RequestBody::builder().required(Some(Required::True));
        for media in types {
            body = body.content(*media, Content::new(Some(schema.clone())));
        }
        self.0 = self.0.request_body(Some(body.build()));
        self.refuses(408, "The body came too slowly")
            .refuses(413, "The body is too long")
            .refuses(415, "The body is of another type")
            .refuses(422, "The desired state would not be consistent")
    }

    fn build(self) -> Operation {
        self.0.build()
    }
}

fn text() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::String).into()
}

/// An integer in a range.
fn bounded(least: u64, most: u64) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(most)).into()
}

fn list_of(schema: RefOr<Schema>) -> RefOr<Schema> {
    ArrayBuilder::new().items(schema).into()
}

fn path_parameter(name: &str, description: &str) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(description))
        .schema(Some(Ref::from_schema_name(Name::name())))
        .build()
}

fn query_parameter(name: &str, description: &str, schema: RefOr<Schema>) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema))
        .build()
}

fn header_parameter(name: &str, description: &str) -> Parameter {
    let tags = ObjectBuilder::new().schema_type(Type::String).pattern(Some(TAGS));
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(tags))
        .build()
}

fn wait() -> Parameter {
    let seconds =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).maximum(Some(MAX_WAIT_SECONDS));
    query_parameter("wait", WAIT, seconds.into())
}

/// What a merge patch of an object may have: any of its fields, and null for those that may be absent.
fn patch(mut object: Object) -> Object {
    let required = std::mem::take(&mut object.required);
    for (field, schema) in &mut object.properties {
        if !required.contains(field) {
            let null = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Null));
            *schema = AnyOfBuilder::new().item(schema.clone()).item(null).into();
        }
    }
    object
}

/// The document as JSON, as it is served.
pub fn json() -> Value {
    serde_json::to_value(document()).unwrap_or_default()
}
