//! Actions of operators: the last ones in memory, and a line of the audit file before each, if there is one.

use super::api::Reply;
use super::operator::Operator;
use crate::cli::audit::{Audit, now};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::StatusCode;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use towpath_broker::add_name;

/// Actions that are remembered.
const REMEMBERED_MAX: usize = 200;

/// Bytes of the parameters that are noted of an action. Valid ones have less.
const PARAMETERS_BYTES_MAX: usize = 1024;

/// Longest wait for the audit file.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Actions of operators.
pub struct Actions {
    audit: Option<Audit>,
    /// The latest last.
    last: Mutex<VecDeque<Value>>,
}

impl Actions {
    /// Those that the end of the audit file has. With one, none is done that isn't in it.
    pub fn new(audit: Option<Audit>) -> Actions {
        let last = audit.as_ref().map(|audit| earlier(audit.earlier())).unwrap_or_default();
        Actions { audit, last: Mutex::new(last) }
    }

    /// Writes down that an action is about to be done. What is returned is for [`Actions::end`].
    pub async fn begin(&self, operator: &Operator, address: &str, path: &str, body: &[u8]) -> Result<Value, Reply> {
        let action = describe(operator, address, path, body);
        let Some(audit) = &self.audit else { return Ok(action) };
        let reason = match timeout(AUDIT_TIMEOUT, audit.action(&line("action", &action))).await {
            Ok(Ok(Ok(()))) => return Ok(action),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(_)) => "too many lines wait for its disk".to_owned(),
            Err(_) => format!("its disk takes longer than {AUDIT_TIMEOUT:?}"),
        };
        tracing::error!(%reason, path, "an operator's action is refused: the audit file can't be written");
        let why = format!("it is not done, since the file of --audit can't be written: {reason}");
        let ended = self.remember(action, StatusCode::SERVICE_UNAVAILABLE, &why);
        // The line before may yet be written, and would look like an action that was done.
        drop(audit.action(&line("action-ended", &ended)));
        Err(Reply::error(503, why))
    }

    /// Notes how an action has ended.
    pub fn end(&self, mut action: Value, reply: &Reply) {
        let body: Value = serde_json::from_str(&reply.body).unwrap_or_default();
        let outcome = body["error"].as_str().unwrap_or("done");
        action["count"] = count_of(&body).into();
        let ended = self.remember(action, reply.status, outcome);
        if let Some(audit) = &self.audit {
            // Nothing depends on this line.
            drop(audit.action(&line("action-ended", &ended)));
        }
    }

    fn remember(&self, mut action: Value, status: StatusCode, outcome: &str) -> Value {
        action["status"] = status.as_u16().into();
        action["outcome"] = outcome.into();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= REMEMBERED_MAX {
            last.pop_front();
        }
        last.push_back(action.clone());
        action
    }

    /// The last actions, the latest first.
    pub fn last(&self) -> Vec<Value> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().rev().cloned().collect()
    }
}

/// Requests or dead letters that an action has ended or moved, by its reply.
pub fn count_of(reply: &Value) -> Option<u64> {
    ["purged", "requeued", "dropped"].iter().find_map(|name| reply[name].as_u64())
}

/// Actions by their lines in the audit file. Nobody knows how one has ended that has no second line.
fn earlier(lines: &[Value]) -> VecDeque<Value> {
    let is_same = |one: &Value, other: &Value| {
        ["by", "address", "action", "object", "object_b64", "id", "parameters"].iter().all(|of| one[*of] == other[*of])
    };
    let mut actions: VecDeque<Value> = VecDeque::new();
    for line in lines {
        let is_begin = line["event"] == "action";
        let begun =
            actions.iter_mut().filter(|_| !is_begin).find(|begun| begun["status"].is_null() && is_same(begun, line));
        if let Some(begun) = begun {
            begun["status"] = line["status"].clone();
            begun["outcome"] = line["outcome"].clone();
            begun["count"] = line["count"].clone();
            continue;
        }
        let mut action = line.clone();
        if let Some(members) = action.as_object_mut() {
            ["event", "name", "key"].iter().for_each(|member| _ = members.remove(*member));
        }
        if is_begin {
            action["status"] = Value::Null;
            action["outcome"] = "unknown: the server ended meanwhile".into();
        }
        if actions.len() >= REMEMBERED_MAX {
            actions.pop_front();
        }
        actions.push_back(action);
    }
    actions
}

