use std::task::{Context, Poll, Waker};

use serde_json::{Value, json};

use super::inbox::Queue;
use super::*;

/// What there is for a holder now.
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

/// The methods and params of what is to be sent.
fn errands(leases: &mut Leases) -> Vec<(String, Value)> {
    std::iter::from_fn(|| leases.poll_errand())
        .map(|errand| match errand {
            Errand::Call(call) => {
                (call.method.name().to_owned(), serde_json::from_str(call.params.get()).unwrap())
            }
            Errand::Notify(text) => {
                let message: Value = serde_json::from_slice(&text).unwrap();
                (message["method"].as_str().unwrap().to_owned(), message["params"].clone())
            }
        })
        .collect()
}

fn notify(leases: &mut Leases, method: &str, params: &Value) -> Result<IsOurs, Violation> {
    let params = serde_json::value::to_raw_value(params).unwrap();
    leases.notified(&Notification { method: method.into(), params: Some(&params) })
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

fn answer(leases: &mut Leases, id: &str, answer: Result<&str, ExecServerError>) -> Answer {
    let (sender, mut receiver) = oneshot::channel();
    let answer = answer.map(|text| RawValue::from_string(text.to_owned()).unwrap());
    leases.opened(&id.into(), sender, answer);
    receiver.try_recv().unwrap()
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
fn news_reach_their_holder_also_before_the_answer() {
    let mut leases = Leases::default();
    let one = track(&mut leases, "1", PendingChanges::default(), Target::Watch);
    let two = track(&mut leases, "2", PendingChanges::default(), Target::Watch);
    assert_eq!(notify(&mut leases, "fs/changed", &changed("1")).unwrap(), IsOurs::Yes);
    assert_eq!(drain(&one).len(), 1);
    assert_eq!(drain(&two).len(), 0);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    assert_eq!(notify(&mut leases, "fs/changed", &changed("1")).unwrap(), IsOurs::Yes);
    assert_eq!(drain(&one).len(), 1);
    assert_eq!(notify(&mut leases, "fs/changed", &changed("3")).unwrap(), IsOurs::Yes);
    assert_eq!(notify(&mut leases, "process/output", &changed("1")).unwrap(), IsOurs::No);
    // Right id, wrong kind.
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 1, false)).unwrap();
    assert_eq!(drain(&one).len(), 0);
    assert_eq!(errands(&mut leases), []);
}

#[test]
fn what_is_refused_is_forgotten() {
    let mut leases = Leases::default();
    let watch = track(&mut leases, "1", PendingChanges::default(), Target::Watch);
    assert!(answer(&mut leases, "1", Err(no())).is_err());
    assert!(watch.is_over() && leases.by_id.is_empty());
    assert_eq!(errands(&mut leases), [], "there is nothing to give up");
}

#[test]
fn a_lost_connection_ends_everything_after_what_has_come() {
    let mut leases = Leases::default();
    let body = track(&mut leases, "1", Pieces::default(), Target::Body);
    let file = track(&mut leases, "2", NoItems, |inbox| Target::File {
        inbox,
        purpose: FilePurpose::Read,
    });
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 1, false)).unwrap();
    body.abandon();
    leases.tend(&"1".into());
    leases.connection_lost();
    assert!(file.is_over());
    let told = drain(&body);
    assert!(matches!(&told[..], [Some(Ok(_)), Some(Err(error)), None]
        if error.contains("http/request was interrupted")));
    assert_eq!(errands(&mut leases), [], "the new connection knows nothing of it");
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 2, true)).unwrap();
    assert!(leases.by_id.is_empty());
}

#[test]
fn what_nobody_wants_is_given_up_once_it_is_open() {
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
        leases.tend(&id.into());
        assert_eq!(errands(&mut leases), [], "the server might see the end before the beginning");
    }
    for id in ["1", "2", "3"] {
        answer(&mut leases, id, Ok("{}")).unwrap();
    }
    let expected = [
        ("fs/unwatch".to_owned(), json!({"watchId": "1"})),
        ("fs/close".to_owned(), json!({"handleId": "2"})),
        ("fs/close".to_owned(), json!({"handleId": "3", "keep": true})),
    ];
    assert_eq!(errands(&mut leases), expected);
    assert!(leases.by_id.is_empty());
}

