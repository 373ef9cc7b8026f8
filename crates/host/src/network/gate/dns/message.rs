//! Encodes and decodes the DNS messages of the gate: one question in, one small response out. Pure.
//!
//! Every byte of a query comes from the managed process, so each read is bounded. A response fits
//! into 512 bytes, so it never needs truncation.

use std::net::IpAddr;

use crate::network::policy::Host;

const HEADER_LEN: usize = 12;
/// The longest name on the wire, with its length bytes.
const MAX_NAME: usize = 255;
const MAX_LABEL: u8 = 63;
/// Real queries carry at most an OPT record and a signature.
const MAX_ADDITIONAL: u16 = 4;
/// The most addresses that fit into 512 bytes beside the longest question and an OPT record.
const MAX_ANSWERS: usize = 8;

const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;

const FLAG_RESPONSE: u16 = 1 << 15;
const FLAG_RECURSION_DESIRED: u16 = 1 << 8;
const FLAG_RECURSION_AVAILABLE: u16 = 1 << 7;

/// The payload size advertised in an OPT record, as recommended by DNS Flag Day 2020.
const UDP_PAYLOAD: u16 = 1232;

/// A query with exactly one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    id: u16,
    recursion_desired: bool,
    /// Echoed byte for byte: resolvers may encode randomness in the case of letters.
    question: Vec<u8>,
    name: Option<String>,
    kind: Kind,
    edns: bool,
}

/// The record type that a question asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    A,
    Aaaa,
    /// Another type, or a class other than IN.
    Other(u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseCode {
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueryError {
    /// Gets no response: the message is a response itself, or too short to have a header.
    #[error("the message is not a DNS query")]
    NotAQuery,
    #[error("the DNS query is malformed")]
    Malformed { id: u16 },
    #[error("the DNS opcode {opcode} is not supported")]
    Opcode { id: u16, opcode: u16 },
}

impl Query {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, QueryError> {
        let mut reader = Reader { rest: message };
        let header = Header::read(&mut reader).ok_or(QueryError::NotAQuery)?;
        if header.flags & FLAG_RESPONSE != 0 {
            return Err(QueryError::NotAQuery);
        }
        let id = header.id;
        let opcode = header.flags >> 11 & 0xf;
        if opcode != 0 {
            return Err(QueryError::Opcode { id, opcode });
        }
        Self::parse_body(&header, reader).ok_or(QueryError::Malformed { id })
    }

    /// Returns the name in the canonical spelling of [`Host::Name`]. `None` if no host can have
    /// this name: it is the root or an address, or a label has an invalid character. Respond that
    /// such a name does not exist.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Responds with the addresses of the requested family, at most eight.
    pub(crate) fn answer(&self, addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
        let wanted: Vec<IpAddr> = addresses
            .iter()
            .copied()
            .filter(|address| match self.kind {
                Kind::A => address.is_ipv4(),
                Kind::Aaaa => address.is_ipv6(),
                Kind::Other(_) => false,
            })
            .take(MAX_ANSWERS)
            .collect();
        self.response(0, &wanted, ttl)
    }

    /// Responds that the name exists, but has no records of this type.
    pub(crate) fn empty(&self) -> Vec<u8> {
        self.response(0, &[], 0)
    }

    pub(crate) fn fails(&self, code: ResponseCode) -> Vec<u8> {
        self.response(code as u16, &[], 0)
    }

    fn parse_body(header: &Header, mut reader: Reader<'_>) -> Option<Self> {
        if (header.questions, header.answers, header.authorities) != (1, 0, 0)
            || header.additional > MAX_ADDITIONAL
        {
            return None;
        }
        let body = reader.rest;
        let labels = read_question_name(&mut reader)?;
        let (kind, class) = (reader.u16()?, reader.u16()?);
        let question = body[..body.len() - reader.rest.len()].to_vec();
        let mut options = 0;
        for _ in 0..header.additional {
            options += u8::from(read_additional(&mut reader)? == TYPE_OPT);
        }
        if options > 1 || !reader.rest.is_empty() {
            return None;
        }
        let kind = match (class, kind) {
            (CLASS_IN, TYPE_A) => Kind::A,
            (CLASS_IN, TYPE_AAAA) => Kind::Aaaa,
            (_, other) => Kind::Other(other),
        };
        Some(Self {
            id: header.id,
            recursion_desired: header.flags & FLAG_RECURSION_DESIRED != 0,
            question,
            name: host_name(&labels),
            kind,
            edns: options == 1,
        })
    }

    fn response(&self, code: u16, addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
        let desired = if self.recursion_desired { FLAG_RECURSION_DESIRED } else { 0 };
        let answers = u16::try_from(addresses.len()).expect("at most MAX_ANSWERS addresses");
        let counts = [1, answers, 0, u16::from(self.edns)];
        let mut message = response_header(self.id, desired | code, counts);
        message.extend_from_slice(&self.question);
        for address in addresses {
            // A pointer to the name of the question, right after the header.
            message.extend_from_slice(&[0xc0, HEADER_LEN as u8]);
            let (kind, data) = match address {
                IpAddr::V4(address) => (TYPE_A, &address.octets()[..]),
                IpAddr::V6(address) => (TYPE_AAAA, &address.octets()[..]),
            };
            message.extend_from_slice(&kind.to_be_bytes());
            message.extend_from_slice(&CLASS_IN.to_be_bytes());
            message.extend_from_slice(&ttl.to_be_bytes());
            message.extend_from_slice(&[0, if address.is_ipv4() { 4 } else { 16 }]);
            message.extend_from_slice(data);
        }
        if self.edns {
            // The root, the type, the payload size; version 0, no flags, no options.
            message.push(0);
            message.extend_from_slice(&TYPE_OPT.to_be_bytes());
            message.extend_from_slice(&UDP_PAYLOAD.to_be_bytes());
            message.extend_from_slice(&[0; 6]);
        }
        message
    }
}

impl QueryError {
    pub(crate) fn response(&self) -> Option<Vec<u8>> {
        match *self {
            Self::NotAQuery => None,
            Self::Malformed { id } => {
                Some(response_header(id, ResponseCode::FormatError as u16, [0; 4]))
            }
            Self::Opcode { id, opcode } => {
                let flags = opcode << 11 | ResponseCode::NotImplemented as u16;
                Some(response_header(id, flags, [0; 4]))
            }
        }
    }
}

struct Header {
    id: u16,
    flags: u16,
    questions: u16,
    answers: u16,
    authorities: u16,
    additional: u16,
}

impl Header {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            id: reader.u16()?,
            flags: reader.u16()?,
            questions: reader.u16()?,
            answers: reader.u16()?,
            authorities: reader.u16()?,
            additional: reader.u16()?,
        })
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }
}

