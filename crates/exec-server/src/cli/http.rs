//! `exec-server http`: what it accepts. Flags mean what they mean in curl.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, ValueHint, value_parser};
use exec_server_protocol::HttpRequestHeader;

use super::client::{client_command, parse_duration, timeout};
use super::switch;

/// A request that the server is to make.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) headers: Vec<HttpRequestHeader>,
    pub(crate) body: Option<Body>,
    /// The status line and the headers are printed, too.
    pub(crate) include_head: bool,
    pub(crate) output: Option<PathBuf>,
    pub(crate) follow_redirects: bool,
    pub(crate) timeout: Option<Duration>,
    /// A status of 400 or more is a failure, and the body is not printed.
    pub(crate) fail: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Text(Vec<u8>),
    File(PathBuf),
    Stdin,
}

const HEADER: &str = "header";
const SECRET_HEADER: &str = "header_env";

pub(super) fn command() -> clap::Command {
    client_command("http", "Make an HTTP request from the server's machine and print the response")
        .override_usage("exec-server http [OPTIONS] [METHOD] URL")
        .after_help(
            "The request goes through the proxies of the server's machine. The default method is GET, or POST with --data.\n\n\
             The exit code is 0 for every status (but see --fail), 1 if the response is missing or incomplete, 2 if the request is invalid.",
        )
        .args([
            Arg::new(HEADER)
                .short('H')
                .long("header")
                .value_name("NAME: VALUE")
                .action(ArgAction::Append)
                .help("Send this header (may be repeated)"),
            Arg::new(SECRET_HEADER)
                .long("header-env")
                .value_name("NAME: VALUE{VARIABLE}")
                .action(ArgAction::Append)
                .help("Send a header that ends with a variable of the server: 'Authorization: Bearer {SERVICE_TICKET}'"),
            Arg::new("data")
                .short('d')
                .long("data")
                .value_name("DATA")
                .value_parser(value_parser!(OsString))
                .allow_hyphen_values(true)
                .help("Send this text; @FILE sends a file, and - standard input"),
            Arg::new("timeout")
                .long("timeout")
                .value_name("DURATION")
                .value_parser(parse_duration)
                .help("Give up after this time; 0 means never"),
        ])
        .args([
            switch("include", "Print the status line and the headers before the body").short('i'),
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::FilePath)
                .help("Write the body to this local file once it is complete; - is standard output"),
            switch("no_redirect", "Print a redirect instead of following it").long("no-redirect"),
            switch("fail", "Exit with 22 and print no body if the status is 400 or higher").short('f'),
        ])
        .arg(Arg::new("request").value_name("URL").required(true).num_args(1..).help("The URL; a method may precede it"))
}

/// An error does not show the value of a header, or a URL.
pub(super) fn parse(matches: &ArgMatches) -> Result<Request, String> {
    let texts = |id: &str| matches.get_many::<String>(id).into_iter().flatten();
    let mut headers =
        texts(HEADER).map(|text| parse_header(text)).collect::<Result<Vec<_>, _>>()?;
    for text in texts(SECRET_HEADER) {
        headers.push(parse_secret_header(text)?);
    }
    let body = matches.get_one::<OsString>("data").map(parse_data);
    let words: Vec<&String> = texts("request").collect();
    let usual = if body.is_some() { "POST" } else { "GET" };
    let (method, url) = match words.as_slice() {
        [url] => (usual.to_owned(), (*url).clone()),
        [method, url] if !method.contains([':', '/']) => {
            (method.to_ascii_uppercase(), (*url).clone())
        }
        _ => return Err("expected a method before the URL, and nothing after it".to_owned()),
    };
    Ok(Request {
        method,
        url,
        headers,
        body,
        include_head: matches.get_flag("include"),
        output: matches.get_one::<PathBuf>("output").filter(|path| *path != "-").cloned(),
        follow_redirects: !matches.get_flag("no_redirect"),
        timeout: timeout(matches),
        fail: matches.get_flag("fail"),
    })
}

fn parse_header(text: &str) -> Result<HttpRequestHeader, String> {
    let (name, value) = split_header(text).ok_or(
        "invalid value for '--header <NAME: VALUE>': expected a name, a colon and a value",
    )?;
    Ok(HttpRequestHeader { name, value, value_env_var: None })
}

