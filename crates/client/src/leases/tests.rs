use std::task::{Context, Poll, Waker};

use exec_server_protocol::{Notification, NotificationParams as _};
use serde_json::{Value, json};

use super::inbox::Queue;
use super::*;
use crate::notified::RoutedNotification;

fn drain<Q: Queue>(inbox: &Inbox<Q>) -> Vec<Option<Result<Q::Item, String>>> {
    let context = Context::from_waker(Waker::noop());
    let mut found = Vec::new();
    while let Poll::Ready(item) = inbox.poll_item(&context) {
        let is_last = item.is_none();
        found.push(item.map(|item| item.map_err(|error| error.to_string())));
        if is_last {
            break;
        }
    }
    found
}

fn outbound(leases: &mut Leases) -> Vec<(String, Value)> {
    std::iter::from_fn(|| leases.poll_outbound())
        .map(|message| match message {
            LeaseMessage::GiveUp(call) => {
                let params = serde_json::from_str(call.encode_params().get()).unwrap();
                (call.method().name().to_owned(), params)
            }
            LeaseMessage::Acknowledge(ack) => {
                (HttpAckParams::NAME.to_owned(), serde_json::to_value(ack).unwrap())
            }
        })
        .collect()
}

fn notify(leases: &mut Leases, method: &str, params: &Value) {
    let raw = serde_json::value::to_raw_value(params).unwrap();
    let text_len = raw.get().len();
    let notification = Notification { method: method.into(), params: Some(&raw) };
    let decoded = ServerNotification::decode(&notification).unwrap().unwrap();
    match RoutedNotification::from(decoded) {
        RoutedNotification::Lease { id, notification } => {
            leases.notified(&id, notification, text_len);
        }
        _ => panic!("{method} is not about a lease"),
    }
}

fn track<Q: Queue>(
    leases: &mut Leases,
    id: &str,
    queue: Q,
    target: impl FnOnce(Arc<Inbox<Q>>) -> Target,
) -> Arc<Inbox<Q>> {
    let inbox = Arc::new(Inbox::new(queue));
    leases.track(Lease::new(id.into(), target(Arc::clone(&inbox))));
    inbox
}

fn answer(leases: &mut Leases, id: &str, answer: Result<&str, ExecServerError>) -> Result<(), ()> {
    let (refused, mut delivered) = (answer.is_err(), false);
    leases.opened(&id.into(), refused, || delivered = true);
    assert!(delivered);
    answer.map(drop).map_err(drop)
}

fn delta(id: &str, seq: u64, done: bool) -> Value {
    json!({"requestId": id, "seq": seq, "deltaBase64": "eA==", "done": done})
}

fn changed(id: &str) -> Value {
    json!({"watchId": id, "changedPaths": ["/a"], "changes": [{"path": "/a", "kind": "created"}]})
}

fn no() -> ExecServerError {
    ExecServerError::Interrupted { method: "no" }
}

#[test]
fn notifications_reach_their_holder_even_before_the_response() {
    let mut leases = Leases::default();
    let one = track(&mut leases, "1", PendingChanges::default(), Target::Watch);
    let two = track(&mut leases, "2", PendingChanges::default(), Target::Watch);
    notify(&mut leases, "fs/changed", &changed("1"));
    assert_eq!(drain(&one).len(), 1);
    assert_eq!(drain(&two).len(), 0);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    notify(&mut leases, "fs/changed", &changed("1"));
    assert_eq!(drain(&one).len(), 1);
    notify(&mut leases, "fs/changed", &changed("3"));
    // Right id, wrong kind.
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 1, false));
    assert_eq!(drain(&one).len(), 0);
    assert_eq!(outbound(&mut leases), []);
}

#[test]
fn a_refused_lease_is_removed() {
    let mut leases = Leases::default();
    let watch = track(&mut leases, "1", PendingChanges::default(), Target::Watch);
    assert!(answer(&mut leases, "1", Err(no())).is_err());
    assert!(watch.is_over() && leases.by_id.is_empty());
    assert_eq!(outbound(&mut leases), [], "there is nothing to release");
}

#[test]
fn a_lost_connection_ends_leases_after_their_queued_items() {
    let mut leases = Leases::default();
    let body = track(&mut leases, "1", Pieces::default(), Target::Body);
    let file = track(&mut leases, "2", NoItems, |inbox| Target::File {
        inbox,
        purpose: FilePurpose::Read,
    });
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 1, false));
    body.abandon();
    leases.collect_outbound(&"1".into());
    leases.connection_lost();
    assert!(file.is_over());
    let told = drain(&body);
    assert!(matches!(&told[..], [Some(Ok(_)), Some(Err(error)), None]
        if error.contains("http/request was interrupted")));
    assert_eq!(outbound(&mut leases), [], "the lease does not exist on the new connection");
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 2, true));
    assert!(leases.by_id.is_empty());
}

