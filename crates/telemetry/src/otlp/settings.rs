//! Reads the destinations of telemetry from the standard `OTEL_*` variables. Without the URL of a
//! collector nothing is exported.
//!
//! An invalid variable that determines a destination is an error. Any other variable with an
//! unusable value causes a warning, which says what is used instead. Values of headers and URLs
//! never appear in messages: they may contain credentials.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use thiserror::Error;

use super::messages::{KeyValue, Resource};
use super::sampler::{DEFAULT_SAMPLER, Sampler};

const PROTOCOL: &str = "http/protobuf";

const DEFAULT_TIMEOUT_MS: u32 = 10_000;
const DEFAULT_EXPORT_TIMEOUT_MS: u32 = 30_000;
const DEFAULT_DELAY_MS: u32 = 5_000;
const DEFAULT_INTERVAL_MS: u32 = 60_000;
const DEFAULT_QUEUE: u32 = 2_048;
const DEFAULT_BATCH: u32 = 512;

#[derive(Debug, Error)]
pub enum OtlpError {
    #[error(
        "{variable} is {found:?}, but only {PROTOCOL} is supported; unset it, or set it to \
         {PROTOCOL}"
    )]
    Protocol { variable: String, found: String },
    #[error("{variable} is not an http:// or https:// URL")]
    Endpoint { variable: String },
    #[error("{variable} is not a list of headers such as key=value,key2=value2")]
    Headers { variable: String },
    #[error("{given} has no effect without {missing}; set both or neither")]
    Identity { given: String, missing: String },
    #[error("cannot create an HTTP client for telemetry: {0}")]
    Client(#[source] reqwest::Error),
}

/// The program that sends telemetry.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// The default of `service.name`, which `OTEL_SERVICE_NAME` may replace.
    pub name: &'static str,
    pub version: &'static str,
}

#[derive(Debug)]
pub struct OtlpSettings {
    pub traces: Option<TraceSettings>,
    pub metrics: Option<MetricSettings>,
    /// Warnings about variables whose values are not used.
    pub warnings: Vec<String>,
    pub(super) service: Service,
    pub(super) resource: Resource,
}

#[derive(Debug)]
pub struct TraceSettings {
    pub destination: Destination,
    pub(super) sampler: Sampler,
    pub(super) max_queue: usize,
    pub(super) max_batch: usize,
    /// How long a span waits for others in its batch.
    pub(super) delay: Duration,
}

#[derive(Debug)]
pub struct MetricSettings {
    pub destination: Destination,
    pub(super) interval: Duration,
}

#[derive(Clone)]
pub struct Destination {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    /// The time limit of one export, including all attempts.
    pub(super) timeout: Duration,
    pub tls: TlsFiles,
}

/// The PEM files of a destination.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities that replace those of the system.
    pub authorities: Option<PathBuf>,
    /// A certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl OtlpSettings {
    /// Returns `None` if nothing is exported. `variable` looks up an environment variable.
    pub fn read(
        service: Service,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, OtlpError> {
        let mut reader = Reader { variable: &variable, warnings: Vec::new() };
        let is_disabled = reader.get("OTEL_SDK_DISABLED");
        if is_disabled.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let traces = reader.traces()?;
        let metrics = reader.metrics()?;
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        let resource = Resource { attributes: reader.resource(service) };
        Ok(Some(Self { traces, metrics, warnings: reader.warnings, service, resource }))
    }
}

impl Destination {
    pub fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }
}

/// Shows the URL without credentials and query.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.url.clone();
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.set_fragment(None);
        write!(f, "{url}")
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Destination").field(&self.to_string()).finish()
    }
}

#[derive(Debug, Clone, Copy)]
enum Signal {
    Traces,
    Metrics,
}

impl Signal {
    fn word(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Traces => "v1/traces",
            Self::Metrics => "v1/metrics",
        }
    }
}

struct Reader<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    warnings: Vec<String>,
}

