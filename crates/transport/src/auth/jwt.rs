//! JSON Web Tokens (RFC 7519) signed with HMAC-SHA256, the only supported algorithm.
//!
//! The usual crate, `jsonwebtoken`, needs a process-wide crypto provider, which an embedder of this
//! library may want to choose, and its backends include RSA. With a single algorithm, a token
//! cannot choose one, so the attacks with `none`, or with a public key used as an HMAC secret, are
//! impossible.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64_simd::URL_SAFE_NO_PAD;
use exec_server_protocol::{
    HostRules, LimitValues, MAX_SUBJECT_BYTES, Role, SandboxCeiling, SandboxLevel,
};
use ring::hmac;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{AuthError, read_secret};

/// A shorter secret could be guessed, and nothing else protects the signature.
pub const MIN_SECRET_BYTES: usize = 32;

const ALGORITHM: &str = "HS256";

/// The claims of a token. Unknown members are ignored, except inside `role`, `sandbox` and
/// `limits`: these restrict, so an unknown part of them is an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub: Option<String>,
    /// In seconds since 1970, like all times here.
    #[serde(deserialize_with = "numeric_date")]
    pub exp: u64,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_date")]
    pub nbf: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_date")]
    pub iat: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iss: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "one_or_many",
        serialize_with = "one_if_single"
    )]
    pub aud: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxClaim>,
    /// Upper bounds for each process, as in `process/start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitValues>,
}

/// The ceiling of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxClaim {
    pub mode: SandboxLevel,
    /// Required with `workspace-write`; must be empty for `read-only`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable_roots: Vec<PathBuf>,
    #[serde(default)]
    pub network: bool,
    /// The hosts that processes may reach, if they have a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<HostRules>,
}

impl SandboxClaim {
    #[must_use]
    pub fn into_ceiling(self) -> SandboxCeiling {
        let Self { mode, mut writable_roots, network, hosts } = self;
        // The same roots in another order are the same ceiling.
        writable_roots.sort_unstable();
        writable_roots.dedup();
        SandboxCeiling { require: Some(mode), writable_roots, network, hosts }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenRules {
    pub issuer: Option<String>,
    pub audience: Option<String>,
    /// Maximum difference between the clocks of the issuer and this machine.
    pub max_clock_skew: Duration,
}

/// The reason why a token is refused. Logged, but not sent to the client, which learns only that
/// its credentials are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("it does not match the token of this server")]
    UnknownToken,
    #[error("it is not a JSON Web Token")]
    NotAToken,
    #[error("its algorithm is not {ALGORITHM}, or it requires extensions (crit)")]
    Algorithm,
    #[error("its signature is invalid")]
    Signature,
    #[error("its claims are invalid: {0}")]
    Claims(String),
    #[error("it expired at {exp} (exp, in seconds since 1970)")]
    Expired { exp: u64 },
    #[error(
        "it is not valid before {nbf} (nbf, in seconds since 1970); check the clocks, or raise \
         ws_max_clock_skew_seconds"
    )]
    NotYetValid { nbf: u64 },
    #[error("{}; ws_issuer is {expected:?}", stated("issuer", "iss", found))]
    Issuer { found: String, expected: String },
    #[error("{}; ws_audience is {expected:?}", stated("audience", "aud", found))]
    Audience { found: String, expected: String },
}

fn stated(name: &str, claim: &str, found: &str) -> String {
    match found {
        "" => format!("it has no {name} ({claim})"),
        _ => format!("its {name} is {found:?}"),
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that must be understood. This implementation supports none.
    #[serde(default)]
    crit: Option<serde_json::Value>,
}

pub struct SigningSecret(hmac::Key);

impl SigningSecret {
    /// Strips trailing line breaks.
    pub fn read(path: &Path) -> Result<Self, AuthError> {
        let secret = read_secret(path)?;
        if secret.len() < MIN_SECRET_BYTES {
            return Err(AuthError::ShortSecret { path: path.to_owned(), len: secret.len() });
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &secret)))
    }

    #[must_use]
    pub fn sign(&self, claims: &Claims) -> String {
        let claims = serde_json::to_string(claims).expect("claims have only string keys");
        let header = format!(r#"{{"alg":"{ALGORITHM}","typ":"JWT"}}"#);
        let encode = |text: &[u8]| URL_SAFE_NO_PAD.encode_to_string(text);
        let signed = format!("{}.{}", encode(header.as_bytes()), encode(claims.as_bytes()));
        let signature = hmac::sign(&self.0, signed.as_bytes());
        format!("{signed}.{}", encode(signature.as_ref()))
    }

    /// Returns the claims of a token that this secret signed and that is valid now. Does not look
    /// at the claims before the signature is verified.
    pub fn verify(
        &self,
        token: &str,
        rules: &TokenRules,
        now: SystemTime,
    ) -> Result<Claims, TokenError> {
        let parts = Parts::of(token)?;
        let header: Header =
            serde_json::from_slice(&parts.header).map_err(|_| TokenError::NotAToken)?;
        if header.alg != ALGORITHM || header.crit.is_some() {
            return Err(TokenError::Algorithm);
        }
        // In constant time.
        hmac::verify(&self.0, parts.signed.as_bytes(), &parts.signature)
            .map_err(|_| TokenError::Signature)?;
        let claims = parts.claims()?;
        rules.check(&claims, now)?;
        Ok(claims)
    }
}

