//! The requests to both servers, and their encoding for each of them.
//!
//! Written by hand into one buffer: serializing megabytes of base64 through serde would measure the
//! client.

use std::io::Write as _;

/// A connection has only one open file.
const HANDLE: &str = "bench";

/// Paths need neither percent-encoding nor escapes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request<'a> {
    Metadata {
        path: &'a str,
    },
    ReadFile {
        path: &'a str,
    },
    WriteFile {
        path: &'a str,
        content: &'a [u8],
    },
    Open {
        path: &'a str,
    },
    ReadBlock {
        offset: u64,
        len: usize,
    },
    Create {
        path: &'a str,
    },
    WriteBlock {
        offset: u64,
        chunk: &'a [u8],
    },
    Close,
    Walk {
        path: &'a str,
    },
    /// Searches for a string in all files below the path.
    Search {
        path: &'a str,
        text: &'a str,
    },
}

/// A request to the minimal server: the fields as words on one line, followed by base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlainRequest<'a> {
    pub(super) verb: &'a str,
    pub(super) id: u64,
    pub(super) offset: u64,
    pub(super) len: usize,
    /// Used only by a search.
    pub(super) text: &'a str,
    pub(super) path: &'a str,
    pub(super) base64: &'a [u8],
}

impl Request<'_> {
    pub(super) fn write_json(&self, id: u64, buffer: &mut Vec<u8>) {
        let method = self.method();
        append(buffer, format_args!(r#"{{"id":{id},"method":"{method}","params":{{"#));
        match *self {
            Self::Metadata { path } | Self::ReadFile { path } | Self::Walk { path } => {
                append(buffer, format_args!(r#""path":"file://{path}""#));
            }
            Self::WriteFile { path, content } => {
                append(buffer, format_args!(r#""path":"file://{path}","dataBase64":""#));
                base64_simd::STANDARD.encode_append(content, buffer);
                buffer.push(b'"');
            }
            Self::Open { path } | Self::Create { path } => {
                append(buffer, format_args!(r#""path":"file://{path}","handleId":"{HANDLE}""#));
            }
            Self::ReadBlock { offset, len } => {
                let handle = format_args!(r#""handleId":"{HANDLE}""#);
                append(buffer, format_args!(r#"{handle},"offset":{offset},"len":{len}"#));
            }
            Self::WriteBlock { offset, chunk } => {
                let handle = format_args!(r#""handleId":"{HANDLE}""#);
                append(buffer, format_args!(r#"{handle},"offset":{offset},"chunk":""#));
                base64_simd::STANDARD.encode_append(chunk, buffer);
                buffer.push(b'"');
            }
            Self::Close => append(buffer, format_args!(r#""handleId":"{HANDLE}""#)),
            Self::Search { path, text } => {
                append(buffer, format_args!(r#""path":"file://{path}","pattern":"{text}""#));
                append(buffer, format_args!(r#","literal":true,"searchId":"{HANDLE}""#));
            }
        }
        buffer.extend_from_slice(b"}}");
    }

    fn method(&self) -> &'static str {
        match self {
            Self::Metadata { .. } => "fs/getMetadata",
            Self::ReadFile { .. } => "fs/readFile",
            Self::WriteFile { .. } => "fs/writeFile",
            Self::Open { .. } => "fs/open",
            Self::ReadBlock { .. } => "fs/readBlock",
            Self::Create { .. } => "fs/create",
            Self::WriteBlock { .. } => "fs/writeBlock",
            Self::Close => "fs/close",
            Self::Walk { .. } => "fs/walk",
            Self::Search { .. } => "fs/search",
        }
    }

    pub(super) fn write_plain(&self, id: u64, buffer: &mut Vec<u8>) {
        let mut line = |verb, offset: u64, len: usize, text, path| {
            append(buffer, format_args!("{verb} {id} {offset} {len} {text} {path}\n"));
        };
        match *self {
            Self::Metadata { path } => line("stat", 0, 0, "-", path),
            Self::ReadFile { path } => line("read", 0, 0, "-", path),
            Self::WriteFile { path, content } => {
                line("write", 0, 0, "-", path);
                base64_simd::STANDARD.encode_append(content, buffer);
            }
            Self::Open { path } => line("open", 0, 0, "-", path),
            Self::ReadBlock { offset, len } => line("pread", offset, len, "-", ""),
            Self::Create { path } => line("create", 0, 0, "-", path),
            Self::WriteBlock { offset, chunk } => {
                line("pwrite", offset, 0, "-", "");
                base64_simd::STANDARD.encode_append(chunk, buffer);
            }
            Self::Close => line("close", 0, 0, "-", ""),
            Self::Walk { path } => line("walk", 0, 0, "-", path),
            Self::Search { path, text } => line("search", 0, 0, text, path),
        }
    }
}

impl<'a> PlainRequest<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let line_end = memchr::memchr(b'\n', message)?;
        let line = str::from_utf8(&message[..line_end]).ok()?;
        let mut words = line.splitn(6, ' ');
        Some(Self {
            verb: words.next()?,
            id: words.next()?.parse().ok()?,
            offset: words.next()?.parse().ok()?,
            len: words.next()?.parse().ok()?,
            text: words.next()?,
            path: words.next()?,
            base64: &message[line_end + 1..],
        })
    }
}

fn append(buffer: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    buffer.write_fmt(text).expect("writing to a Vec cannot fail");
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::{Call, Message, decode};

    use super::*;

    const ALL: [Request<'static>; 10] = [
        Request::Metadata { path: "/a" },
        Request::ReadFile { path: "/a" },
        Request::WriteFile { path: "/a", content: b"abc" },
        Request::Open { path: "/a" },
        Request::ReadBlock { offset: 7, len: 8 },
        Request::Create { path: "/a" },
        Request::WriteBlock { offset: 7, chunk: b"abc" },
        Request::Close,
        Request::Walk { path: "/a" },
        Request::Search { path: "/a", text: "needle" },
    ];

    #[test]
    fn requests_to_the_real_server_follow_its_protocol() {
        for request in ALL {
            let mut text = Vec::new();
            request.write_json(5, &mut text);
            let Message::Request(sent) = decode(&text).unwrap() else { panic!("not a request") };
            let call = Call::decode(&sent.method, sent.params).unwrap();
            match (request, call) {
                (Request::WriteFile { content, .. }, Call::FsWriteFile(params)) => {
                    assert_eq!(params.path.as_path().to_str(), Some("/a"));
                    assert_eq!(params.data_base64.into_bytes(), content);
                }
                (Request::WriteBlock { chunk, offset }, Call::FsWriteBlock(params)) => {
                    assert_eq!((&params.chunk[..], params.offset), (chunk, offset));
                }
                _ => {}
            }
        }
    }

    #[test]
    fn requests_to_the_minimal_server_are_parsed_there() {
        for request in ALL {
            let mut text = Vec::new();
            request.write_plain(5, &mut text);
            assert_eq!(PlainRequest::parse(&text).unwrap().id, 5);
        }
        let mut text = Vec::new();
        Request::WriteBlock { offset: 7, chunk: b"abc" }.write_plain(5, &mut text);
        let expected = PlainRequest {
            verb: "pwrite",
            id: 5,
            offset: 7,
            len: 0,
            text: "-",
            path: "",
            base64: b"YWJj",
        };
        assert_eq!(PlainRequest::parse(&text), Some(expected));
    }
}
