//! What this runner cannot run yet, found before anything runs.
//!
//! A part of the language that is parsed and not run must never look like a pass: the whole script is reported as
//! unsupported with the line concerned. Unsupported are code blocks, outer headers (GRE, MPLS, IP in IP), PSP, descriptors
//! that are no sockets (`open`, `splice`, `sendfile`), capabilities, and the contents of error-queue control messages.
//! Invariant: a script that passes this scan uses only what `run` executes. It judges syntax, not meaning.

use super::super::ast::{Action, CallSpec, Event, Expr, Script};

/// Calls of the language that are no socket calls of a stack.
const CALLS: &[&str] = &["splice", "open", "sendfile", "cap_set", "psp_rx_assoc", "psp_tx_assoc"];

/// `line: what` of the first part that is not supported.
pub(crate) fn unsupported(script: &Script) -> Option<String> {
    script.events.iter().find_map(|e| reason(e).map(|text| format!("{}: {text}", e.pos.line)))
}

fn reason(e: &Event) -> Option<String> {
    match &e.action {
        Action::Code(text) => {
            Some(format!("code blocks are not supported: %{{ {} }}%", text.lines().next().unwrap_or("")))
        }
        Action::Inbound(p) | Action::Outbound(p) if !p.encap.is_empty() => {
            Some("encapsulation is not supported".into())
        }
        Action::Inbound(p) | Action::Outbound(p) if p.psp_spi.is_some() => Some("PSP is not supported".into()),
        Action::Call(c) if CALLS.contains(&c.name.as_str()) => Some(format!("{} is not supported", c.name)),
        Action::Call(c) if has_structured_cmsg(c) => Some("contents of error-queue messages are not supported".into()),
        _ => None,
    }
}

fn has_structured_cmsg(c: &CallSpec) -> bool {
    fn within(e: &Expr) -> bool {
        match e {
            Expr::List(items) | Expr::Or(items) => items.iter().any(within),
            Expr::Struct(fields) => fields.iter().any(|f| {
                let data = f.name.as_deref() == Some("cmsg_data");
                (data && matches!(f.value, Expr::Struct(_))) || within(&f.value)
            }),
            _ => false,
        }
    }
    c.args.iter().any(within)
}
