//! Compares responses with expectations.

use exec_server_test_support::decoded;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Compares a response with the `expect` or the `error` of its step. Without either, any success is
/// accepted.
pub(super) fn check(step: &Value, response: &Value) {
    if let Some(kind) = step.get("error") {
        assert!(is_error(response, kind), "{step}: {response}");
        return;
    }
    let ok = &response["ok"];
    assert!(ok.is_object(), "{step}: {response}");
    for (member, expected) in step["expect"].as_object().into_iter().flatten() {
        match member.as_str() {
            // All output of a process, given as a text, as the last number of `seq`, or as a file.
            "output" => {
                let output = output(expected);
                let sha256: String =
                    Sha256::digest(&output).iter().map(|byte| format!("{byte:02x}")).collect();
                let got = (ok["bytes"].as_u64(), ok["sha256"].as_str());
                let wanted = (Some(output.len() as u64), Some(sha256.as_str()));
                assert_eq!(got, wanted, "output is lost or repeated: {step}: {response}");
            }
            // Every byte was received or declared as missing.
            "bytesAndGaps" => {
                let gaps = ok["gaps"].as_array().unwrap();
                let dropped: u64 = gaps.iter().map(|gap| gap.as_u64().unwrap()).sum();
                assert!(dropped > 0, "there is no gap: {response}");
                let total = ok["bytes"].as_u64().unwrap() + dropped;
                assert_eq!(Some(total), expected.as_u64(), "{step}: {response}");
            }
            "text" => {
                let data = if ok["data"].is_null() { &ok["stdout"] } else { &ok["data"] };
                assert_eq!(decoded(data), expected.as_str().unwrap().as_bytes(), "{step}");
            }
            _ => assert_eq!(ok[member], *expected, "{step}: {response}"),
        }
    }
}

/// Returns whether a response is an error of this kind, or a server error with this code.
pub(super) fn is_error(response: &Value, kind: &Value) -> bool {
    let error = &response["error"];
    error["kind"] == *kind || (error["kind"] == "server" && error["code"] == *kind)
}

fn output(expected: &Value) -> Vec<u8> {
    if let Some(text) = expected.as_str() {
        return text.into();
    }
    if let Some(last) = expected["seq"].as_u64() {
        return (1..=last).map(|number| format!("{number}\n")).collect::<String>().into();
    }
    std::fs::read(expected["file"].as_str().unwrap()).unwrap()
}
