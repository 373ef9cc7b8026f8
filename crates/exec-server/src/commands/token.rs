//! `exec-server token`: creates and explains tokens. `credentials` manages those of a rendezvous.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use exec_server_protocol::{HostRules, Role, SandboxLevel};
use exec_server_rendezvous::CredentialKind;
use exec_server_transport::{
    Claims, SandboxClaim, SigningSecret, TokenError, inspect, new_token, read_token_file, sha256,
};

use super::{credentials, print};
use crate::cli::token::{Inspect, LevelName, Sign, TokenCommand};
use crate::environment::limit_options;
use crate::terminal::printable;

pub(crate) fn run(command: &TokenCommand, out: &mut impl Write) -> anyhow::Result<()> {
    let text = match command {
        TokenCommand::New => new_token() + "\n",
        TokenCommand::Sign(options) => sign(options, SystemTime::now())? + "\n",
        TokenCommand::Inspect(Inspect { json, file }) => {
            let token = read(file.as_deref())?;
            explain(&token, *json, SystemTime::now())?
        }
        TokenCommand::Create(options) => credentials::create(options, CredentialKind::Token)?,
        TokenCommand::CreateAgent(options) => credentials::create(options, CredentialKind::Agent)?,
        TokenCommand::List { store, json } => credentials::list(&store.store()?, *json)?,
        TokenCommand::Revoke { store, id } => credentials::revoke(&store.store()?, id)?,
    };
    Ok(print(text.as_bytes(), out)?)
}

fn sign(options: &Sign, now: SystemTime) -> anyhow::Result<String> {
    let secret = SigningSecret::read(&options.secret_file)?;
    ensure!(!options.ttl.is_zero(), "--ttl must be more than 0");
    let is_writable = options.sandbox == Some(LevelName::WorkspaceWrite);
    ensure!(
        is_writable != options.writable.is_empty(),
        "--writable and --sandbox workspace-write must be given together"
    );
    let now = since_1970(now);
    let expires = now.checked_add(options.ttl).with_context(|| {
        let ttl = humantime::format_duration(options.ttl);
        format!("--ttl {ttl} is too long: the expiry does not fit into 64 bits")
    })?;
    let sandbox = options.sandbox.map(|level| SandboxClaim {
        hosts: host_rules(options),
        mode: level.into(),
        writable_roots: options.writable.clone(),
        network: options.network,
    });
    let claims = Claims {
        sub: Some(options.subject.clone()),
        exp: expires.as_secs(),
        nbf: None,
        iat: Some(now.as_secs()),
        iss: options.issuer.clone(),
        aud: options.audience.clone().into_iter().collect(),
        role: Some(options.role.into()).filter(|role| *role != Role::default()),
        sandbox,
        limits: Some(limit_options::combined(&options.limit)).filter(|limits| !limits.is_empty()),
    };
    let token = secret.sign(&claims);
    // Verify now: the server would refuse a token that cannot be parsed.
    inspect(&token).context("cannot sign a token with these claims")?;
    Ok(token)
}

/// Returns `None` if the token does not restrict hosts.
fn host_rules(options: &Sign) -> Option<HostRules> {
    let Sign { allow_host, deny_host, ask_network, .. } = options;
    let rules = HostRules { allow: allow_host.clone(), deny: deny_host.clone(), ask: *ask_network };
    (rules != HostRules::default()).then_some(rules)
}

fn read(file: Option<&Path>) -> anyhow::Result<String> {
    match file.filter(|file| file.as_os_str() != "-") {
        Some(file) => Ok(read_token_file(file)?),
        None => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            Ok(text.trim_end_matches(['\r', '\n']).to_owned())
        }
    }
}

