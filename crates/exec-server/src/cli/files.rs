//! The commands for files. Short flags have the same meaning as in cp, ls, rm, mkdir and grep.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::builder::RangedI64ValueParser;
use clap::{Args, Subcommand, ValueHint, value_parser};
use exec_server_protocol::FsSearchParams;

use super::client::ServerChoice;
use super::values::path;
use crate::target::remote_path::{AnyPath, ServerPath};

const PATHS: &str =
    "Paths are on the server's machine; ENVIRONMENT:PATH is on the machine of that environment.";

#[derive(Debug, Subcommand)]
pub(crate) enum FileCommand {
    Cp(Cp),
    Ls(Ls),
    Cat(Cat),
    Mkdir(Mkdir),
    Rm(Rm),
    Watch(Watch),
    Grep(Grep),
}

impl FileCommand {
    pub(super) fn server_mut(&mut self) -> &mut ServerChoice {
        match self {
            Self::Cp(Cp { server, .. })
            | Self::Ls(Ls { server, .. })
            | Self::Cat(Cat { server, .. })
            | Self::Mkdir(Mkdir { server, .. })
            | Self::Rm(Rm { server, .. })
            | Self::Watch(Watch { server, .. })
            | Self::Grep(Grep { server, .. }) => server,
        }
    }

    /// Returns the environments of the command's paths, without duplicates. `None` is the server of
    /// the command.
    pub(crate) fn environments(&self) -> BTreeSet<Option<&str>> {
        let paths: Vec<&ServerPath> = match self {
            Self::Cp(cp) => cp.paths.iter().filter_map(AnyPath::there).collect(),
            Self::Watch(watch) => vec![&watch.path],
            Self::Grep(grep) if grep.paths.is_empty() => return BTreeSet::from([None]),
            Self::Ls(Ls { paths, .. })
            | Self::Grep(Grep { paths, .. })
            | Self::Cat(Cat { paths, .. })
            | Self::Mkdir(Mkdir { paths, .. })
            | Self::Rm(Rm { paths, .. }) => paths.iter().collect(),
        };
        paths.into_iter().map(|path| path.environment.as_deref()).collect()
    }
}

/// Copy files to or from the server's machine
#[derive(Debug, Args)]
#[command(
    override_usage = "exec-server cp [OPTIONS] SOURCE... DESTINATION",
    after_help = "\
ENVIRONMENT:PATH is on the machine of an environment. :PATH is on the machine of the server that \
--connect, --on or the configuration names. Anything else is on this machine; write ./a:b for a \
name with a colon.

Permissions and symlinks are preserved, times are not. A symlink named on the command line is \
followed; one inside a directory is copied as a symlink. To resume an interrupted copy, run the \
same command again."
)]
pub(crate) struct Cp {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Copy directories and everything in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Start over instead of resuming an interrupted copy
    #[arg(long)]
    pub(crate) no_resume: bool,
    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print each copied file, and the offset at which a copy resumes
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print a summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The sources, followed by the destination; if it is a directory, sources are copied into it
    // Invariant: `ClientCommand::check` has verified that there are at least two.
    #[arg(required = true, value_name = "PATH", value_parser = path(AnyPath::parse))]
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(super) paths: Vec<AnyPath>,
}

impl Cp {
    pub(crate) fn destination(&self) -> &AnyPath {
        self.paths.last().expect("clap requires a path")
    }

    pub(crate) fn sources(&self) -> &[AnyPath] {
        &self.paths[..self.paths.len() - 1]
    }
}

/// List directories on the server's machine
#[derive(Debug, Args)]
#[command(after_help = PATHS)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Show mode, size, time and the target of symlinks
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Show hidden names too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The paths to list [default: the working directory]
    #[arg(value_name = "PATH", value_parser = path(ServerPath::parse))]
    #[arg(default_value = ".", hide_default_value = true)]
    pub(crate) paths: Vec<ServerPath>,
}

/// Print files on the server's machine
#[derive(Debug, Args)]
#[command(after_help = PATHS)]
pub(crate) struct Cat {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// The files to print
    #[arg(required = true, value_name = "PATH", value_parser = path(ServerPath::parse))]
    pub(crate) paths: Vec<ServerPath>,
}

