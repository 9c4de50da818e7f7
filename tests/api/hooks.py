"""What Schemathesis cannot know."""

import schemathesis
from schemathesis import GenerationMode

# What there is, see state.toml: references to it make objects that can be written.
REFERENCES = {"vpc": "blue", "host": "h1", "qos_policy": "slow", "security_groups": ["blue"], "remote_group": "blue"}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """It generates JSON alone."""
    raw_schema["paths"]["/v1/apply"]["post"]["requestBody"]["content"].pop("application/toml")


@schemathesis.hook
def map_query(context, query):
    if query:
        # Nobody else brings anything into force, so waiting for long is a waste of time.
        if isinstance(query.get("wait"), int) and 0 < query["wait"] <= 300:
            query["wait"] = 0
        # Without what there is, nothing could be written any more.
        if query.get("prune") in (True, "true"):
            query["dry_run"] = "true"
    return query


@schemathesis.hook
def map_body(context, body):
    """JSON Schema takes 1.0 for an integer; masqd, like many, does not."""
    if isinstance(body, dict):
        return {field: map_body(context, value) for field, value in body.items()}
    if isinstance(body, list):
        return [map_body(context, value) for value in body]
    return int(body) if isinstance(body, float) and body.is_integer() else body


@schemathesis.hook
def map_case(context, case):
    """Objects are called what their paths call them, and refer to what there is."""
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return case
    path = case.path_parameters or {}
    if "group" in path and case.method == "PUT":
        path["group"] = "blue"
    if isinstance(case.body, dict) and "name" in path:
        for field in case.body:
            if case.body[field] is not None and field in REFERENCES:
                case.body[field] = REFERENCES[field]
        for field, parameter in (("name", "name"), ("security_group", "group")):
            if field in case.body and parameter in path:
                case.body[field] = path[parameter]
    return case