fn parse_secret_header(text: &str) -> Result<HttpRequestHeader, String> {
    let parts = split_header(text).and_then(|(name, value)| {
        let (value, variable) = value.strip_suffix('}')?.rsplit_once('{')?;
        let header = (name, value.to_owned(), variable.to_owned());
        (!variable.is_empty()).then_some(header)
    });
    let (name, value, variable) = parts.ok_or(
        "invalid value for '--header-env <NAME: VALUE{VARIABLE}>': expected a name, a colon, and a value that ends \
         with a variable of the server in braces",
    )?;
    Ok(HttpRequestHeader { name, value, value_env_var: Some(variable) })
}

fn split_header(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once(':')?;
    let name = name.trim();
    (!name.is_empty()).then(|| (name.to_owned(), value.trim().to_owned()))
}

fn parse_data(text: &OsString) -> Body {
    use std::os::unix::ffi::OsStrExt as _;
    match text.as_bytes() {
        b"-" | b"@-" => Body::Stdin,
        [b'@', path @ ..] => Body::File(PathBuf::from(std::ffi::OsStr::from_bytes(path))),
        bytes => Body::Text(bytes.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::Action;
    use super::super::{Command, parse};
    use super::*;

    fn parsed(words: &[&str]) -> Result<Request, String> {
        let words = ["exec-server", "http"].iter().chain(words).map(OsString::from);
        match parse(words).map_err(|error| error.to_string())? {
            Command::Client(command) => match command.action {
                Action::Http(request) => Ok(request),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_method_follows_from_the_data_unless_it_is_said() {
        let method = |words: &[&str]| parsed(words).unwrap().method;
        assert_eq!(method(&["http://h/"]), "GET");
        assert_eq!(method(&["-d", "x", "http://h/"]), "POST");
        assert_eq!(method(&["put", "http://h/", "-d", "x"]), "PUT");
        assert_eq!(parsed(&["put", "http://h/"]).unwrap().url, "http://h/");
        for words in [&["http://h/", "extra"][..], &["h/x", "http://h/"], &["a", "b", "http://h/"]]
        {
            assert!(parsed(words).unwrap_err().contains("expected a method"), "{words:?}");
        }
    }

    #[test]
    fn options_may_stand_anywhere() {
        for words in [
            &["-i", "-d", "x", "DELETE", "http://h/"][..],
            &["DELETE", "-i", "-d", "x", "http://h/"],
            &["-d", "x", "DELETE", "-i", "http://h/"],
            &["DELETE", "http://h/", "-i", "-d", "x"],
            &["-i", "DELETE", "-d", "x", "--", "http://h/"],
        ] {
            let request = parsed(words).unwrap();
            assert_eq!((request.method.as_str(), request.url.as_str()), ("DELETE", "http://h/"));
            assert!(request.include_head && request.body.is_some(), "{words:?}");
        }
    }

    #[test]
    fn a_dash_is_our_output() {
        assert_eq!(parsed(&["-o", "-", "u"]).unwrap().output, None);
        assert_eq!(parsed(&["-o", "x", "u"]).unwrap().output, Some("x".into()));
    }

    #[test]
    fn data_is_text_a_file_or_our_input() {
        let data = |text: &str| parsed(&["-d", text, "http://h/"]).unwrap().body.unwrap();
        assert_eq!(data("a=b"), Body::Text(b"a=b".to_vec()));
        assert_eq!(data("@dir/file"), Body::File("dir/file".into()));
        assert_eq!((data("-"), data("@-")), (Body::Stdin, Body::Stdin));
        assert_eq!(data("-5"), Body::Text(b"-5".to_vec()));
    }

    #[test]
    fn a_header_may_end_with_a_variable_of_the_server() {
        let words = ["-H", "Accept: a:b", "--header-env", "Authorization: Bearer {TOKEN}", "u"];
        let headers = parsed(&words).unwrap().headers;
        let header = |name: &str, value: &str, variable: Option<&str>| HttpRequestHeader {
            name: name.to_owned(),
            value: value.to_owned(),
            value_env_var: variable.map(str::to_owned),
        };
        let expected =
            [header("Accept", "a:b", None), header("Authorization", "Bearer", Some("TOKEN"))];
        assert!(headers[0] == expected[0]);
        assert_eq!(headers[1].value, "Bearer ", "the space belongs to the value");
        assert_eq!(headers[1].value_env_var, expected[1].value_env_var);
    }

    #[test]
    fn mistakes_do_not_show_values() {
        for words in [
            &["-H", "SECRET", "u"][..],
            &["-H", ": SECRET", "u"],
            &["--header-env", "A: SECRET", "u"],
            &["--header-env", "A: SECRET{}", "u"],
        ] {
            let error = parsed(words).unwrap_err();
            assert!(error.contains("expected a name") && !error.contains("SECRET"), "{error}");
        }
    }
}
