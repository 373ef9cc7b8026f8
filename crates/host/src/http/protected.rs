//! Which variables of this machine a caller may not put into a header.
//!
//! The feature exists so that a caller can *use* a secret that it does not know: `MY_SERVICE_TOKEN`, `DOCS_MCP_API_KEY`. A rule
//! that refuses every `TOKEN`, `SECRET` or `KEY` would refuse exactly those. The caller also chooses the URL, so whatever
//! this module lets through can be sent anywhere. What tells the two apart is for whom a variable was set:
//!
//! * **Names that a well-known tool or SDK reads by itself** are protected. They were set for that tool, not for this
//!   feature, and are often set for everything on a machine: model providers, clouds, source forges and CI, package
//!   registries, databases, secret stores, and proxies, whose URLs hold passwords.
//! * **Names that are nobody's own** (`API_KEY`, `TOKEN`, `PASSWORD`) are protected for the same reason.
//! * **This server's own settings**, and those of its clients in the field, are protected.
//! * Every other name was invented by somebody for a purpose of their own. Whoever sets it in the environment of a server
//!   whose clients choose URLs has decided that they may use it.
//!
//! An operator who wants to grant a protected secret sets it under a name of their own. Vendors are protected by prefix
//! where all that they define is theirs, because new names keep appearing (`AWS_BEARER_TOKEN_BEDROCK` did). The names of
//! forges are listed one by one: `GITHUB_PAT_FOR_MCP` is somebody's own.
//!
//! Case is ignored, which refuses a little too much and never too little. A protected variable is not even looked up, so
//! the answer does not tell whether it is set.

pub(super) fn is_protected(variable: &str) -> bool {
    let variable = variable.to_ascii_uppercase();
    PREFIXES.iter().any(|prefix| variable.starts_with(prefix)) || NAMES.contains(&variable.as_str())
}

const PREFIXES: &[&str] = &[
    // This server and its clients.
    "EXEC_SERVER_",
    "CODEX_",
    // Model providers.
    "ANTHROPIC_",
    "ASSEMBLYAI_",
    "CEREBRAS_",
    "CHATGPT_",
    "CLAUDE_",
    "COHERE_",
    "DASHSCOPE_",
    "DEEPGRAM_",
    "DEEPSEEK_",
    "ELEVENLABS_",
    "FIREWORKS_",
    "GEMINI_",
    "GROQ_",
    "HUGGINGFACE_",
    "HUGGING_FACE_",
    "LANGCHAIN_",
    "LANGFUSE_",
    "LANGSMITH_",
    "MISTRAL_",
    "MOONSHOT_",
    "NGC_",
    "NVIDIA_",
    "OPENAI_",
    "OPENROUTER_",
    "PERPLEXITY_",
    "PINECONE_",
    "REPLICATE_",
    "SAMBANOVA_",
    "TOGETHER_",
    "VOYAGE_",
    "WANDB_",
    "XAI_",
    // Clouds and hosting.
    "ALIBABA_CLOUD_",
    "ALICLOUD_",
    "ARM_",
    "AWS_",
    "AZURE_",
    "CLOUDFLARE_",
    "CLOUDSDK_",
    "DATABRICKS_",
    "DIGITALOCEAN_",
    "FLY_",
    "GCLOUD_",
    "GCP_",
    "GOOGLE_",
    "HCLOUD_",
    "HEROKU_",
    "IBMCLOUD_",
    "KAGGLE_",
    "KUBE",
    "LINODE_",
    "MODAL_TOKEN_",
    "NETLIFY_",
    "OCI_",
    "OS_",
    "RAILWAY_",
    "RUNPOD_",
    "SCW_",
    "SNOWFLAKE_",
    "SUPABASE_",
    "TENCENTCLOUD_",
    "VERCEL_",
    "VULTR_",
    // Infrastructure and secret stores.
    "CONSUL_",
    "DOPPLER_",
    "INFISICAL_",
    "NOMAD_",
    "OP_",
    "PULUMI_",
    "TFE_",
    "TF_",
    "VAULT_",
    // CI systems hand their jobs tokens that can publish, deploy and impersonate.
    "ACTIONS_",
    "BUILDKITE_",
    "CIRCLE_",
    "CI_",
    "JENKINS_",
    // Package registries.
    "CARGO_REGISTR",
    "DOCKER_",
    "NPM_",
    "PIP_",
    "POETRY_",
    "TWINE_",
    "UV_",
    "YARN_",
];

