//! `http/*` of the real binary, with a real web server.

mod drain;
mod requests;
mod secrets;
mod streams;
mod web;

use serde_json::{Value, json};

use crate::support::{Client, decoded};
use web::Web;

const INVALID_PARAMS: i64 = -32602;

/// Returns the params of a `GET` request, to be extended.
fn get(web: &Web, path: &str) -> Value {
    json!({"method": "GET", "url": web.at(path), "requestId": "r"})
}

fn with(mut params: Value, more: &Value) -> Value {
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

fn streamed(web: &Web, path: &str) -> Value {
    with(get(web, path), &json!({"streamResponse": true}))
}

fn header<'a>(response: &'a Value, name: &str) -> Option<&'a str> {
    let headers = response["headers"].as_array().unwrap();
    headers
        .iter()
        .find(|header| header["name"] == name)
        .map(|header| header["value"].as_str().unwrap())
}

/// Receives the next chunk of the body of request `r`, which must have this number.
fn delta(client: &mut Client, seq: u64) -> (Vec<u8>, Value) {
    let notification = client.notification();
    assert_eq!(notification["method"], "http/request/bodyDelta");
    let params = notification["params"].clone();
    assert_eq!(params["requestId"], "r");
    assert_eq!(params["seq"], seq);
    let bytes = decoded(&params["deltaBase64"]);
    assert!(bytes.len() <= 1 << 20, "{}", bytes.len());
    (bytes, params)
}

/// Receives a body to its end. Also returns its last notification.
fn rest_of_body(client: &mut Client) -> (Vec<u8>, Value) {
    let mut body = Vec::new();
    for seq in 1.. {
        let (bytes, params) = delta(client, seq);
        body.extend_from_slice(&bytes);
        if params["done"] == true {
            return (body, params);
        }
        assert_eq!(params["error"], Value::Null);
    }
    unreachable!("a body ends")
}
