//! `exec-server man [COMMAND]`: manual pages, generated from the description of the command line.

use std::io::{self, Write};

use clap_mangen::Man;

use crate::cli;

/// The footer of a page.
const SOURCE: &str = concat!("exec-server ", env!("CARGO_PKG_VERSION"));

pub(crate) fn run(command: Option<&str>, out: &mut impl Write) -> anyhow::Result<()> {
    let mut program = cli::program();
    program.build();
    let mut page = Vec::new();
    match command {
        None => whole_manual(&program, &mut page)?,
        Some(name) => {
            let command = program.find_subcommand(name).expect("clap accepts only known commands");
            // No space: it would end the name in the page title.
            let title = format!("exec-server-{name}");
            manual_of(command).title(title).source(SOURCE).render(&mut page)?;
        }
    }
    Ok(super::print(&page, out)?)
}

fn whole_manual(program: &clap::Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = manual_of(program).source(SOURCE);
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_subcommands_section(page)?;
    man.render_options_section(page)?;
    man.render_extra_section(page)?;
    for command in program.get_subcommands() {
        let man = manual_of(command);
        let mut section = Vec::new();
        man.render_synopsis_section(&mut section)?;
        man.render_description_section(&mut section)?;
        man.render_options_section(&mut section)?;
        if command.get_after_help().is_some() {
            man.render_extra_section(&mut section)?;
        }
        writeln!(page, ".SH \"EXEC-SERVER {}\"", command.get_name().to_uppercase())?;
        for line in section.split_inclusive(|byte| *byte == b'\n') {
            match line.strip_prefix(b".SH ") {
                Some(heading) => page.extend([b".SS ", heading].concat()),
                None => page.extend(line),
            }
        }
    }
    Ok(())
}

/// Uses the one-line synopsis of `--help`. The default synopsis lists all options, without values.
fn manual_of(command: &clap::Command) -> Man {
    let mut command = command.clone();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    Man::new(command.override_usage(usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(command: Option<&str>) -> String {
        let mut out = Vec::new();
        run(command, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_manual_has_every_command() {
        let manual = page(None);
        assert_eq!(manual.matches(".TH ").count(), 1);
        let line_after =
            |heading: &str| manual.split(heading).nth(1).unwrap().lines().nth(1).unwrap();
        assert!(!line_after(".SH NAME").contains('.'), "{}", line_after(".SH NAME"));
        assert!(!line_after(".SH SYNOPSIS").contains("listen"), "{}", line_after(".SH SYNOPSIS"));
        for command in cli::program().get_subcommands() {
            let heading = format!(".SH \"EXEC-SERVER {}\"", command.get_name().to_uppercase());
            assert!(manual.contains(&heading), "{heading}");
        }
    }

    #[test]
    fn a_command_has_a_page() {
        let run = page(Some("run"));
        assert!(run.contains(".TH exec-server-run 1"), "{run}");
        let first = run.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert!(first.contains(SOURCE), "{first}");
        assert!(run.contains("\\-\\-timeout"), "{run}");
    }
}
