//! `exec-server login` and `logout`: store and delete this user's token for a registry. They do not
//! connect to the registry.

use std::io::{self, IsTerminal as _, Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use exec_server_relay::registry::RegistryClient;
use exec_server_transport::read_token_file;

use super::print;
use crate::cli::remote::{Login, Logout};
use crate::registry_credentials::{login_file, save_login};

/// Bounds the input; a token is one short line.
const MAX_INPUT: u64 = 64 << 10;

pub(crate) fn login(options: &Login, out: &mut impl Write) -> anyhow::Result<()> {
    let file = file_for(&options.remote)?;
    let token = match &options.token_file {
        Some(path) => read_token_file(path)?,
        None => read_standard_input()?,
    };
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(
        is_token,
        "the token is empty, or has a space, a line break or another character that is not allowed \
         in a header"
    );
    let context = || format!("cannot store the token in {}", file.display());
    save_login(&file, &token).with_context(context)?;
    Ok(print(format!("logged in to {}\n", options.remote).as_bytes(), out)?)
}

pub(crate) fn logout(options: &Logout, out: &mut impl Write) -> anyhow::Result<()> {
    let file = file_for(&options.remote)?;
    let text = match std::fs::remove_file(&file) {
        Ok(()) => format!("logged out of {}\n", options.remote),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("not logged in to {}\n", options.remote)
        }
        Err(error) => return Err(remove_failed(&file, error)),
    };
    Ok(print(text.as_bytes(), out)?)
}

fn remove_failed(file: &Path, error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("cannot remove {}", file.display()))
}

fn file_for(registry: &str) -> anyhow::Result<PathBuf> {
    let registry = RegistryClient::normalize_url(registry)?;
    login_file(&registry)
        .context("no directory is available for the token; set HOME or XDG_STATE_HOME")
}

fn read_standard_input() -> anyhow::Result<String> {
    if io::stdin().is_terminal() {
        crate::program::tell("Paste the token, then press Enter and Ctrl-D:");
    }
    let mut text = String::new();
    let read = io::stdin().take(MAX_INPUT).read_to_string(&mut text);
    read.context("cannot read standard input")?;
    Ok(text.trim().to_owned())
}
