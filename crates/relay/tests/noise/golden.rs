//! The bytes of one handshake, pinned, because deployed peers must understand them. If a dependency
//! changes these digests, it changes the protocol.

use bytes::Bytes;
use exec_server_relay::noise::{MESSAGE_1_OVERHEAD, MESSAGE_2_LEN};
use ring::digest::{SHA256, digest};

use crate::fixture::*;

fn sha256(bytes: &Bytes) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn handshake_and_first_records_are_pinned() {
    let (harness_handshake, message_1) = start();
    let pending = read(&message_1);
    assert_eq!(pending.authorization(), AUTHORIZATION);
    assert_eq!(pending.harness(), harness().public_key());
    let (message_2, mut environment) = pending.accept().unwrap();
    let mut harness = harness_handshake.finish(&message_2).unwrap();

    let request = seal(&mut harness.sender, "first record of the harness");
    let response = seal(&mut environment.sender, "first record of the environment");
    assert_opens(&mut environment.receiver, &request, "first record of the harness");
    assert_opens(&mut harness.receiver, &response, "first record of the environment");

    assert_eq!(MESSAGE_1_OVERHEAD, 3568);
    assert_eq!(message_1.len(), 3568 + AUTHORIZATION.len());
    assert_eq!((message_2.len(), MESSAGE_2_LEN), (3424, 3424));
    let digests = [&message_1, &message_2, &request, &response].map(sha256);
    assert_eq!(
        digests,
        [
            "033c10bc99edd309243949a84e441ed945eec085e71165626049622df542b8a7",
            "e2186e3174047e44134a8d70af8d7ff0d4acc07a28a001eda7994f35fdc782be",
            "c2329e8a14d6acedfee884706b952fa1852fa3de657f29653742d11a430405ab",
            "cb9f796ff1035369307bc6f5d40fe107473f1e07879b2ac4c753f5f99f052550",
        ]
    );
}