/// Decodes the claims of a token without verifying it.
pub fn inspect(token: &str) -> Result<Claims, TokenError> {
    Parts::of(token)?.claims()
}

impl TokenRules {
    fn check(&self, claims: &Claims, now: SystemTime) -> Result<(), TokenError> {
        if now >= self.expiry(claims) {
            return Err(TokenError::Expired { exp: claims.exp });
        }
        if let Some(nbf) = claims.nbf
            && now + self.max_clock_skew < moment(nbf)
        {
            return Err(TokenError::NotYetValid { nbf });
        }
        if let Some(expected) = &self.issuer
            && claims.iss != self.issuer
        {
            let (found, expected) = (claims.iss.clone().unwrap_or_default(), expected.clone());
            return Err(TokenError::Issuer { found, expected });
        }
        if let Some(expected) = &self.audience
            && !claims.aud.contains(expected)
        {
            let (found, expected) = (claims.aud.join(", "), expected.clone());
            return Err(TokenError::Audience { found, expected });
        }
        Ok(())
    }

    pub(super) fn expiry(&self, claims: &Claims) -> SystemTime {
        moment(claims.exp) + self.max_clock_skew
    }
}

struct Parts<'t> {
    /// The part that the signature covers.
    signed: &'t str,
    header: Vec<u8>,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl<'t> Parts<'t> {
    fn of(token: &'t str) -> Result<Self, TokenError> {
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::NotAToken)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::NotAToken)?;
        // A further dot would end up in a base64 part, where it is invalid.
        let decode = |part: &str| {
            URL_SAFE_NO_PAD.decode_to_vec(part.as_bytes()).map_err(|_| TokenError::NotAToken)
        };
        Ok(Self {
            signed,
            header: decode(header)?,
            payload: decode(payload)?,
            signature: decode(signature)?,
        })
    }

    fn claims(&self) -> Result<Claims, TokenError> {
        let claims: Claims = serde_json::from_slice(&self.payload)
            .map_err(|error| TokenError::Claims(error.to_string()))?;
        let is_name = |name: &String| {
            (1..=MAX_SUBJECT_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
        };
        if !claims.sub.iter().all(is_name) {
            let reason =
                format!("sub must have 1 to {MAX_SUBJECT_BYTES} bytes and no control characters");
            return Err(TokenError::Claims(reason));
        }
        let roots = claims.sandbox.iter().flat_map(|sandbox| &sandbox.writable_roots);
        if let Some(root) = roots.into_iter().find(|root| !is_exact(root)) {
            let reason =
                format!("writable root {} must be absolute, without \"..\"", root.display());
            return Err(TokenError::Claims(reason));
        }
        if let Some(Err(error)) = claims.limits.as_ref().map(LimitValues::check) {
            return Err(TokenError::Claims(error.to_string()));
        }
        if let Some(sandbox) = &claims.sandbox {
            let needs_roots = sandbox.mode == SandboxLevel::WorkspaceWrite;
            if needs_roots == sandbox.writable_roots.is_empty() {
                let reason = "workspace-write needs writable_roots; read-only does not allow them";
                return Err(TokenError::Claims(reason.to_owned()));
            }
        }
        Ok(claims)
    }
}

fn is_exact(path: &Path) -> bool {
    path.is_absolute() && !path.components().any(|part| part == std::path::Component::ParentDir)
}

/// Clamps to a distant moment that the clock can represent.
fn moment(seconds: u64) -> SystemTime {
    const FAR: Duration = Duration::from_secs(1 << 40);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds).min(FAR)
}