fn response_header(id: u16, flags: u16, counts: [u16; 4]) -> Vec<u8> {
    let flags = flags | FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE;
    let words = [id, flags].into_iter().chain(counts);
    words.flat_map(u16::to_be_bytes).collect()
}

/// Reads the labels of a name without compression: a question has no earlier name to point to.
fn read_question_name<'a>(reader: &mut Reader<'a>) -> Option<Vec<&'a [u8]>> {
    let mut labels = Vec::new();
    let mut len = 1;
    loop {
        match reader.u8()? {
            0 => return Some(labels),
            label_len @ 1..=MAX_LABEL => {
                len += 1 + usize::from(label_len);
                if len > MAX_NAME {
                    return None;
                }
                labels.push(reader.take(label_len.into())?);
            }
            _ => return None,
        }
    }
}

/// Reads the type of an additional record. Its name may end with a pointer, which is not followed.
fn read_additional(reader: &mut Reader<'_>) -> Option<u16> {
    let mut is_root = true;
    loop {
        match reader.u8()? {
            0 => break,
            label_len @ 1..=MAX_LABEL => {
                reader.take(label_len.into())?;
            }
            0xc0.. => {
                reader.u8()?;
                is_root = false;
                break;
            }
            _ => return None,
        }
        is_root = false;
    }
    let kind = reader.u16()?;
    let _class_and_ttl = reader.take(6)?;
    let data_len = reader.u16()?;
    reader.take(data_len.into())?;
    (is_root || kind != TYPE_OPT).then_some(kind)
}

/// Returns the name as text, if it is a valid host name. A dot inside a label must not become a
/// separator.
fn host_name(labels: &[&[u8]]) -> Option<String> {
    let valid = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !labels.iter().all(|label| label.iter().all(valid)) {
        return None;
    }
    let labels: Vec<&str> =
        labels.iter().map(|label| std::str::from_utf8(label).ok()).collect::<Option<_>>()?;
    match labels.join(".").parse() {
        Ok(Host::Name(name)) => Some(name),
        Ok(Host::Address(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
