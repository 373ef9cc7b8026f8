//! A registry that knows one environment, with all responses under the test's control.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use exec_server_relay::noise::PublicKey;
use exec_server_relay::registry::{
    ConnectResponse, RegisterRequest, RegisterResponse, SECURITY_PROFILE, ValidateRequest,
    ValidateResponse,
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpListener;

pub(crate) const ENVIRONMENT: &str = "box";

#[derive(Clone)]
pub(crate) struct Registry {
    pub(crate) url: String,
    pub(crate) state: Arc<Mutex<State>>,
}

pub(crate) struct State {
    own_url: String,
    pub(crate) environment_url: String,
    pub(crate) harness_url: String,
    /// The keys of the environment's registrations, the newest last.
    pub(crate) keys: Vec<PublicKey>,
    /// How many more registrations get a URL where every request is answered with 404.
    pub(crate) refusals: u32,
    /// Authorizations that were not used yet.
    pub(crate) authorizations: HashSet<String>,
    pub(crate) next: u32,
    /// Refuses every harness.
    pub(crate) refuses_all: bool,
    /// Closes connections without a response.
    pub(crate) hangs_up: bool,
}

impl Registry {
    pub(crate) async fn start(environment_url: String, harness_url: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State {
            own_url: url.clone(),
            environment_url,
            harness_url,
            keys: Vec::new(),
            refusals: 0,
            authorizations: HashSet::new(),
            next: 0,
            refuses_all: false,
            hangs_up: false,
        }));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(|request| answer(Arc::clone(&state), request));
                    let _ =
                        http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { url, state }
    }

    /// Returns the response of `connect`, without HTTP.
    pub(crate) fn connect(&self) -> ConnectResponse<PublicKey> {
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let authorization = format!("authorization-{}", state.next);
        state.authorizations.insert(authorization.clone());
        ConnectResponse {
            environment_id: ENVIRONMENT.into(),
            url: state.harness_url.clone(),
            security_profile: SECURITY_PROFILE.into(),
            executor_registration_id: registration_id(state.keys.len()),
            executor_public_key: state.keys.last().expect("the environment has registered").clone(),
            harness_key_authorization: authorization,
        }
    }
}

fn registration_id(number: usize) -> String {
    format!("registration-{number}")
}

async fn answer(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    if state.lock().unwrap().hangs_up {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let path = request.uri().path().to_owned();
    if path != "/" {
        assert_eq!(request.headers()["authorization"], "Bearer secret");
    }
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Ok(match path.as_str() {
        "/cloud/environment/box/register" => {
            let request: RegisterRequest<PublicKey> = serde_json::from_slice(&body).unwrap();
            let mut state = state.lock().unwrap();
            state.keys.push(request.executor_public_key);
            let url = match state.refusals.checked_sub(1) {
                None => state.environment_url.clone(),
                Some(rest) => {
                    state.refusals = rest;
                    state.own_url.replace("http://", "ws://")
                }
            };
            json(&RegisterResponse {
                environment_id: ENVIRONMENT.into(),
                url,
                security_profile: SECURITY_PROFILE.into(),
                executor_registration_id: registration_id(state.keys.len()),
            })
        }
        "/cloud/environment/box/validate" => {
            let request: ValidateRequest<PublicKey> = serde_json::from_slice(&body).unwrap();
            let mut state = state.lock().unwrap();
            let is_known = state.authorizations.remove(&request.harness_key_authorization);
            let valid = is_known && !state.refuses_all;
            json(&ValidateResponse { valid, subject: Some("alice".into()) })
        }
        _ => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    })
}

fn json(value: &impl Serialize) -> Response<Full<Bytes>> {
    Response::new(serde_json::to_vec(value).unwrap().into())
}
