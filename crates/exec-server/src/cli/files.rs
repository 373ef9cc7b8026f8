//! The commands for files: what they are called, what they accept, and what that means. Short flags mean what they mean
//! in cp, ls, rm, mkdir and grep.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};
use exec_server_protocol::FsSearchParams;

use super::client::client_command;
use super::switch;
use crate::target::remote_path::{AnyPath, PathError, ServerPath};

#[derive(Debug)]
pub(crate) enum FileAction {
    Cp(Cp),
    Ls(Ls),
    Cat { paths: Vec<ServerPath> },
    Mkdir { paths: Vec<ServerPath>, parents: bool },
    Rm { paths: Vec<ServerPath>, recursive: bool, force: bool },
    Watch { path: ServerPath, recursive: bool, json: bool },
    Grep(Grep),
}

impl FileAction {
    /// Where its paths are, each once; `None` is the server that the command uses.
    pub(crate) fn environments(&self) -> BTreeSet<Option<&str>> {
        let paths: Vec<&ServerPath> = match self {
            Self::Cp(cp) => {
                cp.sources.iter().chain([&cp.destination]).filter_map(AnyPath::there).collect()
            }
            Self::Watch { path, .. } => vec![path],
            Self::Ls(Ls { paths, .. })
            | Self::Grep(Grep { paths, .. })
            | Self::Cat { paths }
            | Self::Mkdir { paths, .. }
            | Self::Rm { paths, .. } => paths.iter().collect(),
        };
        paths.into_iter().map(|path| path.environment.as_deref()).collect()
    }
}

#[derive(Debug)]
pub(crate) struct Cp {
    pub(crate) sources: Vec<AnyPath>,
    pub(crate) destination: AnyPath,
    pub(crate) recursive: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    pub(crate) no_resume: bool,
    pub(crate) json: bool,
}

#[derive(Debug)]
pub(crate) struct Ls {
    pub(crate) paths: Vec<ServerPath>,
    pub(crate) long: bool,
    pub(crate) all: bool,
    pub(crate) json: bool,
}

#[derive(Debug)]
pub(crate) struct Grep {
    pub(crate) pattern: String,
    pub(crate) paths: Vec<ServerPath>,
    pub(crate) ignore_case: bool,
    pub(crate) word: bool,
    pub(crate) literal: bool,
    pub(crate) before: u32,
    pub(crate) after: u32,
    pub(crate) globs: Vec<String>,
    pub(crate) hidden: bool,
    pub(crate) no_ignore: bool,
    pub(crate) max_matches: Option<u64>,
    pub(crate) output: GrepOutput,
}

/// What is printed of the lines that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrepOutput {
    Lines,
    Files,
    Counts,
    Json,
}

const PATHS: &str =
    "Paths are on the server's machine; ENVIRONMENT:PATH is on the machine of that environment.";

pub(super) fn commands() -> Vec<clap::Command> {
    let json = || switch("json", "Print JSON");
    vec![
        cp(),
        client_command("ls", "List directories on the server's machine")
            .after_help(PATHS)
            .arg(switch("long", "Show mode, size, time and the target of symlinks").short('l'))
            .arg(switch("all", "Show hidden names too").short('a'))
            .arg(json())
            .arg(path_argument("PATH").required(false).num_args(1..).help("What to list [default: the working directory]")),
        client_command("cat", "Print files on the server's machine")
            .after_help(PATHS)
            .arg(path_argument("PATH").num_args(1..).help("What to print")),
        client_command("mkdir", "Create directories on the server's machine")
            .after_help(PATHS)
            .arg(switch("parents", "Also create missing parents, and accept directories that exist").short('p'))
            .arg(path_argument("PATH").num_args(1..).help("What to create")),
        client_command("rm", "Remove files from the server's machine")
            .after_help(format!("A symlink is removed, never its target.\n\n{PATHS}"))
            .arg(switch("recursive", "Also remove directories and everything in them").short('r').visible_short_alias('R'))
            .arg(switch("force", "Ignore files that do not exist").short('f'))
            .arg(path_argument("PATH").num_args(1..).help("What to remove")),
        client_command("watch", "Print changes to a file or directory as they happen, until Ctrl-C")
            .after_help(format!(
                "Each line is created, modified or removed and a path, or renamed OLD -> NEW. A line rescan means that \
                 changes were missed: list the files again.\n\n{PATHS}"
            ))
            .arg(switch("recursive", "Also watch subdirectories").short('r'))
            .arg(switch("json", "Print one JSON object per change"))
            .arg(path_argument("PATH").help("What to watch")),
        grep(),
    ]
}