/// Create directories on the server's machine
#[derive(Debug, Args)]
#[command(after_help = PATHS)]
pub(crate) struct Mkdir {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Also create missing parents, and accept directories that exist
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// The directories to create
    #[arg(required = true, value_name = "PATH", value_parser = path(ServerPath::parse))]
    pub(crate) paths: Vec<ServerPath>,
}

/// Remove files from the server's machine
#[derive(Debug, Args)]
#[command(after_help = format!("A symlink is removed, never its target.\n\n{PATHS}"))]
pub(crate) struct Rm {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Also remove directories and everything in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    pub(crate) force: bool,
    /// The paths to remove
    #[arg(required = true, value_name = "PATH", value_parser = path(ServerPath::parse_named))]
    pub(crate) paths: Vec<ServerPath>,
}

/// Print changes to a file or directory as they happen, until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = format!(
    "Each line is a change (created, modified or removed) and a path, or renamed OLD -> NEW. A rescan line \
     means that changes were missed: list the files again.\n\n{PATHS}"
))]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Also watch subdirectories
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Print one JSON object per change
    #[arg(long)]
    pub(crate) json: bool,
    /// The path to watch
    #[arg(value_parser = path(ServerPath::parse))]
    pub(crate) path: ServerPath,
}

/// Search files on the server's machine for a pattern
#[derive(Debug, Args)]
#[command(after_help = format!(
    "Directories are searched recursively, as by grep -rn. Files that are hidden, binary or \
     excluded by .gitignore are skipped.\n\n\
     The exit code is 0 if a line matches, 1 if none does, 2 after an error.\n\n{PATHS}"
))]
pub(crate) struct Grep {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Ignore case
    #[arg(short, long)]
    pub(crate) ignore_case: bool,
    /// Match whole words only
    #[arg(short, long = "word-regexp")]
    pub(crate) word: bool,
    /// Treat the pattern as plain text, not as a regular expression
    #[arg(short = 'F', long = "fixed-strings")]
    pub(crate) literal: bool,
    /// Print only the names of files with a match
    #[arg(short = 'l', long = "files-with-matches")]
    files: bool,
    /// Print only the number of matching lines in each file
    #[arg(short, long, conflicts_with = "files")]
    count: bool,
    /// Also print N lines after each match
    #[arg(short = 'A', long, value_name = "N", value_parser = context_lines())]
    after_context: Option<u32>,
    /// Also print N lines before each match
    #[arg(short = 'B', long, value_name = "N", value_parser = context_lines())]
    before_context: Option<u32>,
    /// Also print N lines on both sides of each match
    #[arg(short = 'C', long, value_name = "N", value_parser = context_lines())]
    context: Option<u32>,
    /// Search only files that match; !GLOB skips matching files (may be repeated)
    #[arg(short, long = "glob", value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Also search hidden files
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Also search files that .gitignore excludes
    #[arg(long)]
    pub(crate) no_ignore: bool,
    /// Stop after this many matching lines in each PATH [default: 10000]
    #[arg(short, long, value_name = "N")]
    #[arg(value_parser = value_parser!(u64).range(1..=FsSearchParams::MAX_MATCHES))]
    pub(crate) max_matches: Option<u64>,
    /// Print one JSON object per matching line
    #[arg(long, conflicts_with_all = ["files", "count"])]
    json: bool,
    /// Print line numbers (always on)
    #[arg(short = 'n', long = "line-number")]
    _line_number: bool,
    /// Search directories (always on)
    #[arg(short = 'r', long = "recursive")]
    _recursive: bool,
    /// A regular expression
    pub(crate) pattern: String,
    /// Where to search [default: the working directory]
    #[arg(value_name = "PATH", value_parser = path(ServerPath::parse))]
    paths: Vec<ServerPath>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrepOutput {
    Lines,
    Files,
    Counts,
    Json,
}

impl Grep {
    /// Returns the paths to search. If none were given, this is the working directory, whose name
    /// does not appear in the results.
    pub(crate) fn roots(&self) -> Vec<ServerPath> {
        if self.paths.is_empty() {
            let written = OsString::new();
            return vec![ServerPath { environment: None, path: ".".into(), written }];
        }
        self.paths.clone()
    }

