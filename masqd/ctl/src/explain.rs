//! `masqctl explain`: whether two ends may be connected, and why.

use std::fmt::Write;

use masq_model::api::{ExplainedEnd, Explanation};

use crate::table::Table;

/// What is printed for people.
pub fn text(explanation: &Explanation) -> String {
    let verdict = if explanation.allowed { "allowed" } else { "denied" };
    let mut text = format!("{verdict}: {}\n\n", explanation.summary);
    let mut ends = Table::new(["END", "VNIC", "ADDRESS", "HOST", "SECURITY-GROUPS"]);
    ends.row(end("from", &explanation.from));
    ends.row(end("to", &explanation.to));
    text += &ends.to_string();
    if !explanation.flows.is_empty() {
        let mut flows =
            Table::new(["SENDER", "RECEIVER", "PASSES", "EGRESS OF SENDER", "INGRESS OF RECEIVER"]);
        for f in &explanation.flows {
            flows.row([
                f.from.to_string(),
                f.to.to_string(),
                if f.allowed { "yes" } else { "no" }.into(),
                decision(f.egress_allowed, &f.egress),
                decision(f.ingress_allowed, &f.ingress),
            ]);
        }
        text += &format!("\n{flows}");
    }
    if !explanation.obstacles.is_empty() {
        text += "\nin the way:\n";
        for obstacle in &explanation.obstacles {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {obstacle}");
        }
    }
    text
}

fn end(title: &str, end: &ExplainedEnd) -> [String; 5] {
    [
        title.into(),
        end.vnic.clone(),
        end.address.to_string(),
        end.host.clone().unwrap_or_default(),
        end.security_groups.join(","),
    ]
}

fn decision(allowed: bool, by: &str) -> String {
    format!("{}: {by}", if allowed { "allow" } else { "deny" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_direction_is_told_at_both_ends() {
        let told = json!({
            "allowed": false, "summary": "blue-2 may not receive from blue-1",
            "from": {"vnic": "blue-1", "address": "192.168.0.1", "security_groups": ["blue", "web"], "host": "h1"},
            "to": {"vnic": "blue-2", "address": "192.168.0.2", "security_groups": []},
            "flows": [
                {"from": "192.168.0.1", "to": "192.168.0.2", "allowed": false, "egress": "rule blue/out",
                 "egress_allowed": true, "ingress": "no rule", "ingress_allowed": false},
                {"from": "192.168.0.2", "to": "192.168.0.1", "allowed": true, "egress": "membership in blue",
                 "egress_allowed": true, "ingress": "rule web/in", "ingress_allowed": true}],
            "obstacles": ["vnic \"blue-2\" runs on no host"]
        });
        let expected = "\
denied: blue-2 may not receive from blue-1

END   VNIC    ADDRESS      HOST  SECURITY-GROUPS
from  blue-1  192.168.0.1  h1    blue,web
to    blue-2  192.168.0.2  -     -

SENDER       RECEIVER     PASSES  EGRESS OF SENDER           INGRESS OF RECEIVER
192.168.0.1  192.168.0.2  no      allow: rule blue/out       deny: no rule
192.168.0.2  192.168.0.1  yes     allow: membership in blue  allow: rule web/in

in the way:
  vnic \"blue-2\" runs on no host
";
        assert_eq!(text(&serde_json::from_value(told).unwrap()), expected);
    }
}