/// Deserializes a number of seconds, with or without a fraction.
fn numeric_date<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = serde_json::Number::deserialize(deserializer)?;
    let whole = number.as_u64().or_else(|| {
        let seconds = number.as_f64().filter(|seconds| *seconds >= 0.0)?;
        Some(seconds as u64)
    });
    whole.ok_or_else(|| serde::de::Error::custom("a time must not be negative"))
}

fn some_date<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    numeric_date(deserializer).map(Some)
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Audience {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Audience::deserialize(deserializer)? {
        Audience::One(one) => vec![one],
        Audience::Many(many) => many,
    })
}

fn one_if_single<S: Serializer>(audience: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    match audience {
        [one] => one.serialize(serializer),
        many => many.serialize(serializer),
    }
}

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningSecret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(bytes: &[u8]) -> SigningSecret {
        SigningSecret(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    fn now() -> SystemTime {
        moment(1_000)
    }

    fn token(header: &str, claims: &str, key: &SigningSecret) -> String {
        let encode = |text: &[u8]| URL_SAFE_NO_PAD.encode_to_string(text);
        let signed = format!("{}.{}", encode(header.as_bytes()), encode(claims.as_bytes()));
        let signature = encode(hmac::sign(&key.0, signed.as_bytes()).as_ref());
        format!("{signed}.{signature}")
    }

    const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

    fn verify(claims: &str, rules: &TokenRules) -> Result<Claims, TokenError> {
        let secret = secret(&[7; 32]);
        secret.verify(&token(HEADER, claims, &secret), rules, now())
    }

    /// Appendix A.1 of RFC 7515.
    #[test]
    fn the_example_of_the_rfc_verifies() {
        let key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let key = URL_SAFE_NO_PAD.decode_to_vec(key.as_bytes()).unwrap();
        let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9\
            .eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ\
            .dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        let issued = TokenRules { issuer: Some("joe".into()), ..TokenRules::default() };
        let claims = secret(&key).verify(token, &issued, now()).unwrap();
        assert_eq!((claims.exp, claims.iss.as_deref()), (1_300_819_380, Some("joe")));
        let later = moment(1_300_819_380);
        assert_eq!(
            secret(&key).verify(token, &issued, later),
            Err(TokenError::Expired { exp: claims.exp })
        );
    }

    #[test]
    fn a_token_needs_the_right_secret_and_algorithm() {
        let (ours, other) = (secret(&[7; 32]), secret(&[8; 32]));
        let rules = TokenRules::default();
        let claims = r#"{"exp":2000}"#;
        assert!(ours.verify(&token(HEADER, claims, &ours), &rules, now()).is_ok());
        let refused = |token: &str| ours.verify(token, &rules, now()).unwrap_err();
        assert_eq!(refused(&token(HEADER, claims, &other)), TokenError::Signature);
        for header in [
            r#"{"alg":"none"}"#,
            r#"{"alg":"None"}"#,
            r#"{"alg":"HS512"}"#,
            r#"{"alg":"RS256"}"#,
            r#"{"alg":"hs256"}"#,
            r#"{"alg":"HS256","crit":["exp"]}"#,
        ] {
            assert_eq!(refused(&token(header, claims, &ours)), TokenError::Algorithm, "{header}");
        }
        let good = token(HEADER, claims, &ours);
        let (signed, signature) = good.rsplit_once('.').unwrap();
        for bad in [
            "",
            ".",
            "..",
            "a.b",
            signed,
            &format!("{signed}."),
            &format!("{good}.x"),
            &format!("{good}="),
            &format!(" {good}"),
            &format!("{signed}.{}", &signature[1..]),
            &good.replacen('e', "E", 1),
            r#"{"alg":"HS256"}.{"exp":2000}.x"#,
        ] {
            let error = refused(bad);
            let is_expected = matches!(error, TokenError::NotAToken | TokenError::Signature);
            assert!(is_expected, "{bad}: {error}");
        }
    }

    #[test]
    fn a_token_with_unknown_or_invalid_limits_is_refused() {
        let claims = |limits: &str| format!(r#"{{"exp":2000,"limits":{limits}}}"#);
        let verified = |limits: &str| verify(&claims(limits), &TokenRules::default());
        let limits = verified(r#"{"memoryBytes":512,"cpus":0.5}"#).unwrap().limits.unwrap();
        assert_eq!((limits.memory_bytes, limits.pids), (Some(512), None));
        for limits in [
            r#"{"memoryBytes":0}"#,
            r#"{"memoryBytes":-1}"#,
            r#"{"memory":1}"#,
            r#"{"cpus":0}"#,
            r#"{"required":"cgroup"}"#,
            "[]",
            "7",
        ] {
            let refused = verified(limits);
            assert!(matches!(refused, Err(TokenError::Claims(_))), "{limits}: {refused:?}");
        }
    }

    #[test]
    fn times_issuer_and_audience_are_checked() {
        let any = TokenRules::default();
        let skewed = TokenRules { max_clock_skew: Duration::from_secs(60), ..any.clone() };
        let expects =
            TokenRules { issuer: Some("me".into()), audience: Some("box".into()), ..any.clone() };
        let expired = |exp| Some(TokenError::Expired { exp });
        let not_yet_valid = |nbf| Some(TokenError::NotYetValid { nbf });
        let issuer = |found: &str| {
            Some(TokenError::Issuer { found: found.to_owned(), expected: "me".to_owned() })
        };
        let audience = |found: &str| {
            Some(TokenError::Audience { found: found.to_owned(), expected: "box".to_owned() })
        };
        for (claims, rules, expected) in [
            (r#"{"exp":1001}"#, &any, None),
            (r#"{"exp":1001.9}"#, &any, None),
            (r#"{"exp":1000}"#, &any, expired(1000)),
            (r#"{"exp":0}"#, &any, expired(0)),
            (r#"{"exp":941}"#, &skewed, None),
            (r#"{"exp":940}"#, &skewed, expired(940)),
            (r#"{"exp":18446744073709551615}"#, &any, None),
            (r#"{"exp":2000,"nbf":1000}"#, &any, None),
            (r#"{"exp":2000,"nbf":1001}"#, &any, not_yet_valid(1001)),
            (r#"{"exp":2000,"nbf":1060}"#, &skewed, None),
            (r#"{"exp":2000,"nbf":1061}"#, &skewed, not_yet_valid(1061)),
            (r#"{"exp":2000,"iss":"me","aud":"box"}"#, &expects, None),
            (r#"{"exp":2000,"iss":"me","aud":["other","box"]}"#, &expects, None),
            (r#"{"exp":2000,"aud":"box"}"#, &expects, issuer("")),
            (r#"{"exp":2000,"iss":"you","aud":"box"}"#, &expects, issuer("you")),
            (r#"{"exp":2000,"iss":"me"}"#, &expects, audience("")),
            (r#"{"exp":2000,"iss":"me","aud":[]}"#, &expects, audience("")),
            (r#"{"exp":2000,"iss":"me","aud":"other"}"#, &expects, audience("other")),
        ] {
            assert_eq!(verify(claims, rules).err(), expected, "{claims}");
        }
    }

    #[test]
    fn invalid_claims_are_refused() {
        let long = "x".repeat(MAX_SUBJECT_BYTES + 1);
        for claims in [
            "{}",
            r#"{"exp":null}"#,
            r#"{"exp":"2000"}"#,
            r#"{"exp":-1}"#,
            r#"{"exp":2000,"exp":3000}"#,
            r#"{"exp":2000,"nbf":"soon"}"#,
            r#"{"exp":2000,"sub":7}"#,
            r#"{"exp":2000,"sub":""}"#,
            r#"{"exp":2000,"sub":"a\nb"}"#,
            &format!(r#"{{"exp":2000,"sub":"{long}"}}"#),
            r#"{"exp":2000,"role":"root"}"#,
            r#"{"exp":2000,"sandbox":"read-only"}"#,
            r#"{"exp":2000,"sandbox":{}}"#,
            r#"{"exp":2000,"sandbox":{"mode":"none"}}"#,
            r#"{"exp":2000,"sandbox":{"mode":"read-only","netwrok":true}}"#,
            r#"{"exp":2000,"sandbox":{"mode":"workspace-write","writable_roots":["relative"]}}"#,
            r#"{"exp":2000,"sandbox":{"mode":"workspace-write","writable_roots":["/a/../b"]}}"#,
            r#"{"exp":2000,"sandbox":{"mode":"workspace-write"}}"#,
            r#"{"exp":2000,"sandbox":{"mode":"read-only","writable_roots":["/a"]}}"#,
            "[]",
            "7",
        ] {
            let refused = verify(claims, &TokenRules::default());
            assert!(matches!(refused, Err(TokenError::Claims(_))), "{claims}: {refused:?}");
        }
        assert!(verify(r#"{"exp":2000,"scope":"any","jti":"1"}"#, &TokenRules::default()).is_ok());
    }
}