fn explain(token: &str, json: bool, now: SystemTime) -> anyhow::Result<String> {
    let claims = match inspect(token) {
        Ok(claims) => claims,
        Err(TokenError::NotAToken) if !json => return Ok(explain_capability(token)),
        Err(TokenError::NotAToken) => {
            bail!("this token is not signed, so it has no claims for --json to show; omit --json")
        }
        Err(error) => return Err(anyhow::Error::new(error).context("cannot inspect the token")),
    };
    if json {
        return Ok(serde_json::to_string(&claims)? + "\n");
    }
    let subject = claims.sub.as_deref().unwrap_or("none: the token itself is the subject");
    let role = match claims.role.unwrap_or_default() {
        Role::Owner => "owner",
        Role::Observer => "observer",
        Role::Admin => "admin",
    };
    let mut text = String::new();
    line(&mut text, "subject", subject);
    line(&mut text, "role", role);
    line(&mut text, "expires", &moment(claims.exp, now));
    if let Some(nbf) = claims.nbf {
        line(&mut text, "not before", &moment(nbf, now));
    }
    line(&mut text, "sandbox", &claims.sandbox.as_ref().map_or("none".to_owned(), ceiling));
    if let Some(limits) = claims.limits.filter(|limits| !limits.is_empty()) {
        line(&mut text, "limits", &limit_options::describe(&limits));
    }
    if let Some(issuer) = &claims.iss {
        line(&mut text, "issuer", issuer);
    }
    if !claims.aud.is_empty() {
        line(&mut text, "audience", &claims.aud.join(", "));
    }
    text += "The signature was not verified: that requires the secret.\n";
    Ok(text)
}

fn line(text: &mut String, name: &str, value: &str) {
    // The issuer of the token controls these strings.
    let value = printable(value);
    writeln!(text, "{name:<10} {value}").expect("a String accepts every write");
}

fn explain_capability(token: &str) -> String {
    let hash = sha256(token.as_bytes());
    let mut text = "This is a capability token, which has no claims. Its SHA-256, for \
                    --ws-token-sha256:\n"
        .to_owned();
    for byte in hash {
        write!(text, "{byte:02x}").expect("a String accepts every write");
    }
    text + "\n"
}

fn ceiling(sandbox: &SandboxClaim) -> String {
    let network = match (sandbox.network, &sandbox.hosts) {
        (false, _) => "no network".to_owned(),
        (true, None) => "network".to_owned(),
        (true, Some(rules)) => reachable(rules),
    };
    match sandbox.mode {
        SandboxLevel::ReadOnly => format!("read-only, {network}"),
        SandboxLevel::WorkspaceWrite => {
            let roots = sandbox.writable_roots.iter().map(|root| root.display().to_string());
            let roots = roots.collect::<Vec<_>>().join(", ");
            format!("workspace-write below {roots}, {network}")
        }
    }
}

/// Describes host rules as the server interprets them.
fn reachable(HostRules { allow, deny, ask }: &HostRules) -> String {
    let allowed = allow.join(", ");
    let hosts = match (allow.is_empty(), ask) {
        (false, false) => format!("network to {allowed}"),
        (false, true) => format!("network to {allowed} and hosts that the client allows"),
        (true, true) => "network to hosts that the client allows".to_owned(),
        (true, false) if deny.is_empty() => "network to no host".to_owned(),
        (true, false) => "network".to_owned(),
    };
    match deny.is_empty() {
        true => hosts,
        false => format!("{hosts}, except {}", deny.join(", ")),
    }
}

/// Formats a time, absolute and relative.
fn moment(seconds: u64, now: SystemTime) -> String {
    let (then, now) = (Duration::from_secs(seconds), since_1970(now));
    let now = Duration::from_secs(now.as_secs());
    let distance = match then.checked_sub(now) {
        Some(left) if !left.is_zero() => format!("in {}", humantime::format_duration(left)),
        _ => format!("{} ago", humantime::format_duration(now.saturating_sub(then))),
    };
    // RFC 3339 ends with the year 9999.
    const LAST: u64 = 253_402_300_799;
    match seconds {
        0..=LAST => {
            let then = SystemTime::UNIX_EPOCH + then;
            format!("{} ({distance})", humantime::format_rfc3339_seconds(then))
        }
        _ => distance,
    }
}

