//! Bearer tokens: which tokens a listener accepts, and where a request carries its token. Uses no
//! sockets and no clock. Errors and debug output never contain a token or a secret.

mod attempts;
mod credentials;
mod jwt;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use base64_simd::URL_SAFE_NO_PAD;
use exec_server_protocol::{Principal, SandboxCeiling, Subject};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use subtle::ConstantTimeEq as _;

pub(crate) use attempts::{FailedAttempts, network_of};
pub(crate) use credentials::{AmbiguousToken, find_token, selected_subprotocol};
pub use jwt::{
    Claims, MIN_SECRET_BYTES, SandboxClaim, SigningSecret, TokenError, TokenRules, inspect,
};

/// A shorter token could be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// How a WebSocket listener authenticates its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthOptions {
    /// One secret token, shared by all clients.
    CapabilityToken(CapabilityToken),
    /// JSON Web Tokens signed with HMAC-SHA256.
    SignedBearerToken { secret_file: PathBuf, rules: TokenRules },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapabilityToken {
    File(PathBuf),
    Sha256([u8; 32]),
}

#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error("cannot read {}: {reason}", shown(path))]
    Unreadable { path: PathBuf, reason: io::Error },
    #[error(
        "the token in {} has {len} characters; it needs at least {MIN_TOKEN_BYTES} \
         (exec-server token new creates one)",
        path.display()
    )]
    ShortToken { path: PathBuf, len: usize },
    #[error(
        "{} does not contain a token: it is empty, or has a space, a line break or another character \
         that is not allowed in a header",
        path.display()
    )]
    NotAToken { path: PathBuf },
    #[error(
        "the secret in {} has {len} bytes; it needs at least {MIN_SECRET_BYTES} \
         (exec-server token new creates one)",
        path.display()
    )]
    ShortSecret { path: PathBuf, len: usize },
}

/// Maps tokens to principals.
#[derive(Debug)]
pub struct Authenticator {
    options: AuthOptions,
    keys: RwLock<Arc<Keys>>,
}

enum Keys {
    CapabilityToken { sha256: [u8; 32] },
    SignedBearerToken { secret: Box<SigningSecret>, rules: TokenRules },
}

impl Authenticator {
    /// Reads the file of the token or secret, if there is one.
    pub fn new(options: AuthOptions) -> Result<Self, AuthError> {
        let keys = RwLock::new(Arc::new(Keys::read(&options)?));
        Ok(Self { options, keys })
    }

    /// Whether tokens state the role of their clients.
    pub(crate) fn has_roles(&self) -> bool {
        matches!(self.options, AuthOptions::SignedBearerToken { .. })
    }

    /// Reads the file again. On an error, the old keys stay in force.
    pub fn reload(&self) -> Result<(), AuthError> {
        let keys = Arc::new(Keys::read(&self.options)?);
        *self.keys.write().expect("no code panics while it holds the keys") = keys;
        Ok(())
    }

    /// Files whose content grants access.
    #[must_use]
    pub fn secret_files(&self) -> Vec<PathBuf> {
        match &self.options {
            AuthOptions::CapabilityToken(CapabilityToken::Sha256(_)) => Vec::new(),
            AuthOptions::CapabilityToken(CapabilityToken::File(path))
            | AuthOptions::SignedBearerToken { secret_file: path, .. } => vec![path.clone()],
        }
    }