fn cp() -> clap::Command {
    client_command("cp", "Copy files to or from the server's machine")
        .override_usage("exec-server cp [OPTIONS] SOURCE... DESTINATION")
        .after_help(
            "ENVIRONMENT:PATH is on the machine of an environment. :PATH is on the machine of the server that --connect, \
             --on or the configuration names. Anything else is on this machine; write ./a:b for a name with a colon.\n\n\
             Permissions and symlinks are preserved, times are not. A symlink named on the command line is followed; one \
             inside a directory is copied as a symlink. To resume an interrupted copy, run the same command again.",
        )
        .args([
            switch("recursive", "Copy directories and everything in them").short('r').visible_short_alias('R'),
            switch("no_resume", "Start over instead of resuming an interrupted copy").long("no-resume"),
            switch("quiet", "Show no progress").short('q'),
            switch("verbose", "Print each file that is copied, and where it is resumed").short('v'),
            switch("json", "Print a summary as JSON"),
        ])
        .arg(
            path_argument("PATH")
                .num_args(1..)
                .value_hint(ValueHint::AnyPath)
                .help("The sources, and last the destination; a directory is copied into"),
        )
}

fn grep() -> clap::Command {
    let lines = |name: &'static str, short: char, help: &'static str| {
        let at_most = value_parser!(u32).range(0..=i64::from(FsSearchParams::MAX_CONTEXT));
        Arg::new(name).long(name).short(short).value_name("N").value_parser(at_most).help(help)
    };
    let matches = value_parser!(u64).range(1..=FsSearchParams::MAX_MATCHES);
    client_command("grep", "Search files on the server's machine for a pattern")
        .after_help(format!(
            "Directories are searched recursively, as by grep -rn. Files that are hidden, binary or excluded by .gitignore are \
             skipped.\n\nThe exit code is 0 if a line matches, 1 if none does, 2 after an error.\n\n{PATHS}"
        ))
        .args([
            switch("ignore_case", "Ignore case").short('i').long("ignore-case"),
            switch("word", "Match whole words only").short('w').long("word-regexp"),
            switch("literal", "Take the pattern as plain text, not as a regular expression").short('F').long("fixed-strings"),
            switch("files", "Print only the names of files with a match").short('l').long("files-with-matches"),
            switch("count", "Print only the number of matching lines in each file").short('c').conflicts_with("files"),
            lines("after-context", 'A', "Also print N lines after each match"),
            lines("before-context", 'B', "Also print N lines before each match"),
            lines("context", 'C', "Also print N lines on both sides of each match"),
        ])
        .args([
            Arg::new("glob")
                .long("glob")
                .short('g')
                .value_name("GLOB")
                .action(ArgAction::Append)
                .help("Search only files that match; !GLOB skips those that do (may be repeated)"),
            switch("hidden", "Also search hidden files"),
            switch("no_ignore", "Also search files that .gitignore excludes").long("no-ignore"),
            Arg::new("max_matches")
                .long("max-matches")
                .short('m')
                .value_name("N")
                .value_parser(ValueParser::from(matches))
                .help("Stop after this many lines [default: 10000]"),
            switch("json", "Print one JSON object per matching line").conflicts_with_all(["files", "count"]),
            // Said out of habit.
            switch("line-number", "Print line numbers (always on)").short('n'),
            switch("recursive", "Search directories (always on)").short('r'),
        ])
        .arg(Arg::new("pattern").value_name("PATTERN").required(true).help("A regular expression"))
        .arg(path_argument("PATH").required(false).num_args(1..).help("Where to search [default: the working directory]"))
}

fn path_argument(name: &'static str) -> Arg {
    Arg::new("path").value_name(name).required(true).value_parser(value_parser!(OsString))
}

/// `None` for a command that is not one of these.
pub(super) fn parse(name: &str, matches: &ArgMatches) -> Result<Option<FileAction>, String> {
    let flag = |id: &str| matches.get_flag(id);
    Ok(Some(match name {
        "cp" => FileAction::Cp(parse_cp(matches)?),
        "ls" => FileAction::Ls(Ls {
            paths: match paths(matches)? {
                none if none.is_empty() => vec![working_directory()],
                paths => paths,
            },
            long: flag("long"),
            all: flag("all"),
            json: flag("json"),
        }),
        "cat" => FileAction::Cat { paths: paths(matches)? },
        "mkdir" => FileAction::Mkdir { paths: paths(matches)?, parents: flag("parents") },
        "rm" => FileAction::Rm {
            paths: words(matches)
                .map(|path| checked(ServerPath::parse_named(path)))
                .collect::<Result<_, _>>()?,
            recursive: flag("recursive"),
            force: flag("force"),
        },
        "watch" => FileAction::Watch {
            path: the_path(matches)?,
            recursive: flag("recursive"),
            json: flag("json"),
        },
        "grep" => FileAction::Grep(parse_grep(matches)?),
        _ => return Ok(None),
    }))
}

fn parse_cp(matches: &ArgMatches) -> Result<Cp, String> {
    let mut paths =
        words(matches).map(|path| checked(AnyPath::parse(path))).collect::<Result<Vec<_>, _>>()?;
    let destination = paths.pop().expect("clap requires one");
    if paths.is_empty() {
        return Err("a path is missing: SOURCE or DESTINATION".to_owned());
    }
    Ok(Cp {
        sources: paths,
        destination,
        recursive: matches.get_flag("recursive"),
        quiet: matches.get_flag("quiet"),
        verbose: matches.get_flag("verbose"),
        no_resume: matches.get_flag("no_resume"),
        json: matches.get_flag("json"),
    })
}

