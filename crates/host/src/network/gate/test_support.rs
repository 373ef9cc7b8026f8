//! A client, a resolver and policies for tests of the gate. Loopback stands for the outside.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::SearchDomains;
use super::client::{Answer, DecisionRecord, GateClient, Question};
use super::dial::Resolver;
use super::state::GateState;
use super::{GateSettings, UpstreamProxies};
use crate::network::policy::{Mode, NetworkPolicy, Rules, Unnamed};

pub(super) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Collects questions and records. Questions wait until the test supplies the one answer that they
/// all get.
#[derive(Debug)]
pub(super) struct FakeClient {
    answer: watch::Sender<Option<Answer>>,
    questions: watch::Sender<Vec<Question>>,
    records: Mutex<Vec<DecisionRecord>>,
}

impl FakeClient {
    /// A client that does not answer yet.
    pub(super) fn silent() -> Arc<Self> {
        Arc::new(Self {
            answer: watch::Sender::default(),
            questions: watch::Sender::default(),
            records: Mutex::default(),
        })
    }

    pub(super) fn answering(answer: Answer) -> Arc<Self> {
        let client = Self::silent();
        client.answer(answer);
        client
    }

    pub(super) fn answer(&self, answer: Answer) {
        self.answer.send_replace(Some(answer));
    }

    pub(super) fn questions(&self) -> Vec<Question> {
        self.questions.borrow().clone()
    }

    pub(super) async fn wait_for_questions(&self, count: usize) {
        let mut questions = self.questions.subscribe();
        questions.wait_for(|questions| questions.len() >= count).await.unwrap();
    }

    /// Returns once no question waits for its answer.
    pub(super) async fn wait_until_abandoned(&self) {
        self.answer.closed().await;
    }

    pub(super) fn records(&self) -> Vec<DecisionRecord> {
        self.records.lock().unwrap().clone()
    }
}

impl GateClient for FakeClient {
    fn ask(&self, question: Question) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        self.questions.send_modify(|questions| questions.push(question));
        let mut answer = self.answer.subscribe();
        Box::pin(async move { answer.wait_for(Option::is_some).await.unwrap().clone().unwrap() })
    }

    fn decided(&self, record: &DecisionRecord) {
        self.records.lock().unwrap().push(record.clone());
    }
}

/// Knows the addresses of a few names. Each lookup consumes one answer; the last one stays.
#[derive(Debug, Default)]
pub(super) struct FakeResolver {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
}

impl FakeResolver {
    pub(super) fn with(self, name: &str, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.answers.lock().unwrap().entry(name.to_owned()).or_default().push_back(addresses);
        self
    }
}

impl Resolver for FakeResolver {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut answers = self.answers.lock().unwrap();
        let answers = answers.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        match answers.len() {
            1 => Ok(answers[0].clone()),
            _ => Ok(answers.pop_front().unwrap()),
        }
    }
}

/// Rules that allow these patterns, but no private addresses. Unnamed hosts are refused.
pub(super) fn rules(allow: &[&str]) -> Rules {
    Rules {
        allow: allow.iter().map(|pattern| pattern.parse().unwrap()).collect(),
        deny: Vec::new(),
        unnamed: Unnamed::Deny,
        mode: Mode::Full,
        allow_private: false,
    }
}

/// Like [`rules`], but private addresses may be reached, such as loopback.
pub(super) fn local_rules(allow: &[&str]) -> Rules {
    Rules { allow_private: true, ..rules(allow) }
}

/// `a.test` and `b.test` resolve to loopback.
pub(super) fn settings(rules: Rules, client: &Arc<FakeClient>) -> GateSettings {
    let resolver = FakeResolver::default().with("a.test", &["127.0.0.1"]);
    GateSettings {
        policy: NetworkPolicy::new(vec![rules]),
        client: Arc::clone(client) as Arc<dyn GateClient>,
        resolver: Arc::new(resolver.with("b.test", &["127.0.0.1"])),
        upstream: None,
        loopback_ports: Vec::new(),
        hide_refused: false,
        search_domains: SearchDomains::default(),
    }
}

pub(super) fn state(rules: Rules, client: &Arc<FakeClient>) -> Arc<GateState> {
    Arc::new(GateState::new(settings(rules, client)))
}

pub(super) fn upstream(proxy: SocketAddr) -> Option<UpstreamProxies> {
    let value = format!("http://user:pw@{proxy}");
    let variables = |name: &str| (name == "ALL_PROXY").then(|| value.clone().into());
    Some(UpstreamProxies::from_variables(variables).unwrap())
}

pub(super) async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(super) async fn connected() -> (TcpStream, TcpStream) {
    let (listener, address) = listener().await;
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.unwrap(), far.unwrap().0)
}
