//! `exec-server completions SHELL`: what makes a shell complete our command line.

use std::io::{self, Write};

use clap_complete::Shell;

use crate::cli;

pub(crate) fn run(shell: Shell, out: &mut impl Write) -> io::Result<()> {
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::program(), "exec-server", &mut script);
    super::print(&script, out)
}