#[test]
fn an_abandoned_lease_is_released_once_it_is_open() {
    let mut leases = Leases::default();
    let watch = track(&mut leases, "1", PendingChanges::default(), Target::Watch);
    let read = track(&mut leases, "2", NoItems, |inbox| Target::File {
        inbox,
        purpose: FilePurpose::Read,
    });
    let write = track(&mut leases, "3", NoItems, |inbox| Target::File {
        inbox,
        purpose: FilePurpose::Write,
    });
    watch.abandon();
    read.abandon();
    write.abandon();
    for id in ["1", "2", "3"] {
        leases.collect_outbound(&id.into());
        assert_eq!(outbound(&mut leases), [], "the release could overtake the open");
    }
    for id in ["1", "2", "3"] {
        answer(&mut leases, id, Ok("{}")).unwrap();
    }
    let expected = [
        ("fs/unwatch".to_owned(), json!({"watchId": "1"})),
        ("fs/close".to_owned(), json!({"handleId": "2"})),
        ("fs/close".to_owned(), json!({"handleId": "3", "keep": true})),
    ];
    assert_eq!(outbound(&mut leases), expected);
    assert!(leases.by_id.is_empty());
}

#[test]
fn a_search_is_cancelled_again_for_each_late_result() {
    let mut leases = Leases::default();
    let search = track(&mut leases, "1", Matches::default(), Target::Search);
    search.abandon();
    leases.collect_outbound(&"1".into());
    let cancel = ("fs/cancelSearch".to_owned(), json!({"searchId": "1"}));
    assert_eq!(outbound(&mut leases), std::slice::from_ref(&cancel));
    let results = json!({"searchId": "1", "results": []});
    notify(&mut leases, "fs/searchResults", &results);
    assert_eq!(outbound(&mut leases), [cancel]);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    assert_eq!(outbound(&mut leases), []);
    assert!(leases.by_id.is_empty());
}

#[test]
fn a_complete_body_is_not_cancelled() {
    let mut leases = Leases::default();
    let body = track(&mut leases, "1", Pieces::default(), Target::Body);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 1, false));
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 2, true));
    assert!(leases.by_id.is_empty());
    assert!(matches!(&drain(&body)[..], [Some(Ok(_)), Some(Ok(_)), None]));
    body.abandon();
    leases.collect_outbound(&"1".into());
    assert_eq!(outbound(&mut leases), []);
}

#[test]
fn a_body_with_a_missing_piece_fails_and_is_cancelled() {
    let mut leases = Leases::default();
    let body = track(&mut leases, "1", Pieces::default(), Target::Body);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 2, false));
    assert!(matches!(&drain(&body)[..], [Some(Err(error)), None] if error.contains("piece 2")));
    assert_eq!(outbound(&mut leases), [("http/cancel".to_owned(), json!({"requestId": "1"}))]);
}

#[test]
fn an_unreadable_notification_fails_its_lease() {
    let mut leases = Leases::default();
    let watch = track(&mut leases, "1", PendingChanges::default(), Target::Watch);
    let other = track(&mut leases, "2", PendingChanges::default(), Target::Watch);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    leases.fail("1", Violation::BodyNumbers { expected: 1, got: 2 });
    assert!(watch.is_over() && !other.is_over());
    assert_eq!(outbound(&mut leases), [("fs/unwatch".to_owned(), json!({"watchId": "1"}))]);
}

#[test]
fn acknowledgements_go_only_to_servers_that_support_them() {
    for acks in [true, false] {
        let mut leases = Leases::default();
        leases.acknowledge(acks);
        let body = track(&mut leases, "1", Pieces::default(), Target::Body);
        answer(&mut leases, "1", Ok("{}")).unwrap();
        for seq in 1..=64 {
            notify(&mut leases, "http/request/bodyDelta", &delta("1", seq, false));
        }
        leases.collect_outbound(&"1".into());
        assert_eq!(outbound(&mut leases), [], "nothing is consumed yet");
        assert_eq!(drain(&body).len(), 64);
        assert_eq!(body.has_outbound(), acks);
        leases.collect_outbound(&"1".into());
        let ack = ("http/request/ack".to_owned(), json!({"requestId": "1", "seq": 64}));
        let expected = if acks { vec![ack] } else { Vec::new() };
        assert_eq!(outbound(&mut leases), expected);
    }
}

#[test]
fn dropping_an_unsent_lease_ends_its_inbox() {
    let inbox = Arc::new(Inbox::new(Matches::default()));
    drop(Lease::new("1".into(), Target::Search(Arc::clone(&inbox))));
    assert!(matches!(&drain(&inbox)[..], [Some(Err(_)), None]));
}