/// An action by its request: operator, action, object and parameters.
fn describe(operator: &Operator, address: &str, path: &str, body: &[u8]) -> Value {
    let path = path.strip_prefix("/api/v1/").unwrap_or(path);
    let (action, object, id) = match path.split('/').collect::<Vec<_>>()[..] {
        ["problems", action] => (action, None, None),
        ["peers", id, action] => (action, Some(id.as_bytes().to_vec()), None),
        [_, name, action] => (action, Some(decoded(name)), None),
        // A request, or a dead letter, of a service.
        [_, name, .., id, action] => (action, Some(decoded(name)), Some(id)),
        _ => (path, None, None),
    };
    let parameters = Some(body).filter(|body| body.len() <= PARAMETERS_BYTES_MAX);
    let parameters = parameters.and_then(|body| serde_json::from_slice::<Value>(body).ok());
    let mut action = json!({
        "time": now(),
        "by": operator.name,
        "address": address,
        "action": action,
        "object": null,
        "id": id,
        "parameters": parameters,
    });
    // Actions on what the server has no path for.
    let named = || ["who", "name", "kind"].iter().find_map(|member| action["parameters"][member].as_str());
    let object = object.or_else(|| named().map(|name| name.as_bytes().to_vec()));
    if let Some(object) = object {
        add_name(&mut action, "object", &object);
    }
    action
}

/// A name as paths have it, in base64.
fn decoded(name: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(name).unwrap_or_else(|_| name.as_bytes().to_vec())
}

/// A line of the audit file, with the members that all its lines have.
fn line(event: &str, action: &Value) -> Value {
    let mut line = json!({ "time": now(), "event": event, "name": null, "key": null });
    if let (Some(line), Value::Object(action)) = (line.as_object_mut(), action.clone()) {
        line.extend(action.into_iter().filter(|(member, _)| member != "time"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_known_again_from_their_lines() {
        let ann = Operator::of_token("ann", false);
        let [one, other] =
            ["/api/v1/services/ZWNobw/purge", "/api/v1/drain"].map(|path| describe(&ann, "inproc", path, b"{}"));
        let ended = Actions::new(None).remember(one.clone(), StatusCode::CONFLICT, "it was another number");
        let earlier = earlier(&[line("action", &one), line("action", &other), line("action-ended", &ended)]);
        let members = |action: &Value| [&action["by"], &action["action"], &action["status"]].map(Clone::clone);
        assert_eq!(members(&earlier[0]), ["ann".into(), "purge".into(), Value::from(409)]);
        assert_eq!(members(&earlier[1]), ["ann".into(), "drain".into(), Value::Null]);
        assert!(earlier.len() == 2 && earlier[1]["outcome"].as_str().unwrap().contains("unknown"), "{earlier:?}");
        // Its beginning was too long ago.
        assert_eq!(super::earlier(&[line("action-ended", &ended)])[0]["outcome"], "it was another number");
        let many: Vec<_> = (0..300).map(|_| line("action", &one)).collect();
        assert_eq!(super::earlier(&many).len(), REMEMBERED_MAX);
    }

    #[test]
    fn the_latest_actions_are_remembered_with_what_they_act_on() {
        let actions = Actions::new(None);
        for number in 0..300 {
            let body = format!("{{\"expect_waiting\": {number}}}");
            let action = describe(&Operator::nobody(), "inproc", "/api/v1/services/ZWNobw/purge", body.as_bytes());
            actions.end(action, &Reply::error(409, "other"));
        }
        let last = actions.last();
        assert_eq!((last.len(), &last[0]["parameters"]["expect_waiting"]), (REMEMBERED_MAX, &299.into()));
        assert_eq!((&last[0]["action"], &last[0]["object"]), (&"purge".into(), &"echo".into()));
        assert_eq!((&last[0]["status"], &last[0]["outcome"]), (&409.into(), &"other".into()));
        let purge = describe(&Operator::nobody(), "inproc", "/api/v1/services/ZWNobw/purge", b"{}");
        actions.end(purge, &Reply::json(&json!({ "service": "echo", "purged": 30 })));
        let last = actions.last();
        assert_eq!((&last[0]["outcome"], &last[0]["count"]), (&"done".into(), &30.into()));
        let again = earlier(&[line("action", &last[0]), line("action-ended", &last[0])]);
        assert_eq!((again.len(), &again[0]["count"]), (1, &30.into()));
        let address = "ipc (pid 7, uid 1000)";
        let ann = Operator::of_token("ann", false);
        let kick = describe(&ann, address, "/api/v1/peers/3.0/disconnect", b"");
        assert_eq!(
            (&kick["by"], &kick["object"], &kick["action"]),
            (&"ann".into(), &"3.0".into(), &"disconnect".into())
        );
        assert_eq!(describe(&ann, address, "/api/v1/drain", b"")["action"], "drain");
        let block = describe(&ann, address, "/api/v1/block", b"{\"who\": \"10.0.0.7\"}");
        assert_eq!((&block["action"], &block["object"]), (&"block".into(), &"10.0.0.7".into()));
        let end = describe(&ann, address, "/api/v1/services/ZWNobw/requests/7.1/end", b"{}");
        assert_eq!((&end["action"], &end["object"], &end["id"]), (&"end".into(), &"echo".into(), &"7.1".into()));
    }
}
