//! The variables of this machine that a caller may not put into a header.
//!
//! A header can take its value from a variable, so that a caller can *use* a secret without knowing
//! it: `LINEAR_API_KEY`, `GITHUB_TOKEN`, `DOCS_MCP_API_KEY`. The caller also chooses the URL, so a
//! variable that is not protected can be sent anywhere. Variables that give power over this machine
//! or this server are protected: the settings of the server and its clients, the keys of the models
//! that drive the clients, credentials of clouds and clusters, secret stores, ssh, and passwords
//! for programs that do not speak HTTP. Keys of web services are not protected: clients inject
//! them.
//!
//! Case is ignored, which refuses slightly too much but never too little. A protected variable is
//! not even looked up, so the error does not reveal whether it is set.

use crate::process::OWN_VARIABLES;

/// Names of variables. A trailing `*` matches any suffix. `docs/operating.md` has the same list.
pub const PROTECTED_VARIABLES: &[&str] = &[
    // This server, its clients, and the models that drive them.
    OWN_VARIABLES[0],
    OWN_VARIABLES[1],
    "ANTHROPIC_*",
    "CHATGPT_*",
    "CODEX_*",
    "OPENAI_*",
    // Clouds.
    "ALIBABA_CLOUD_*",
    "ALICLOUD_*",
    "ARM_*",
    "AWS_*",
    "AZURE_*",
    "BOTO_CONFIG",
    "CLOUDFLARE_*",
    "CLOUDSDK_*",
    "DIGITALOCEAN_*",
    "FLY_*",
    "GCLOUD_*",
    "GCP_*",
    "GOOGLE_*",
    "HCLOUD_*",
    "HEROKU_*",
    "IBMCLOUD_*",
    "LINODE_*",
    "OCI_*",
    "OS_*",
    "SCW_*",
    "TENCENTCLOUD_*",
    "VULTR_*",
    // Clusters, infrastructure, and CI jobs, whose credentials may act for a project.
    "ACTIONS_*",
    "ANSIBLE_*",
    "CI_JOB_*",
    "CONSUL_*",
    "DOCKER_*",
    "KUBE*",
    "NOMAD_*",
    "PULUMI_*",
    "SYSTEM_ACCESSTOKEN",
    "TAILSCALE_*",
    "TF_*",
    "TFE_*",
    "TS_AUTHKEY",
    // Secret stores.
    "BW_*",
    "DOPPLER_*",
    "INFISICAL_*",
    "OP_*",
    "SOPS_*",
    "VAULT_*",
    // Other machines and users.
    "GIT_ASKPASS",
    "GPG_*",
    "SSH*",
    "SUDO_*",
    // Databases.
    "DATABASE_URL",
    "MONGODB_URI",
    "MYSQL_PWD",
    "PGPASSFILE",
    "PGPASSWORD",
    "POSTGRES_PASSWORD",
    "REDISCLI_AUTH",
    "REDIS_URL",
    // Proxy URLs, which may contain passwords.
    "ALL_PROXY",
    "FTP_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
];

/// [`PROTECTED_VARIABLES`] with the operator's changes.
#[derive(Debug, Clone, Default)]
pub struct ProtectedVariables {
    added: Vec<String>,
    removed: Vec<String>,
}

impl ProtectedVariables {
    /// The entries have the form of those in [`PROTECTED_VARIABLES`]. A variable that matches
    /// entries of both lists is protected.
    #[must_use]
    pub fn new(added: Vec<String>, removed: Vec<String>) -> Self {
        Self { added, removed }
    }

    pub fn check_entry(entry: &str) -> Result<(), String> {
        let name = entry.strip_suffix('*').unwrap_or(entry);
        let is_name = |name: &str| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && !name.is_empty()
        };
        if is_name(name) {
            return Ok(());
        }
        Err(format!(
            "expected the name of a variable such as \"FLY_API_TOKEN\", or a prefix and a star \
             such as \"FLY_*\", found {entry:?}"
        ))
    }

    pub(super) fn has(&self, variable: &str) -> bool {
        let matched = |entries: &[String]| entries.iter().any(|entry| matches(entry, variable));
        // These are always protected.
        OWN_VARIABLES.iter().any(|entry| matches(entry, variable))
            || matched(&self.added)
            || (PROTECTED_VARIABLES.iter().any(|entry| matches(entry, variable))
                && !matched(&self.removed))
    }
}