fn parse_grep(matches: &ArgMatches) -> Result<Grep, String> {
    let flag = |id: &str| matches.get_flag(id);
    let lines = |id: &str| {
        let of_both = matches.get_one::<u32>("context");
        matches.get_one::<u32>(id).or(of_both).copied().unwrap_or(0)
    };
    let paths = match paths(matches)? {
        none if none.is_empty() => {
            vec![ServerPath { written: OsString::new(), ..working_directory() }]
        }
        paths => paths,
    };
    Ok(Grep {
        pattern: matches.get_one::<String>("pattern").expect("clap requires it").clone(),
        paths,
        ignore_case: flag("ignore_case"),
        word: flag("word"),
        literal: flag("literal"),
        before: lines("before-context"),
        after: lines("after-context"),
        globs: matches.get_many("glob").into_iter().flatten().cloned().collect(),
        hidden: flag("hidden"),
        no_ignore: flag("no_ignore"),
        max_matches: matches.get_one("max_matches").copied(),
        output: match (flag("json"), flag("files"), flag("count")) {
            (true, ..) => GrepOutput::Json,
            (_, true, _) => GrepOutput::Files,
            (_, _, true) => GrepOutput::Counts,
            _ => GrepOutput::Lines,
        },
    })
}

fn paths(matches: &ArgMatches) -> Result<Vec<ServerPath>, String> {
    words(matches).map(|path| checked(ServerPath::parse(path))).collect()
}

fn the_path(matches: &ArgMatches) -> Result<ServerPath, String> {
    Ok(paths(matches)?.pop().expect("clap requires one"))
}

fn working_directory() -> ServerPath {
    ServerPath { environment: None, path: ".".into(), written: ".".into() }
}

fn words(matches: &ArgMatches) -> impl Iterator<Item = &OsString> {
    matches.get_many::<OsString>("path").into_iter().flatten()
}

fn checked<T>(path: Result<T, PathError>) -> Result<T, String> {
    path.map_err(|error| format!("invalid value for '<PATH>': {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::client::Action;
    use super::super::{Command, parse};
    use super::*;

    fn parsed(line: &str) -> Result<FileAction, String> {
        let words = line.split_whitespace().map(OsString::from);
        let command = parse(std::iter::once("exec-server".into()).chain(words));
        match command.map_err(|error| error.to_string())? {
            Command::Client(command) => match command.action {
                Action::Files(action) => Ok(action),
                other => panic!("{line}: {other:?}"),
            },
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_last_path_of_cp_is_where_to() {
        let Ok(FileAction::Cp(cp)) = parsed("cp -r a ./b:c box:/d :e") else { panic!() };
        assert!(cp.recursive && !cp.no_resume);
        let here = |path: &str| AnyPath::parse(path.as_ref()).unwrap();
        assert_eq!(cp.sources, ["a", "./b:c", "box:/d"].map(here));
        assert!(matches!(cp.destination, AnyPath::There(ServerPath { environment: None, .. })));
        assert!(parsed("cp a").unwrap_err().contains("cp [OPTIONS] SOURCE... DESTINATION"));
        let Ok(FileAction::Cp(cp)) = parsed("cp a --connect ws://b:1 c -r :d") else { panic!() };
        assert!(cp.recursive && cp.sources.len() == 2);
    }

    #[test]
    fn what_is_removed_has_a_name() {
        assert!(parsed("rm -r a :b box:/c").is_ok());
        for path in [":", "a box:", "/", "."] {
            assert!(parsed(&format!("rm -r {path}")).is_err(), "{path}");
        }
    }

    #[test]
    fn every_server_is_known_beforehand() {
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
        let Ok(FileAction::Cat { paths }) = parsed("cat /a box:/b :c") else { panic!() };
        let environments: Vec<_> = paths.iter().map(|path| path.environment.as_deref()).collect();
        assert_eq!(environments, [None, Some("box"), None]);
        let Ok(FileAction::Ls(ls)) = parsed("ls -la") else { panic!() };
        assert!(ls.long && ls.all && ls.paths[0].path.as_os_str() == ".");
    }

    #[test]
    fn grep_takes_what_grep_takes() {
        let Ok(FileAction::Grep(grep)) = parsed("grep -rniwF -C2 -A 5 -g *.rs -g !x a.b src")
        else {
            panic!()
        };
        assert!(grep.ignore_case && grep.word && grep.literal && !grep.hidden);
        assert_eq!((grep.before, grep.after), (2, 5));
        assert_eq!(grep.globs, ["*.rs", "!x"]);
        assert_eq!((grep.pattern.as_str(), grep.output), ("a.b", GrepOutput::Lines));
        assert_eq!(grep.paths.len(), 1);
        let Ok(FileAction::Grep(grep)) = parsed("grep -c x") else { panic!() };
        assert_eq!((grep.output, grep.paths.len()), (GrepOutput::Counts, 1));
        for bad in ["grep", "grep -cl x", "grep -A 101 x", "grep -m 0 x"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
