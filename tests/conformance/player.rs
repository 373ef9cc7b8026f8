//! Plays the steps of a scenario with one server, and a bad network for each adapter.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use exec_server::ExecServerClient;
use exec_server::protocol::{Empty, ListParams};
use exec_server_test_support::{Cut, FaultProxy, PlannedCut, Way, encoded};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::adapter::{Adapter, AdapterProgram};
use super::expectation;
use super::scenario::{Scenario, Values, Variables, substituted};
use crate::support::{HANG, Server};

/// How many combinations are played at once. Most of the time is spent in backoff.
const PLAYERS: usize = 4;

/// Members of a step that are not part of the adapter's command.
const NOT_SENT: [&str; 6] = ["adapter", "expect", "error", "again", "keep", "background"];

pub(super) async fn play(program: &AdapterProgram, scenario: &Scenario) {
    let arguments: Vec<&str> = scenario.server.iter().map(String::as_str).collect();
    let server = Server::with(&arguments);
    let combinations = scenario.combinations();
    let players = (0..PLAYERS.min(combinations.len())).map(|first| {
        let mine = combinations.iter().skip(first).step_by(PLAYERS);
        let (server, steps) = (&server, &scenario.steps);
        async move {
            let mut player = Player::new(program, server.url()).await;
            for variables in mine {
                player.play_all(steps, variables).await;
            }
            player.cuts()
        }
    });
    let cuts: usize = futures_util::future::join_all(players).await.iter().sum();
    assert!(cuts >= scenario.cuts, "only {cuts} cuts happened");
}

struct Player<'a> {
    program: &'a AdapterProgram,
    server: SocketAddr,
    /// Connected to the server without a bad network.
    watcher: ExecServerClient,
    sites: HashMap<String, Site>,
    variables: Variables,
    /// Responses that a later step awaits.
    background: HashMap<String, oneshot::Receiver<Value>>,
    cuts_at_once: usize,
}

struct Site {
    proxy: FaultProxy,
    /// `Some` while it runs.
    adapter: Option<Adapter>,
}

impl<'a> Player<'a> {
    async fn new(program: &'a AdapterProgram, url: &str) -> Self {
        Self {
            program,
            server: url.strip_prefix("ws://").unwrap().parse().unwrap(),
            watcher: ExecServerClient::connect(url, "watcher").await.unwrap(),
            sites: HashMap::new(),
            variables: Variables::new(),
            background: HashMap::new(),
            cuts_at_once: 0,
        }
    }

    fn cuts(&self) -> usize {
        let planned = self.sites.values().map(|site| site.proxy.planned_cuts_done());
        planned.sum::<usize>() + self.cuts_at_once
    }

    async fn play_all(&mut self, steps: &[Value], variables: &Variables) {
        let directory = TempDir::new().unwrap();
        self.variables = variables.clone();
        self.variables.insert("dir".to_owned(), directory.path().to_str().unwrap().into());
        self.play_each(steps).await;
        assert!(self.background.is_empty(), "a response is never awaited");
        for site in self.sites.values() {
            site.proxy.plan_cuts([]);
            site.proxy.resume();
        }
    }

    /// Plays steps. Boxed, because a step may contain steps.
    fn play_each<'b>(&'b mut self, steps: &'b [Value]) -> Pin<Box<dyn Future<Output = ()> + 'b>> {
        Box::pin(async move {
            for step in steps {
                if let Some(repeated) = step.get("for") {
                    self.play_for(repeated, step["steps"].as_array().unwrap()).await;
                    continue;
                }
                let step = substituted(step, &self.variables);
                let played = timeout(HANG, self.play_step(&step)).await;
                assert!(played.is_ok(), "timed out: {step} with {:?}", self.variables);
            }
        })
    }

    async fn play_for(&mut self, repeated: &Value, steps: &[Value]) {
        let repeated = substituted(repeated, &self.variables);
        for (name, values) in repeated.as_object().unwrap() {
            let values: Values = serde_json::from_value(values.clone()).unwrap();
            for value in values.all() {
                self.variables.insert(name.clone(), value);
                self.play_each(steps).await;
            }
        }
    }