    pub(crate) fn lines_before(&self) -> u32 {
        self.before_context.or(self.context).unwrap_or(0)
    }

    pub(crate) fn lines_after(&self) -> u32 {
        self.after_context.or(self.context).unwrap_or(0)
    }

    pub(crate) fn output(&self) -> GrepOutput {
        match (self.json, self.files, self.count) {
            (true, ..) => GrepOutput::Json,
            (_, true, _) => GrepOutput::Files,
            (_, _, true) => GrepOutput::Counts,
            _ => GrepOutput::Lines,
        }
    }
}

fn context_lines() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(0..=i64::from(FsSearchParams::MAX_CONTEXT))
}

#[cfg(test)]
mod tests {
    use super::super::client::ClientCommand;
    use super::super::parse;
    use super::*;

    fn parsed(line: &str) -> Result<FileCommand, String> {
        let words = line.split_whitespace().map(OsString::from);
        let command = parse(std::iter::once("exec-server".into()).chain(words));
        match command.map_err(|error| error.to_string())?.command.unwrap().client() {
            ClientCommand::Files(command) => Ok(command),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_last_path_of_cp_is_the_destination() {
        let Ok(FileCommand::Cp(cp)) = parsed("cp -r a ./b:c box:/d :e") else { panic!() };
        assert!(cp.recursive && !cp.no_resume);
        let here = |path: &str| AnyPath::parse(path.as_ref()).unwrap();
        assert_eq!(cp.sources(), ["a", "./b:c", "box:/d"].map(here));
        assert!(matches!(cp.destination(), AnyPath::There(ServerPath { environment: None, .. })));
        assert!(parsed("cp a").unwrap_err().contains("cp [OPTIONS] SOURCE... DESTINATION"));
        let Ok(FileCommand::Cp(cp)) = parsed("cp a --connect ws://b:1 c -r :d") else { panic!() };
        assert!(cp.recursive && cp.sources().len() == 2);
    }

    #[test]
    fn only_named_paths_can_be_removed() {
        assert!(parsed("rm -r a :b box:/c").is_ok());
        for path in [":", "a box:", "/", "."] {
            assert!(parsed(&format!("rm -r {path}")).is_err(), "{path}");
        }
    }

    #[test]
    fn the_servers_of_a_command_are_known_before_it_runs() {
        let environments = |line| {
            let action = parsed(line).unwrap();
            let environments = action.environments().into_iter();
            environments.map(|id| id.map(str::to_owned)).collect::<Vec<_>>()
        };
        assert_eq!(environments("cp a b"), []);
        assert_eq!(environments("cp a box:b :c"), [None, Some("box".to_owned())]);
        assert_eq!(environments("cat box:a box:b"), [Some("box".to_owned())]);
        assert_eq!(environments("ls"), [None]);
    }

    #[test]
    fn paths_of_the_server_need_no_colon() {
        let Ok(FileCommand::Cat(Cat { paths, .. })) = parsed("cat /a box:/b :c") else { panic!() };
        let environments: Vec<_> = paths.iter().map(|path| path.environment.as_deref()).collect();
        assert_eq!(environments, [None, Some("box"), None]);
        let Ok(FileCommand::Ls(ls)) = parsed("ls -la") else { panic!() };
        assert!(ls.long && ls.all && ls.paths[0].path.as_os_str() == ".");
    }

    #[test]
    fn grep_accepts_the_flags_of_grep() {
        let Ok(FileCommand::Grep(grep)) = parsed("grep -rniwF -C2 -A 5 -g *.rs -g !x a.b src")
        else {
            panic!()
        };
        assert!(grep.ignore_case && grep.word && grep.literal && !grep.hidden);
        assert_eq!((grep.lines_before(), grep.lines_after()), (2, 5));
        assert_eq!(grep.globs, ["*.rs", "!x"]);
        assert_eq!((grep.pattern.as_str(), grep.output()), ("a.b", GrepOutput::Lines));
        assert_eq!(grep.roots().len(), 1);
        let Ok(FileCommand::Grep(grep)) = parsed("grep -c x") else { panic!() };
        assert_eq!((grep.output(), grep.roots().len()), (GrepOutput::Counts, 1));
        for bad in ["grep", "grep -cl x", "grep -A 101 x", "grep -m 0 x"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
