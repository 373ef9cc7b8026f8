//! `decode` agrees with `decode_unchecked`, except that it also refuses messages that exceed the
//! bounds. Decoding params and notifications never panics. Decoded params and server notifications
//! survive a round trip.
#![no_main]

use exec_server_protocol::{
    Call, ClientNotification, Message, Notification, Request, ServerNotification, check_bounds,
    decode, decode_unchecked,
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &[u8]| {
    let unchecked = decode_unchecked(text);
    match decode(text) {
        Ok(message) => {
            assert_eq!(members(&message), members(&unchecked.expect("decode accepts it")));
            decode_content(&message);
        }
        Err(error) => {
            assert!(unchecked.is_err() || check_bounds(text).is_err(), "{error}");
        }
    }
});

/// Returns all members of a message, with params as they were sent.
fn members(message: &Message<'_>) -> (String, Option<Vec<u8>>) {
    let params = match message {
        Message::Request(request) => request.params.map(|params| params.as_bytes().to_vec()),
        Message::Notification(notification) => {
            notification.params.map(|params| params.get().as_bytes().to_vec())
        }
        Message::Response { .. } => None,
    };
    (format!("{message:?}"), params)
}

fn decode_content(message: &Message<'_>) {
    match message {
        Message::Request(request) => decode_call(request),
        Message::Notification(notification) => decode_notification(notification),
        Message::Response { .. } => {}
    }
}

fn decode_call(request: &Request<'_>) {
    let Ok(call) = Call::decode(&request.method, request.params) else { return };
    let encoded = call.encode_params();
    let again = Call::decode(&request.method, Some(&*encoded)).expect("encoded params are params");
    let value = |text: &str| serde_json::from_str::<Value>(text).expect("params are JSON");
    assert_eq!(value(encoded.get()), value(again.encode_params().get()));
}

fn decode_notification(notification: &Notification<'_>) {
    let _ = ClientNotification::decode(notification);
    let Ok(Some(decoded)) = ServerNotification::decode(notification) else { return };
    let encoded = decoded.encode();
    let Ok(Message::Notification(again)) = decode_unchecked(&encoded) else {
        panic!("an encoded notification cannot be decoded: {decoded:?}")
    };
    let again = ServerNotification::decode(&again).expect("an encoded notification can be decoded");
    assert_eq!(again, Some(decoded));
}
