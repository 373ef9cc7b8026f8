//! The client of a measurement: one session, with as little work per message as JSON and base64
//! allow. Messages are parsed into borrowed fields; output is decoded into one reused buffer.

use anyhow::{Context as _, bail, ensure};
use exec_server_protocol::{
    Base64Bytes, Empty, FsReadFileParams, InitializeParams, NetworkRules, PathUri, Rpc,
    SandboxRequest, StartParams, WriteParams, rpc,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::endpoint::Nagle;
use super::program::Program;
use super::server::BenchServer;
use super::socket::Socket;
use super::websocket::WebSocket;

#[derive(Debug)]
pub(super) struct Client {
    socket: Socket,
    last_request: u64,
    last_process: u64,
    decoded: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stdio {
    Pipes,
    Terminal,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) cwd: &'a PathUri,
    pub(super) sandbox: Option<&'a SandboxRequest>,
    pub(super) network: Option<&'a NetworkRules>,
}

#[derive(Debug)]
pub(super) enum Event<'a> {
    Output(&'a [u8]),
    /// The last event of a process.
    Closed,
    /// A response, or a notification that no measurement uses.
    Other,
}

impl Client {
    pub(super) fn connect(server: &BenchServer, nagle: Nagle) -> anyhow::Result<Self> {
        Self::over(Socket::WebSocket(WebSocket::connect(server.endpoint(), nagle)?))
    }

    /// Opens a session over an existing connection.
    pub(super) fn over(socket: Socket) -> anyhow::Result<Self> {
        let mut client = Self { socket, last_request: 0, last_process: 0, decoded: Vec::new() };
        client.call::<rpc::Initialize>(&InitializeParams {
            client_name: "bench".to_owned(),
            ..InitializeParams::default()
        })?;
        client.socket.send(br#"{"method":"initialized"}"#)?;
        // The response shows that the preceding notification has taken effect.
        client.call::<rpc::EnvironmentStatus>(&Empty {})?;
        Ok(client)
    }

    /// Returns the underlying connection, for requests that do not concern processes.
    pub(super) fn into_socket(self) -> Socket {
        self.socket
    }

    /// Returns the size of the program's output.
    pub(super) fn run(&mut self, program: &Program) -> anyhow::Result<u64> {
        self.run_in(program, Surroundings { cwd: &root()?, sandbox: None, network: None })
    }

    pub(super) fn run_in(
        &mut self,
        program: &Program,
        surroundings: Surroundings<'_>,
    ) -> anyhow::Result<u64> {
        self.start_in(program, surroundings)?;
        let mut written = 0;
        self.until_closed(|bytes| written += bytes.len() as u64)?;
        Ok(written)
    }

    /// Passes the output of all processes to `output` until one of them closes.
    pub(super) fn until_closed(&mut self, mut output: impl FnMut(&[u8])) -> anyhow::Result<()> {
        loop {
            match self.next_event()? {
                Event::Output(bytes) => output(bytes),
                Event::Closed => return Ok(()),
                Event::Other => {}
            }
        }
    }

    /// Sends a start request without waiting for the response. Returns the process id.
    pub(super) fn start(&mut self, program: &Program, stdio: Stdio) -> anyhow::Result<String> {
        let tty = stdio == Stdio::Terminal;
        let params = StartParams { tty, ..self.start_params(program, &root()?) };
        self.request::<rpc::ProcessStart>(&params)?;
        Ok(params.process_id)
    }

    pub(super) fn start_in(
        &mut self,
        program: &Program,
        surroundings: Surroundings<'_>,
    ) -> anyhow::Result<()> {
        let params = self.start_params_in(program, surroundings);
        self.request::<rpc::ProcessStart>(&params)
    }

    /// Like [`Self::start_in`], and waits until the process runs.
    pub(super) fn start_and_wait(
        &mut self,
        program: &Program,
        surroundings: Surroundings<'_>,
    ) -> anyhow::Result<()> {
        let params = self.start_params_in(program, surroundings);
        self.call::<rpc::ProcessStart>(&params)
    }

    fn start_params_in(
        &mut self,
        program: &Program,
        Surroundings { cwd, sandbox, network }: Surroundings<'_>,
    ) -> StartParams {
        StartParams {
            sandbox: sandbox.cloned(),
            network: network.cloned().map(Box::new),
            ..self.start_params(program, cwd)
        }
    }

    fn start_params(&mut self, program: &Program, cwd: &PathUri) -> StartParams {
        self.last_process += 1;
        StartParams::new(self.last_process.to_string(), program.argv().to_vec(), cwd.clone())
    }

    /// Reads the given files with `depth` requests in flight, and checks that each has `bytes`
    /// bytes.
    pub(super) fn read_files<'a>(
        &mut self,
        depth: usize,
        count: usize,
        request: impl Fn(usize) -> (&'a str, Option<&'a SandboxRequest>),
        bytes: usize,
    ) -> anyhow::Result<()> {
        let mut sent = 0;
        for answered in 0..count {
            while sent < count && sent - answered < depth {
                let (path, sandbox) = request(sent);
                self.request::<rpc::FsReadFile>(&FsReadFileParams {
                    path: PathUri::from_path(path)
                        .with_context(|| format!("{path} is not absolute"))?,
                    follow_symlinks: None,
                    sandbox: sandbox.cloned(),
                })?;
                sent += 1;
            }
            let text = self.socket.receive_message()?;
            let message: FileMessage<'_> =
                serde_json::from_slice(text).with_context(|| unexpected(text))?;
            if let Some(error) = message.error {
                bail!("the server refused fs/readFile: {error}");
            }
            let text =
                message.result.context("the server sent a message without a result")?.data_base64;
            self.decoded.clear();
            base64_simd::STANDARD
                .decode_append(text, &mut self.decoded)
                .context("the server sent invalid base64")?;
            let received = self.decoded.len();
            ensure!(received == bytes, "received {received} of {bytes} bytes of a file");
        }
        Ok(())
    }

    /// Sends input without waiting for the response.
    pub(super) fn write(&mut self, process_id: &str, byte: u8) -> anyhow::Result<()> {
        self.request::<rpc::ProcessWrite>(&WriteParams {
            process_id: process_id.to_owned(),
            chunk: Base64Bytes::from(vec![byte]),
            write_id: None,
        })
    }

    /// Returns the next event. A refused request and a failed process are errors.
    pub(super) fn next_event(&mut self) -> anyhow::Result<Event<'_>> {
        let text = self.socket.receive_message()?;
        let message: Message<'_> =
            serde_json::from_slice(text).with_context(|| unexpected(text))?;
        if let Some(error) = message.error {
            bail!("the server refused process/start or process/write: {error}");
        }
        let (Some(method), Some(params)) = (message.method, message.params) else {
            return Ok(Event::Other);
        };
        match method {
            "process/output" => {
                self.decoded.clear();
                base64_simd::STANDARD
                    .decode_append(params.chunk.unwrap_or_default(), &mut self.decoded)
                    .context("the server sent output with invalid base64")?;
                Ok(Event::Output(&self.decoded))
            }
            "process/exited" => {
                let code = params
                    .exit_code
                    .context("the server sent process/exited without an exit code")?;
                ensure!(code == 0, "a program exited with code {code} under the server");
                Ok(Event::Other)
            }
            "process/closed" => Ok(Event::Closed),
            _ => Ok(Event::Other),
        }
    }

    /// Sends a request and waits for its response, skipping everything before it.
    fn call<R: Rpc>(&mut self, params: &R::Params) -> anyhow::Result<()> {
        self.request::<R>(params)?;
        loop {
            let text = self.socket.receive_message()?;
            let message: Message<'_> =
                serde_json::from_slice(text).with_context(|| unexpected(text))?;
            if let Some(error) = message.error {
                bail!("the server refused {}: {error}", R::METHOD.name());
            }
            if message.id == Some(self.last_request) {
                return Ok(());
            }
        }
    }

    fn request<R: Rpc>(&mut self, params: &R::Params) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct Request<'a, P> {
            id: u64,
            method: &'static str,
            params: &'a P,
        }
        self.last_request += 1;
        let request = Request { id: self.last_request, method: R::METHOD.name(), params };
        self.socket.send(&serde_json::to_vec(&request)?)
    }
}

fn root() -> anyhow::Result<PathUri> {
    PathUri::from_path("/").context("/ is not a valid path")
}

/// Returns the error text for a message that cannot be parsed. It quotes the first bytes of the
/// message.
pub(super) fn unexpected(message: &[u8]) -> String {
    const SHOWN: usize = 200;
    let start = &message[..message.len().min(SHOWN)];
    format!("the server sent an unexpected message that begins with {}", start.escape_ascii())
}

#[derive(Deserialize)]
struct FileMessage<'a> {
    #[serde(borrow)]
    result: Option<FileContent<'a>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileContent<'a> {
    /// Not checked for UTF-8, because the base64 decoder rejects invalid bytes.
    data_base64: &'a [u8],
}

#[derive(Deserialize)]
struct Message<'a> {
    id: Option<u64>,
    method: Option<&'a str>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    /// Base64, not checked for UTF-8, because the decoder rejects invalid bytes.
    chunk: Option<&'a [u8]>,
    exit_code: Option<i32>,
}
