//! The environment variables that tell programs about the proxies of their gate. A convenience: the
//! gate catches or refuses the traffic of programs that ignore them.

use std::ffi::OsString;

/// Addresses that programs reach without a proxy, inside their own network.
const LOCAL: &str = "localhost,127.0.0.1,::1";

const HTTP_PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "WS_PROXY", "WSS_PROXY", "FTP_PROXY", "DOCKER_HTTP_PROXY"];
/// Settings that tools read from variables, in each tool's own spelling.
const TOOL_VARIABLES: [&str; 9] = [
    "npm_config_proxy",
    "npm_config_https_proxy",
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",
    "BUNDLE_HTTP_PROXY",
    "BUNDLE_HTTPS_PROXY",
    "PIP_PROXY",
    "CARGO_HTTP_PROXY",
    "DOCKER_HTTPS_PROXY",
];
const NO_PROXY_VARIABLES: [&str; 2] = ["NO_PROXY", "npm_config_noproxy"];

pub(super) fn proxy_variables(
    http_port: Option<u16>,
    socks5_port: Option<u16>,
) -> Vec<(OsString, OsString)> {
    let http = http_port.map(|port| format!("http://127.0.0.1:{port}"));
    let all =
        socks5_port.map(|port| format!("socks5h://127.0.0.1:{port}")).or_else(|| http.clone());
    let Some(all) = all else { return Vec::new() };
    let mut variables = Vec::new();
    let mut add = |name: &str, value: &str| {
        variables.push((OsString::from(name), OsString::from(value)));
    };
    if let Some(http) = &http {
        for name in HTTP_PROXY_VARIABLES {
            add(name, http);
            add(&name.to_lowercase(), http);
        }
        for name in TOOL_VARIABLES {
            add(name, http);
        }
        // Node.js reads the variables only if this is set.
        add("NODE_USE_ENV_PROXY", "1");
    }
    add("ALL_PROXY", &all);
    add("all_proxy", &all);
    for name in NO_PROXY_VARIABLES {
        add(name, LOCAL);
    }
    add("no_proxy", LOCAL);
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(variables: &'a [(OsString, OsString)], name: &str) -> Option<&'a str> {
        let found = variables.iter().find(|(known, _)| known == name);
        found.and_then(|(_, value)| value.to_str())
    }

    #[test]
    fn programs_find_both_proxies() {
        let variables = proxy_variables(Some(1), Some(2));
        for name in ["HTTP_PROXY", "https_proxy", "WSS_PROXY", "npm_config_proxy"] {
            assert_eq!(value(&variables, name), Some("http://127.0.0.1:1"), "{name}");
        }
        assert_eq!(value(&variables, "ALL_PROXY"), Some("socks5h://127.0.0.1:2"));
        assert_eq!(value(&variables, "no_proxy"), Some(LOCAL));
        let mut names: Vec<_> = variables.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), variables.len());
    }

    #[test]
    fn all_proxy_names_http_without_socks_and_nothing_is_set_without_proxies() {
        assert_eq!(value(&proxy_variables(Some(1), None), "all_proxy"), Some("http://127.0.0.1:1"));
        assert_eq!(proxy_variables(None, None), []);
    }
}