    async fn play_step(&mut self, step: &Value) {
        let on = step["adapter"].as_str().unwrap_or("a");
        if step.get("do").is_some() {
            self.command(on, step).await;
        } else if let Some(name) = text(step, "await") {
            let waiting = self.background.remove(name).expect("the command runs in the background");
            let response = waiting.await.expect("the adapter runs");
            expectation::check(step, &response);
        } else if let Some(cut) = step.get("cut") {
            self.site(on).await.proxy.cut(how(cut)).await;
            self.cuts_at_once += 1;
        } else if let Some(plan) = step.get("planCuts") {
            self.site(on).await.proxy.plan_cuts(planned(plan));
        } else if let Some(count) = number(step, "waitForCuts") {
            self.site(on).await.proxy.wait_for_planned_cuts(count).await;
        } else if let Some(direction) = step.get("hold") {
            self.site(on).await.proxy.hold(way(direction));
        } else if let Some(count) = number(step, "refuse") {
            let proxy = &self.site(on).await.proxy;
            let refusals = proxy.refusals() + count;
            proxy.refuse();
            proxy.cut(Cut::Rst).await;
            proxy.wait_for_refusals(refusals).await;
        } else if step.get("resume").is_some() {
            self.site(on).await.proxy.resume();
        } else if let Some(adapter) = text(step, "end") {
            self.adapter(adapter).await.take().unwrap().end().await;
        } else if let Some(adapter) = text(step, "kill") {
            self.adapter(adapter).await.take().unwrap().kill().await;
        } else if let Some(path) = text(step, "touch") {
            std::fs::write(path, "").unwrap();
        } else if let Some(path) = text(step, "waitForFile") {
            let wanted = text(step, "text");
            let is_there = |file: &str| wanted.is_none_or(|wanted| file == wanted);
            until(async || std::fs::read_to_string(path).is_ok_and(|file| is_there(&file))).await;
        } else if let Some(count) = number(step, "waitForSessions") {
            until(async || self.sessions().await.len() == count).await;
        } else if let Some(count) = number(step, "waitForRunning") {
            let argument = text(step, "of").unwrap();
            until(async || self.running(argument).await == count).await;
        } else {
            panic!("unknown step: {step}");
        }
    }

    async fn command(&mut self, on: &str, step: &Value) {
        let mut command = step.clone();
        let members = command.as_object_mut().unwrap();
        members.retain(|name, _| !NOT_SENT.contains(&name.as_str()));
        if let Some(text) = members.remove("text") {
            members.insert("data".to_owned(), encoded(text.as_str().unwrap()).into());
        }
        loop {
            let adapter = self.adapter(on).await.as_mut().unwrap();
            let waiting = adapter.send(command.clone()).await;
            if let Some(name) = step["background"].as_str() {
                self.background.insert(name.to_owned(), waiting);
                return;
            }
            let response = waiting.await.unwrap_or_else(|_| panic!("the adapter ended at {step}"));
            if step.get("again").is_some_and(|again| expectation::is_error(&response, again)) {
                continue;
            }
            expectation::check(step, &response);
            for (member, name) in step["keep"].as_object().into_iter().flatten() {
                let name = name.as_str().unwrap().to_owned();
                self.variables.insert(name, response["ok"][member].clone());
            }
            return;
        }
    }

    async fn site(&mut self, name: &str) -> &mut Site {
        if !self.sites.contains_key(name) {
            let proxy = FaultProxy::start(self.server).await;
            self.sites.insert(name.to_owned(), Site { proxy, adapter: None });
        }
        self.sites.get_mut(name).unwrap()
    }

    /// Starts the adapter if it is not running.
    async fn adapter(&mut self, name: &str) -> &mut Option<Adapter> {
        let program = self.program;
        let site = self.site(name).await;
        let url = site.proxy.url();
        site.adapter.get_or_insert_with(|| Adapter::start(program, &url));
        &mut site.adapter
    }

    /// Returns all sessions except those of watchers.
    async fn sessions(&self) -> Vec<String> {
        let listed = self.watcher.session_list(Empty {}).await.unwrap().sessions;
        let others = listed.into_iter().filter(|session| session.client_name != "watcher");
        others.map(|session| session.session_id).collect()
    }

    /// Counts running processes with this text in an argument.
    async fn running(&self, argument: &str) -> usize {
        let mut running = 0;
        for session in self.sessions().await {
            let params = ListParams { session_id: Some(session), within_ms: None };
            // The session may have ended since.
            let Ok(listed) = self.watcher.process_list(params).await else { continue };
            let is_meant = |argv: &[String]| argv.iter().any(|text| text.contains(argument));
            let meant = listed.processes.iter().filter(|process| is_meant(&process.argv));
            running += meant.filter(|process| process.running).count();
        }
        running
    }
}

/// Polls a state that causes no event.
async fn until(reached: impl AsyncFn() -> bool) {
    while !reached().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn text<'a>(step: &'a Value, member: &str) -> Option<&'a str> {
    step[member].as_str()
}

fn number(step: &Value, member: &str) -> Option<usize> {
    step[member].as_u64().map(|number| usize::try_from(number).unwrap())
}

/// Returns the cuts of a plan, repeated `times` times.
fn planned(plan: &Value) -> Vec<PlannedCut> {
    let cuts = plan["cuts"].as_array().unwrap().iter().map(|cut| PlannedCut {
        way: way(&cut["way"]),
        after: cut["after"].as_u64().unwrap(),
        how: how(&cut["how"]),
    });
    let cuts: Vec<_> = cuts.collect();
    let times = plan["times"].as_u64().unwrap_or(1);
    cuts.repeat(usize::try_from(times).unwrap())
}

fn how(text: &Value) -> Cut {
    match text.as_str().unwrap() {
        "fin" => Cut::Fin,
        "rst" => Cut::Rst,
        "midFrame" => Cut::MidFrame,
        "midFrameRst" => Cut::MidFrameRst,
        other => panic!("unknown cut: {other}"),
    }
}

fn way(text: &Value) -> Way {
    match text.as_str().unwrap() {
        "toServer" => Way::ToServer,
        "toClient" => Way::ToClient,
        other => panic!("unknown direction: {other}"),
    }
}