impl Reader<'_> {
    /// An empty variable counts as unset.
    fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// Returns the name and value of the variable for this signal, or else for all signals.
    fn get_for(&self, signal: Signal, option: &str) -> Option<(String, String)> {
        let own = format!("OTEL_EXPORTER_OTLP_{}_{option}", signal.word());
        let [own, general] = [own, format!("OTEL_EXPORTER_OTLP_{option}")]
            .map(|name| self.get(&name).map(|value| (name, value)));
        own.or(general)
    }

    fn traces(&mut self) -> Result<Option<TraceSettings>, OtlpError> {
        let Some(destination) = self.destination(Signal::Traces, "OTEL_BSP_EXPORT_TIMEOUT")? else {
            return Ok(None);
        };
        let max_queue = self.number("OTEL_BSP_MAX_QUEUE_SIZE", DEFAULT_QUEUE) as usize;
        let max_batch = self.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", DEFAULT_BATCH) as usize;
        let delay = self.millis("OTEL_BSP_SCHEDULE_DELAY", DEFAULT_DELAY_MS);
        let sampler = self.sampler();
        let max_batch = max_batch.min(max_queue);
        Ok(Some(TraceSettings { destination, sampler, max_queue, max_batch, delay }))
    }

    fn metrics(&mut self) -> Result<Option<MetricSettings>, OtlpError> {
        let timeout = "OTEL_METRIC_EXPORT_TIMEOUT";
        let Some(destination) = self.destination(Signal::Metrics, timeout)? else {
            return Ok(None);
        };
        let interval = self.millis("OTEL_METRIC_EXPORT_INTERVAL", DEFAULT_INTERVAL_MS);
        let (name, preference) = ("TEMPORALITY_PREFERENCE", "cumulative");
        if let Some((name, value)) = self.get_for(Signal::Metrics, name)
            && !value.eq_ignore_ascii_case(preference)
        {
            self.warnings.push(format!(
                "{name} is {value:?}, but only {preference} is supported; using {preference}"
            ));
        }
        Ok(Some(MetricSettings { destination, interval }))
    }

    /// Returns `None` if the signal is not exported.
    fn destination(
        &mut self,
        signal: Signal,
        export_timeout: &str,
    ) -> Result<Option<Destination>, OtlpError> {
        let Some(url) = self.url(signal)? else { return Ok(None) };
        if !self.is_exported(signal) {
            return Ok(None);
        }
        if let Some((variable, found)) = self.get_for(signal, "PROTOCOL")
            && found != PROTOCOL
        {
            return Err(OtlpError::Protocol { variable, found });
        }
        if let Some((name, value)) = self.get_for(signal, "COMPRESSION")
            && value != "none"
        {
            self.warnings
                .push(format!("{name} is {value:?}, but only none is supported; using none"));
        }
        let headers = match self.get_for(signal, "HEADERS") {
            Some((variable, text)) => headers(&text).ok_or(OtlpError::Headers { variable })?,
            None => HeaderMap::new(),
        };
        let own = format!("OTEL_EXPORTER_OTLP_{}_TIMEOUT", signal.word());
        let timeout = match self.get(&own) {
            Some(_) => self.millis(&own, DEFAULT_TIMEOUT_MS),
            None => self.millis("OTEL_EXPORTER_OTLP_TIMEOUT", DEFAULT_TIMEOUT_MS),
        };
        let timeout = timeout.min(self.millis(export_timeout, DEFAULT_EXPORT_TIMEOUT_MS));
        Ok(Some(Destination { url, headers, timeout, tls: self.tls(signal)? }))
    }

    /// The variable of a signal is used unchanged; the one for all signals is a base URL.
    fn url(&self, signal: Signal) -> Result<Option<Url>, OtlpError> {
        let own = format!("OTEL_EXPORTER_OTLP_{}_ENDPOINT", signal.word());
        let general = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let (variable, text) = match (self.get(&own), self.get(general)) {
            (Some(url), _) => (own, url),
            (None, Some(base)) => (general.to_owned(), base),
            (None, None) => return Ok(None),
        };
        let is_base = variable == general;
        let url = Url::parse(&text).ok();
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let mut url = url.ok_or(OtlpError::Endpoint { variable })?;
        if is_base {
            url.set_path(&format!("{}/{}", url.path().trim_end_matches('/'), signal.path()));
        }
        Ok(Some(url))
    }

    fn is_exported(&mut self, signal: Signal) -> bool {
        let name = format!("OTEL_{}_EXPORTER", signal.word());
        match self.get(&name).as_deref() {
            None | Some("otlp") => true,
            Some("none") => false,
            Some(found) => {
                self.warnings.push(format!(
                    "{name} is {found:?}, but only otlp and none are supported; using none"
                ));
                false
            }
        }
    }

    fn tls(&self, signal: Signal) -> Result<TlsFiles, OtlpError> {
        let file = |option| self.get_for(signal, option);
        let [certificate, key] = ["CLIENT_CERTIFICATE", "CLIENT_KEY"];
        let unpaired = |given: String, option, other| {
            let missing = given.replace(option, other);
            OtlpError::Identity { given, missing }
        };
        let identity = match (file(certificate), file(key)) {
            (Some((_, certificate)), Some((_, key))) => Some((certificate.into(), key.into())),
            (None, None) => None,
            (Some((given, _)), None) => return Err(unpaired(given, certificate, key)),
            (None, Some((given, _))) => return Err(unpaired(given, key, certificate)),
        };
        let authorities = file("CERTIFICATE").map(|(_, path)| path.into());
        Ok(TlsFiles { authorities, identity })
    }

    fn sampler(&mut self) -> Sampler {
        let (variable, argument) = ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG");
        let Some(name) = self.get(variable) else { return DEFAULT_SAMPLER };
        let ratio = match self.get(argument).filter(|_| name.ends_with("traceidratio")) {
            None => 1.0,
            Some(text) => {
                let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                ratio.unwrap_or_else(|| {
                    self.warnings
                        .push(format!("{argument} is {text:?}, not a number from 0 to 1; using 1"));
                    1.0
                })
            }
        };
        Sampler::named(&name, ratio).unwrap_or_else(|| {
            let known = "always_on, always_off or traceidratio, or parentbased_ and one of these";
            self.warnings.push(format!(
                "{variable} is {name:?}, expected {known}; using parentbased_always_on"
            ));
            DEFAULT_SAMPLER
        })
    }

    fn millis(&mut self, name: &str, default: u32) -> Duration {
        Duration::from_millis(self.number(name, default).into())
    }

    fn number(&mut self, name: &str, default: u32) -> u32 {
        let Some(text) = self.get(name) else { return default };
        text.parse().ok().filter(|number| *number > 0).unwrap_or_else(|| {
            let largest = u32::MAX;
            self.warnings.push(format!(
                "{name} is {text:?}, not a number from 1 to {largest}; using {default}"
            ));
            default
        })
    }

    /// If a key has several values, the last one counts.
    fn resource(&mut self, service: Service) -> Vec<KeyValue> {
        let own = [
            ("service.name", service.name),
            ("service.version", service.version),
            ("telemetry.sdk.language", "rust"),
            ("telemetry.sdk.name", "exec-server"),
            ("telemetry.sdk.version", service.version),
        ];
        let mut attributes: Vec<(String, String)> =
            own.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        attributes.push(("service.instance.id".to_owned(), uuid::Uuid::new_v4().to_string()));
        if let Some(text) = self.get("OTEL_RESOURCE_ATTRIBUTES") {
            match pairs(&text) {
                Some(pairs) => attributes.extend(pairs),
                None => self.warnings.push(
                    "OTEL_RESOURCE_ATTRIBUTES is not a list such as key=value,key2=value2; it is \
                     not used"
                        .to_owned(),
                ),
            }
        }
        attributes
            .extend(self.get("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
        let is_last = |(index, (key, _)): &(usize, &(String, String))| {
            !attributes[index + 1..].iter().any(|(later, _)| later == key)
        };
        let last = attributes.iter().enumerate().filter(is_last);
        last.map(|(_, (key, value))| KeyValue::new(key, value)).collect()
    }
}

/// Parses `key=value,key2=value2` with percent-encoded values.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    members
        .map(|member| {
            let (key, value) = member.split_once('=')?;
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            let key = key.trim();
            (!key.is_empty()).then(|| (key.to_owned(), value.into_owned()))
        })
        .collect()
}

fn headers(text: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs(text)? {
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        headers.insert(HeaderName::try_from(name).ok()?, value);
    }
    Some(headers)
}

#[cfg(test)]
mod tests;