fn matches(entry: &str, variable: &str) -> bool {
    match entry.strip_suffix('*') {
        Some(start) => {
            let beginning = variable.as_bytes().get(..start.len());
            beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(start.as_bytes()))
        }
        None => entry.eq_ignore_ascii_case(variable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_protected(variable: &str) -> bool {
        ProtectedVariables::default().has(variable)
    }

    #[test]
    fn variables_with_power_over_the_machine_or_the_server_are_protected() {
        for variable in [
            "EXEC_SERVER_WS_TOKEN_FILE",
            "OTEL_EXPORTER_OTLP_HEADERS",
            "CODEX_API_KEY",
            "OPENAI_API_KEY",
            "ANTHROPIC_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_BEARER_TOKEN_BEDROCK",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "AZURE_CLIENT_SECRET",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
            "KUBECONFIG",
            "KUBERNETES_SERVICE_TOKEN",
            "VAULT_TOKEN",
            "TF_TOKEN_app_terraform_io",
            "SSH_AUTH_SOCK",
            "SSHPASS",
            "PGPASSWORD",
            "HTTPS_PROXY",
        ] {
            assert!(is_protected(variable), "{variable}");
        }
    }

    #[test]
    fn case_is_ignored() {
        assert!(is_protected("openai_api_key"));
        assert!(is_protected("Aws_Secret_Access_Key"));
        assert!(is_protected("https_proxy"));
    }

    #[test]
    fn keys_of_web_services_are_not_protected() {
        for variable in [
            "LINEAR_API_KEY",
            "GITHUB_TOKEN",
            "GITHUB_PAT",
            "GITLAB_TOKEN",
            "NOTION_TOKEN",
            "SLACK_BOT_TOKEN",
            "SLACK_TOKEN",
            "SENTRY_AUTH_TOKEN",
            "FIGMA_TOKEN",
            "STRIPE_SECRET_KEY",
            "HF_TOKEN",
            "TAVILY_API_KEY",
            "API_KEY",
            "MY_OPENAI_API_KEY",
            "AWSOME_TOKEN",
            "",
            "\u{fc}\u{fc}",
        ] {
            assert!(!is_protected(variable), "{variable}");
        }
    }

    #[test]
    fn an_operator_adds_and_removes_names_but_never_the_servers_own() {
        let list = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect();
        let rules = ProtectedVariables::new(
            list(&["github_token", "SLACK_*", "FLY_ROOT"]),
            list(&["FLY_*", "AWS_REGION", "EXEC_SERVER_*", "exec_server_url"]),
        );
        for variable in
            ["GITHUB_TOKEN", "SLACK_TOKEN", "FLY_ROOT", "AWS_PROFILE", "EXEC_SERVER_URL"]
        {
            assert!(rules.has(variable), "{variable}");
        }
        for variable in ["GITHUB_TOKEN_2", "FLY_API_TOKEN", "AWS_REGION", "LINEAR_API_KEY"] {
            assert!(!rules.has(variable), "{variable}");
        }
    }

    #[test]
    fn a_malformed_entry_is_an_error() {
        for entry in PROTECTED_VARIABLES.iter().chain(&["A", "a_1*"]) {
            ProtectedVariables::check_entry(entry).unwrap();
        }
        for entry in ["", "*", "A*B", "A B", "$A", "A=1", "\u{fc}"] {
            let told = ProtectedVariables::check_entry(entry).unwrap_err();
            assert!(told.contains(&format!("{entry:?}")), "{told}");
        }
    }

    #[test]
    fn entries_are_upper_case_and_not_redundant() {
        for (index, entry) in PROTECTED_VARIABLES.iter().enumerate() {
            assert_eq!(*entry, entry.to_ascii_uppercase());
            let mut others = PROTECTED_VARIABLES.iter().enumerate();
            let name = entry.trim_end_matches('*');
            assert!(!others.any(|(other, it)| other != index && matches(it, name)), "{entry}");
        }
    }
}