#[test]
fn a_search_is_cancelled_as_often_as_it_goes_on() {
    let mut leases = Leases::default();
    let search = track(&mut leases, "1", Matches::default(), Target::Search);
    search.abandon();
    leases.tend(&"1".into());
    let cancel = ("fs/cancelSearch".to_owned(), json!({"searchId": "1"}));
    assert_eq!(errands(&mut leases), std::slice::from_ref(&cancel));
    let results = json!({"searchId": "1", "results": []});
    notify(&mut leases, "fs/searchResults", &results).unwrap();
    assert_eq!(errands(&mut leases), [cancel]);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    assert_eq!(errands(&mut leases), []);
    assert!(leases.by_id.is_empty());
}

#[test]
fn a_body_ends_with_its_last_piece_and_is_not_cancelled() {
    let mut leases = Leases::default();
    let body = track(&mut leases, "1", Pieces::default(), Target::Body);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 1, false)).unwrap();
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 2, true)).unwrap();
    assert!(leases.by_id.is_empty());
    assert!(matches!(&drain(&body)[..], [Some(Ok(_)), Some(Ok(_)), None]));
    body.abandon();
    leases.tend(&"1".into());
    assert_eq!(errands(&mut leases), []);
}

#[test]
fn a_body_with_a_hole_fails_and_is_cancelled() {
    let mut leases = Leases::default();
    let body = track(&mut leases, "1", Pieces::default(), Target::Body);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    notify(&mut leases, "http/request/bodyDelta", &delta("1", 2, false)).unwrap();
    assert!(matches!(&drain(&body)[..], [Some(Err(error)), None] if error.contains("piece 2")));
    assert_eq!(errands(&mut leases), [("http/cancel".to_owned(), json!({"requestId": "1"}))]);
}

#[test]
fn what_cannot_be_read_fails_whoever_it_was_for() {
    let mut leases = Leases::default();
    let watch = track(&mut leases, "1", PendingChanges::default(), Target::Watch);
    let other = track(&mut leases, "2", PendingChanges::default(), Target::Watch);
    answer(&mut leases, "1", Ok("{}")).unwrap();
    notify(&mut leases, "fs/changed", &json!({"watchId": "1", "changedPaths": 7})).unwrap();
    assert!(watch.is_over() && !other.is_over());
    assert_eq!(errands(&mut leases), [("fs/unwatch".to_owned(), json!({"watchId": "1"}))]);
    assert!(notify(&mut leases, "fs/changed", &json!({"changedPaths": []})).is_err());
}

#[test]
fn acknowledgements_go_to_those_who_know_them() {
    for acks in [true, false] {
        let mut leases = Leases::default();
        leases.acknowledge(acks);
        let body = track(&mut leases, "1", Pieces::default(), Target::Body);
        answer(&mut leases, "1", Ok("{}")).unwrap();
        for seq in 1..=64 {
            notify(&mut leases, "http/request/bodyDelta", &delta("1", seq, false)).unwrap();
        }
        leases.tend(&"1".into());
        assert_eq!(errands(&mut leases), [], "nothing is consumed yet");
        assert_eq!(drain(&body).len(), 64);
        assert_eq!(body.has_errand(), acks);
        leases.tend(&"1".into());
        let ack = ("http/request/ack".to_owned(), json!({"requestId": "1", "seq": 64}));
        let expected = if acks { vec![ack] } else { Vec::new() };
        assert_eq!(errands(&mut leases), expected);
    }
}

#[test]
fn a_lease_that_was_never_sent_is_over() {
    let inbox = Arc::new(Inbox::new(Matches::default()));
    drop(Lease::new("1".into(), Target::Search(Arc::clone(&inbox))));
    assert!(matches!(&drain(&inbox)[..], [Some(Err(_)), None]));
}