const NAMES: &[&str] = &[
    // What says nothing of whose it is: the one key, token or password of whatever program was set up first.
    "ACCESS_KEY",
    "ACCESS_TOKEN",
    "API_KEY",
    "API_SECRET",
    "API_TOKEN",
    "APIKEY",
    "AUTH_TOKEN",
    "BEARER_TOKEN",
    "CLIENT_SECRET",
    "JWT_SECRET",
    "PASSWD",
    "PASSWORD",
    "PRIVATE_KEY",
    "REFRESH_TOKEN",
    "SECRET",
    "SECRET_ACCESS_KEY",
    "SECRET_KEY",
    "TOKEN",
    // Model providers whose prefix is too short to be theirs alone.
    "ARIZE_API_KEY",
    "COMET_API_KEY",
    "EXA_API_KEY",
    "FAL_KEY",
    "HF_TOKEN",
    "SERPAPI_API_KEY",
    "STABILITY_API_KEY",
    "TAVILY_API_KEY",
    "ZHIPUAI_API_KEY",
    // Clouds.
    "BOTO_CONFIG",
    "CF_API_KEY",
    "CF_API_TOKEN",
    "DO_API_TOKEN",
    // Source forges.
    "BITBUCKET_APP_PASSWORD",
    "BITBUCKET_TOKEN",
    "CODEBERG_TOKEN",
    "FORGEJO_TOKEN",
    "GH_ENTERPRISE_TOKEN",
    "GH_TOKEN",
    "GITEA_TOKEN",
    "GITHUB_APP_PRIVATE_KEY",
    "GITHUB_ENTERPRISE_TOKEN",
    "GITHUB_PAT",
    "GITHUB_TOKEN",
    "GITLAB_ACCESS_TOKEN",
    "GITLAB_PAT",
    "GITLAB_PRIVATE_TOKEN",
    "GITLAB_TOKEN",
    "GIT_ASKPASS",
    "GIT_PASSWORD",
    "GIT_TOKEN",
    "RENOVATE_TOKEN",
    "SYSTEM_ACCESSTOKEN",
    // Package registries.
    "ARTIFACTORY_API_KEY",
    "CODECOV_TOKEN",
    "CONAN_PASSWORD",
    "FURY_AUTH_TOKEN",
    "GEM_HOST_API_KEY",
    "HEX_API_KEY",
    "HOMEBREW_GITHUB_API_TOKEN",
    "JFROG_ACCESS_TOKEN",
    "MAVEN_PASSWORD",
    "NODE_AUTH_TOKEN",
    "NUGET_API_KEY",
    "PYPI_TOKEN",
    "RUBYGEMS_API_KEY",
    "SNYK_TOKEN",
    "SONAR_TOKEN",
    // Databases.
    "CLICKHOUSE_PASSWORD",
    "DATABASE_URL",
    "ELASTIC_PASSWORD",
    "MONGODB_URI",
    "MONGODB_URL",
    "MONGO_URL",
    "MSSQL_SA_PASSWORD",
    "MYSQL_PASSWORD",
    "MYSQL_PWD",
    "MYSQL_ROOT_PASSWORD",
    "NEO4J_PASSWORD",
    "PGPASSFILE",
    "PGPASSWORD",
    "POSTGRES_PASSWORD",
    "POSTGRES_URL",
    "RABBITMQ_DEFAULT_PASS",
    "REDISCLI_AUTH",
    "REDIS_PASSWORD",
    "REDIS_URL",
    "SQLCMDPASSWORD",
    "UPSTASH_REDIS_REST_TOKEN",
    // Secrets and observability that agents commonly have.
    "AIRTABLE_API_KEY",
    "ANSIBLE_VAULT_PASSWORD",
    "BW_PASSWORD",
    "BW_SESSION",
    "DATADOG_API_KEY",
    "DD_API_KEY",
    "DD_APP_KEY",
    "DISCORD_TOKEN",
    "FIGMA_TOKEN",
    "GPG_PASSPHRASE",
    "GRAFANA_API_KEY",
    "GRAFANA_TOKEN",
    "HONEYCOMB_API_KEY",
    "JIRA_API_TOKEN",
    "LINEAR_API_KEY",
    "MAILGUN_API_KEY",
    "NEW_RELIC_API_KEY",
    "NEW_RELIC_LICENSE_KEY",
    "NGROK_AUTHTOKEN",
    "NOTION_TOKEN",
    "PAGERDUTY_TOKEN",
    "RESTIC_PASSWORD",
    "SENDGRID_API_KEY",
    "SENTRY_AUTH_TOKEN",
    "SLACK_APP_TOKEN",
    "SLACK_BOT_TOKEN",
    "SLACK_TOKEN",
    "SOPS_AGE_KEY",
    "SSHPASS",
    "SSH_ASKPASS",
    "STRIPE_API_KEY",
    "STRIPE_SECRET_KEY",
    "SUDO_ASKPASS",
    "TAILSCALE_AUTHKEY",
    "TELEGRAM_BOT_TOKEN",
    "TS_AUTHKEY",
    "TWILIO_AUTH_TOKEN",
    // Their URLs hold passwords.
    "ALL_PROXY",
    "FTP_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_that_tools_read_by_themselves_are_protected() {
        for variable in [
            "OPENAI_API_KEY",
            "OPENAI_ORG_ID",
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_BEARER_TOKEN_BEDROCK",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "AZURE_CLIENT_SECRET",
            "ARM_CLIENT_SECRET",
            "GITHUB_TOKEN",
            "GH_TOKEN",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
            "CI_JOB_TOKEN",
            "CARGO_REGISTRY_TOKEN",
            "CARGO_REGISTRIES_INTERNAL_TOKEN",
            "KUBECONFIG",
            "VAULT_TOKEN",
            "TF_TOKEN_app_terraform_io",
            "PGPASSWORD",
            "HTTPS_PROXY",
            "WANDB_API_KEY",
            "FIREWORKS_API_KEY",
            "CEREBRAS_API_KEY",
            "VOYAGE_API_KEY",
            "NGC_API_KEY",
            "ELEVENLABS_API_KEY",
            "KAGGLE_KEY",
            "GITHUB_PAT",
            "SNYK_TOKEN",
            "NOTION_TOKEN",
            "SSHPASS",
        ] {
            assert!(is_protected(variable), "{variable}");
        }
    }

    #[test]
    fn names_that_are_nobodys_own_are_protected() {
        for variable in
            ["API_KEY", "TOKEN", "API_TOKEN", "ACCESS_TOKEN", "AUTH_TOKEN", "SECRET_KEY"]
        {
            assert!(is_protected(variable), "{variable}");
        }
        assert!(is_protected("password"));
    }

    #[test]
    fn this_servers_own_settings_are_protected() {
        assert!(is_protected("EXEC_SERVER_WS_TOKEN_FILE"));
        assert!(is_protected("CODEX_API_KEY"));
    }

    #[test]
    fn case_does_not_get_around_it() {
        assert!(is_protected("openai_api_key"));
        assert!(is_protected("Aws_Secret_Access_Key"));
        assert!(is_protected("https_proxy"));
    }

    #[test]
    fn a_name_of_somebodys_own_is_what_the_feature_is_for() {
        for variable in [
            "MCP_SERVER_TOKEN",
            "MY_SERVICE_TOKEN",
            "DOCS_MCP_API_KEY",
            "DEPLOY_SECRET",
            "GITHUB_PAT_FOR_MCP",
            "MY_OPENAI_API_KEY",
            "AWSOME_TOKEN",
            "",
        ] {
            assert!(!is_protected(variable), "{variable}");
        }
    }

    #[test]
    fn entries_are_upper_case_and_needed() {
        for entry in PREFIXES.iter().chain(NAMES) {
            assert_eq!(*entry, entry.to_ascii_uppercase());
        }
        for name in NAMES {
            assert!(!PREFIXES.iter().any(|prefix| name.starts_with(prefix)), "{name}");
        }
    }
}