    pub(crate) fn authenticate(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<Principal, TokenError> {
        let keys = Arc::clone(&self.keys.read().expect("no code panics while it holds the keys"));
        let sha256 = sha256(token.as_bytes());
        match &*keys {
            Keys::CapabilityToken { sha256: expected } => {
                // Comparing hashes reveals nothing about how much of a wrong token is right.
                let is_equal = bool::from(sha256.ct_eq(expected));
                is_equal
                    .then(|| Principal::new(Subject::Token(sha256)))
                    .ok_or(TokenError::UnknownToken)
            }
            Keys::SignedBearerToken { secret, rules } => {
                let claims = secret.verify(token, rules, now)?;
                Ok(Principal {
                    expires: Some(rules.expiry(&claims)),
                    role: claims.role.unwrap_or_default(),
                    ceiling: claims
                        .sandbox
                        .map_or_else(SandboxCeiling::default, SandboxClaim::into_ceiling),
                    limits: claims.limits.unwrap_or_default(),
                    subject: claims.sub.map_or(Subject::Token(sha256), Subject::Named),
                })
            }
        }
    }
}

impl Keys {
    fn read(options: &AuthOptions) -> Result<Self, AuthError> {
        Ok(match options {
            AuthOptions::CapabilityToken(CapabilityToken::Sha256(sha256)) => {
                Self::CapabilityToken { sha256: *sha256 }
            }
            AuthOptions::CapabilityToken(CapabilityToken::File(path)) => {
                let token = read_token_file(path)?;
                if token.len() < MIN_TOKEN_BYTES {
                    return Err(AuthError::ShortToken { path: path.clone(), len: token.len() });
                }
                Self::CapabilityToken { sha256: sha256(token.as_bytes()) }
            }
            AuthOptions::SignedBearerToken { secret_file, rules } => {
                let secret = Box::new(SigningSecret::read(secret_file)?);
                Self::SignedBearerToken { secret, rules: rules.clone() }
            }
        })
    }
}

/// Generates a token, or a secret to sign tokens with: 256 random bits.
///
/// # Panics
/// If the system provides no randomness.
#[must_use]
pub fn new_token() -> String {
    let mut bits = [0; 32];
    SystemRandom::new().fill(&mut bits).expect("the system provides randomness");
    URL_SAFE_NO_PAD.encode_to_string(bits)
}

/// Reads the token in a file, without trailing line breaks.
pub fn read_token_file(path: &Path) -> Result<String, AuthError> {
    let bytes = read_secret(path)?;
    let token = String::from_utf8(bytes).ok().filter(|token| is_token(token));
    token.ok_or_else(|| AuthError::NotAToken { path: path.to_owned() })
}

/// Hides a path that looks like a token given in place of a file.
fn shown(path: &Path) -> String {
    const LONGEST_NAME: usize = 40;
    let text = path.display().to_string();
    match text.contains('/') || text.len() < LONGEST_NAME {
        true => text,
        false => "a file whose name looks like a token".to_owned(),
    }
}

/// Whether a string can be a token: a line break would add headers, a space would end the token.
pub(crate) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn read_secret(path: &Path) -> Result<Vec<u8>, AuthError> {
    let mut bytes = std::fs::read(path)
        .map_err(|reason| AuthError::Unreadable { path: path.to_owned(), reason })?;
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n'));
    bytes.truncate(end.map_or(0, |last| last + 1));
    Ok(bytes)
}

/// Returns the SHA-256 of a token or a certificate. A server that stores only the hash of a token
/// can still recognise the token.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let hash = digest(&SHA256, bytes);
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn file(content: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, content).unwrap();
        (directory, path)
    }

    #[test]
    fn only_the_capability_token_is_accepted() {
        let (_directory, path) = file("open sesame, please\n");
        let options = |token| AuthOptions::CapabilityToken(token);
        let refused = Authenticator::new(options(CapabilityToken::File(path.clone())));
        assert!(matches!(refused, Err(AuthError::NotAToken { .. })));

        std::fs::write(&path, "open-sesame-please\r\n").unwrap();
        let by_file = Authenticator::new(options(CapabilityToken::File(path.clone()))).unwrap();
        let hash = sha256(b"open-sesame-please");
        let by_hash = Authenticator::new(options(CapabilityToken::Sha256(hash))).unwrap();
        for authenticator in [&by_file, &by_hash] {
            let now = SystemTime::now();
            let principal = authenticator.authenticate("open-sesame-please", now).unwrap();
            assert_eq!(principal, Principal::new(Subject::Token(hash)));
            for wrong in ["", "open-sesame-pleas", "open-sesame-pleasE", "open-sesame-please\n"] {
                assert!(authenticator.authenticate(wrong, now).is_err(), "{wrong:?}");
            }
        }
        assert_eq!(by_file.secret_files(), std::slice::from_ref(&path));
        assert!(by_hash.secret_files().is_empty());

        std::fs::write(&path, "").unwrap();
        assert!(by_file.reload().is_err());
        assert!(by_file.authenticate("open-sesame-please", SystemTime::now()).is_ok());
        std::fs::write(&path, "short").unwrap();
        assert!(matches!(by_file.reload(), Err(AuthError::ShortToken { len: 5, .. })));
        std::fs::write(&path, "changed-meanwhile").unwrap();
        by_file.reload().unwrap();
        assert!(by_file.authenticate("open-sesame-please", SystemTime::now()).is_err());
        assert!(by_file.authenticate("changed-meanwhile", SystemTime::now()).is_ok());
    }

    #[test]
    fn a_signed_token_states_subject_role_ceiling_and_expiry() {
        let (_directory, path) = file(&"s".repeat(32));
        let rules = TokenRules { max_clock_skew: Duration::from_secs(5), ..Default::default() };
        let options = AuthOptions::SignedBearerToken { secret_file: path.clone(), rules };
        let authenticator = Authenticator::new(options).unwrap();
        let secret = SigningSecret::read(&path).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let claims: Claims = serde_json::from_str(
            r#"{"sub":"alice","exp":1100,"role":"observer",
                "sandbox":{"mode":"workspace-write","writable_roots":["/srv"],"network":true}}"#,
        )
        .unwrap();
        let principal = authenticator.authenticate(&secret.sign(&claims), now).unwrap();
        assert_eq!(principal.subject, Subject::Named("alice".into()));
        assert_eq!(principal.role, exec_server_protocol::Role::Observer);
        assert_eq!(principal.ceiling.writable_roots, [PathBuf::from("/srv")]);
        assert!(principal.ceiling.network);
        assert_eq!(principal.expires, Some(now + Duration::from_secs(105)));

        let nameless = secret.sign(&Claims { sub: None, ..claims });
        let principal = authenticator.authenticate(&nameless, now).unwrap();
        assert_eq!(principal.subject, Subject::Token(sha256(nameless.as_bytes())));
    }

    #[test]
    fn new_tokens_are_unique_and_long_enough_to_sign_with() {
        let (one, other) = (new_token(), new_token());
        assert_ne!(one, other);
        assert!(is_token(&one) && one.len() >= MIN_SECRET_BYTES);
    }

    #[test]
    fn secrets_have_a_minimum_length_and_are_not_printed() {
        let (_directory, path) = file(&format!("{}\n", "s".repeat(31)));
        let error = SigningSecret::read(&path).unwrap_err();
        assert!(matches!(error, AuthError::ShortSecret { len: 31, .. }), "{error}");
        std::fs::write(&path, "s".repeat(32)).unwrap();
        let options = AuthOptions::SignedBearerToken {
            secret_file: path.clone(),
            rules: TokenRules::default(),
        };
        let authenticator = Authenticator::new(options).unwrap();
        assert!(!format!("{authenticator:?}").contains("sss"));
    }
}
