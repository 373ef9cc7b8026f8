//! `exec-server http`. Flags have the same meaning as in curl.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, ValueHint};
use exec_server_protocol::HttpRequestHeader;

use super::client::ServerChoice;
use super::values::{parse_duration, secret};

/// Make an HTTP request from the server's machine and print the response
#[derive(Debug, Args)]
#[command(
    override_usage = "exec-server http [OPTIONS] [METHOD] URL",
    after_help = "\
The request uses the proxies that are configured on the server's machine. The default method is \
GET, or POST with --data.

The exit code is 0 for every status (but see --fail), 1 if the response is missing or incomplete, \
2 if the request is invalid."
)]
pub(crate) struct Http {
    #[command(flatten)]
    pub(crate) server: ServerChoice,
    /// Send this header (may be repeated)
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    #[arg(value_parser = secret(parse_header))]
    headers: Vec<HttpRequestHeader>,
    /// Send a header whose value ends with a variable from the server's environment:
    /// 'Authorization: Bearer {SERVICE_TICKET}'
    #[arg(long = "header-env", value_name = "NAME: VALUE{VARIABLE}")]
    #[arg(value_parser = secret(parse_secret_header))]
    secret_headers: Vec<HttpRequestHeader>,
    /// Send this text as the body; @FILE sends a file, and - standard input
    #[arg(short, long, allow_hyphen_values = true)]
    #[arg(value_parser = OsStringValueParser::new().map(|data| parse_data(&data)))]
    pub(crate) data: Option<Body>,
    /// Give up after this time; 0 means never
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Print the status line and the headers before the body
    #[arg(short, long)]
    pub(crate) include: bool,
    /// Write the body to this local file once it is complete; - is standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Print a redirect instead of following it
    #[arg(long)]
    pub(crate) no_redirect: bool,
    /// Exit with 22 and print no body if the status is 400 or higher
    #[arg(short, long)]
    pub(crate) fail: bool,
    /// The URL; a method may precede it
    #[arg(required = true, value_name = "URL")]
    request: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Text(Vec<u8>),
    File(PathBuf),
    Stdin,
}

impl Http {
    pub(crate) fn method_and_url(&self) -> Result<(String, &str), String> {
        match self.request.as_slice() {
            [url] => Ok((if self.data.is_some() { "POST" } else { "GET" }.to_owned(), url)),
            [method, url] if !method.contains([':', '/']) => Ok((method.to_ascii_uppercase(), url)),
            _ => Err(
                "expected [METHOD] URL: a method may precede the URL, and nothing may follow it"
                    .to_owned(),
            ),
        }
    }

    pub(crate) fn headers(&self) -> Vec<HttpRequestHeader> {
        [self.headers.as_slice(), &self.secret_headers].concat()
    }

    /// `None` is standard output.
    pub(crate) fn output_file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| *path != "-")
    }
}

fn parse_header(text: &str) -> Result<HttpRequestHeader, String> {
    let (name, value) = split_header(text).ok_or("expected a name, a colon and a value")?;
    Ok(HttpRequestHeader { name, value, value_env_var: None })
}

fn parse_secret_header(text: &str) -> Result<HttpRequestHeader, String> {
    let parts = split_header(text).and_then(|(name, value)| {
        let (value, variable) = value.strip_suffix('}')?.rsplit_once('{')?;
        let header = (name, value.to_owned(), variable.to_owned());
        (!variable.is_empty()).then_some(header)
    });
    let (name, value, variable) = parts.ok_or(
        "expected a name, a colon, and a value that ends with a variable in braces, such as \
         'Authorization: Bearer {TICKET}'",
    )?;
    Ok(HttpRequestHeader { name, value, value_env_var: Some(variable) })
}

fn split_header(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once(':')?;
    let name = name.trim();
    (!name.is_empty()).then(|| (name.to_owned(), value.trim().to_owned()))
}

fn parse_data(text: &OsStr) -> Body {
    match text.as_bytes() {
        b"-" | b"@-" => Body::Stdin,
        [b'@', path @ ..] => Body::File(OsStr::from_bytes(path).into()),
        bytes => Body::Text(bytes.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::client::ClientCommand;
    use super::super::parse;
    use super::*;

    fn parsed(words: &[&str]) -> Result<Http, String> {
        let words = ["exec-server", "http"].iter().chain(words).map(OsString::from);
        match parse(words).map_err(|error| error.to_string())?.command.unwrap().client() {
            ClientCommand::Http(request) => Ok(request),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_method_defaults_to_get_or_post_with_data() {
        let method = |words: &[&str]| parsed(words).unwrap().method_and_url().unwrap().0;
        assert_eq!(method(&["http://h/"]), "GET");
        assert_eq!(method(&["-d", "x", "http://h/"]), "POST");
        assert_eq!(method(&["put", "http://h/", "-d", "x"]), "PUT");
        let request = parsed(&["put", "http://h/"]).unwrap();
        assert_eq!(request.method_and_url().unwrap().1, "http://h/");
        for words in [&["http://h/", "extra"][..], &["h/x", "http://h/"], &["a", "b", "http://h/"]]
        {
            assert!(parsed(words).unwrap_err().contains("expected [METHOD] URL"), "{words:?}");
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
            assert_eq!(request.method_and_url(), Ok(("DELETE".to_owned(), "http://h/")));
            assert!(request.include && request.data.is_some(), "{words:?}");
        }
    }

    #[test]
    fn a_dash_is_standard_output() {
        assert_eq!(parsed(&["-o", "-", "u"]).unwrap().output_file(), None);
        assert_eq!(parsed(&["-o", "x", "u"]).unwrap().output_file(), Some(Path::new("x")));
    }

    #[test]
    fn data_is_text_a_file_or_standard_input() {
        let data = |text: &str| parsed(&["-d", text, "http://h/"]).unwrap().data.unwrap();
        assert_eq!(data("a=b"), Body::Text(b"a=b".to_vec()));
        assert_eq!(data("@dir/file"), Body::File("dir/file".into()));
        assert_eq!((data("-"), data("@-")), (Body::Stdin, Body::Stdin));
        assert_eq!(data("-5"), Body::Text(b"-5".to_vec()));
    }

    #[test]
    fn a_header_may_end_with_a_variable_of_the_server() {
        let words = ["-H", "Accept: a:b", "--header-env", "Authorization: Bearer {TOKEN}", "u"];
        let headers = parsed(&words).unwrap().headers();
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
    fn errors_do_not_show_values() {
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