fn since_1970(now: SystemTime) -> Duration {
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::token::RoleName;

    fn options(secret_file: &Path) -> Sign {
        Sign {
            secret_file: secret_file.to_owned(),
            subject: "agent".to_owned(),
            ttl: Duration::from_secs(3600),
            role: RoleName::Owner,
            sandbox: Some(LevelName::WorkspaceWrite),
            writable: vec!["/srv/a".into(), "/srv/b".into()],
            network: false,
            allow_host: Vec::new(),
            deny_host: Vec::new(),
            ask_network: false,
            limit: Vec::new(),
            issuer: None,
            audience: Some("box".to_owned()),
        }
    }

    #[test]
    fn a_token_is_explained_as_it_was_signed() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, new_token()).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let token = sign(&options(&secret), now).unwrap();
        assert_eq!(
            explain(&token, false, now).unwrap(),
            "subject    agent\n\
             role       owner\n\
             expires    2001-09-09T02:46:40Z (in 1h)\n\
             sandbox    workspace-write below /srv/a, /srv/b, no network\n\
             audience   box\n\
             The signature was not verified: that requires the secret.\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&explain(&token, true, now).unwrap()).unwrap();
        assert_eq!((&json["sub"], &json["aud"]), (&"agent".into(), &"box".into()));
        let later = now + Duration::from_secs(7200);
        assert!(explain(&token, false, later).unwrap().contains("(1h ago)"));
    }

    #[test]
    fn a_token_can_restrict_hosts() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, new_token()).unwrap();
        let mut options = options(&secret);
        options.network = true;
        options.allow_host = vec!["*.a.example".to_owned()];
        options.deny_host = vec!["x.a.example".to_owned()];
        let token = sign(&options, SystemTime::now()).unwrap();
        let claims = inspect(&token).unwrap().sandbox.unwrap().hosts.unwrap();
        assert_eq!((&claims.allow, claims.ask), (&options.allow_host, false));
        let text = explain(&token, false, SystemTime::now()).unwrap();
        assert!(text.contains("network to *.a.example, except x.a.example\n"), "{text}");
    }

    #[test]
    fn a_token_can_limit_its_processes() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, new_token()).unwrap();
        let mut options = options(&secret);
        let limits = ["memory=512M", "cpus=1.5"].map(limit_options::parse_limit);
        options.limit = limits.into_iter().map(Result::unwrap).collect();
        let token = sign(&options, SystemTime::now()).unwrap();
        let text = explain(&token, false, SystemTime::now()).unwrap();
        assert!(text.contains("limits     memory 512M, cpus 1.5\n"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&explain(&token, true, SystemTime::now()).unwrap()).unwrap();
        assert_eq!(json["limits"], serde_json::json!({"memoryBytes": 512 << 20, "cpus": 1.5}));
    }

    #[test]
    fn the_hosts_of_a_token_are_explained() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        for (allow, deny, ask, expected) in [
            (&["a"][..], &[][..], true, "network to a and hosts that the client allows"),
            (&[], &["b"], false, "network, except b"),
            (&[], &[], true, "network to hosts that the client allows"),
            (&[], &[], false, "network to no host"),
        ] {
            let rules = HostRules { allow: texts(allow), deny: texts(deny), ask };
            assert_eq!(reachable(&rules), expected);
        }
    }

    #[test]
    fn invalid_options_are_refused_before_signing() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, new_token()).unwrap();
        let refused = |change: fn(&mut Sign)| {
            let mut options = options(&secret);
            change(&mut options);
            format!("{:#}", sign(&options, SystemTime::now()).unwrap_err())
        };
        assert!(refused(|sign| sign.ttl = Duration::ZERO).contains("--ttl"));
        assert!(refused(|sign| sign.sandbox = Some(LevelName::ReadOnly)).contains("--writable"));
        assert!(refused(|sign| sign.writable = vec!["a".into()]).contains("absolute"));
        assert!(refused(|sign| sign.subject = String::new()).contains("sub"));
        std::fs::write(&secret, "short").unwrap();
        assert!(refused(|_| ()).contains("at least 32"));
    }

    #[test]
    fn the_hash_of_a_capability_token_is_printed() {
        let text = explain("open-sesame", false, SystemTime::now()).unwrap();
        assert!(text.contains("--ws-token-sha256"));
        assert!(exec_server_transport::parse_sha256(text.lines().last().unwrap()).is_some());
        assert!(!text.contains("open-sesame"));
        assert!(explain("open-sesame", true, SystemTime::now()).is_err());
    }
}
