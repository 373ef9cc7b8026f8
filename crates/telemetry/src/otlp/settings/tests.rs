use super::*;

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

fn read(variables: &[(&str, &str)]) -> Result<Option<OtlpSettings>, OtlpError> {
    OtlpSettings::read(Service { name: "exec-server", version: "1.2.3" }, |name| {
        let found = variables.iter().rev().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn settings(variables: &[(&str, &str)]) -> OtlpSettings {
    read(&[&[ENDPOINT], variables].concat()).unwrap().unwrap()
}

fn error(variables: &[(&str, &str)]) -> String {
    read(&[&[ENDPOINT], variables].concat()).unwrap_err().to_string()
}

fn value<'a>(settings: &'a OtlpSettings, key: &str) -> Option<&'a str> {
    let mut found = settings.resource.attributes.iter().filter(|pair| pair.key == key);
    let value = found.next()?.value.as_ref()?.string.as_deref();
    assert!(found.next().is_none(), "{key} occurs twice");
    value
}

#[test]
fn nothing_is_exported_without_an_endpoint() {
    assert!(read(&[]).unwrap().is_none());
    assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap().is_none());
    assert!(read(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap().is_none());
    assert!(read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "True")]).unwrap().is_none());
    let none = [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRICS_EXPORTER", "none")];
    assert!(read(&[&[ENDPOINT], &none[..]].concat()).unwrap().is_none());
    let only_metrics = settings(&none[..1]);
    assert!(only_metrics.traces.is_none() && only_metrics.metrics.is_some());
    // An unsupported protocol matters only if something is exported.
    assert!(read(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap().is_none());
}

#[test]
fn a_path_is_added_to_the_base_url_but_not_to_the_url_of_a_signal() {
    let both = settings(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://u:p@c:1/base/?q=1#f")]);
    let traces = both.traces.unwrap().destination;
    assert_eq!(traces.url.as_str(), "https://u:p@c:1/base/v1/traces?q=1#f");
    assert!(traces.is_encrypted());
    // Neither the credentials nor the query is shown.
    assert_eq!(traces.to_string(), "https://c:1/base/v1/traces");
    assert_eq!(format!("{traces:?}"), "Destination(\"https://c:1/base/v1/traces\")");
    let metrics = both.metrics.unwrap().destination;
    assert_eq!(metrics.to_string(), "https://c:1/base/v1/metrics");
    let own = read(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/in")]);
    let own = own.unwrap().unwrap();
    assert_eq!(own.traces.unwrap().destination.url.as_str(), "http://traces/in");
    assert!(own.metrics.is_none());
}

#[test]
fn an_invalid_destination_is_an_error() {
    for url in ["collector:4318", "grpc://c", "http://", "unix:/run/c"] {
        let told = error(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]);
        assert!(told.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT is not an http"), "{told}");
    }
    let told = error(&[("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc")]);
    assert!(told.starts_with("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL is \"grpc\""), "{told}");
    assert!(read(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]).is_ok());
    let told = error(&[("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/key")]);
    let missing = "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE";
    assert!(told.contains(&format!("has no effect without {missing};")), "{told}");
}

#[test]
fn headers_are_decoded_and_never_shown() {
    let headers = |text| {
        let destination = settings(&[("OTEL_EXPORTER_OTLP_HEADERS", text)]).traces.unwrap();
        destination.destination.headers
    };
    let found = headers("authorization=Bearer%20SECRET, x-tenant = a ,");
    assert_eq!(found["authorization"], "Bearer SECRET");
    assert_eq!(found["x-tenant"], "a");
    assert!(!format!("{found:?}").contains("SECRET"), "{found:?}");
    for bad in ["SECRET", "=SECRET", "a b=SECRET", "a=SECRET%0Ab", "a=SECRET%ff"] {
        let told = error(&[("OTEL_EXPORTER_OTLP_HEADERS", bad)]);
        assert!(told.starts_with("OTEL_EXPORTER_OTLP_HEADERS is not"), "{told}");
        assert!(!told.contains("SECRET"), "{told}");
    }
    let own = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x=1");
    let own = settings(&[("OTEL_EXPORTER_OTLP_HEADERS", "y=2"), own]);
    assert_eq!(own.traces.unwrap().destination.headers.len(), 1);
    assert_eq!(own.metrics.unwrap().destination.headers["y"], "2");
}

#[test]
fn the_resource_identifies_the_program() {
    let default = settings(&[]);
    assert_eq!(value(&default, "service.name"), Some("exec-server"));
    assert_eq!(value(&default, "service.version"), Some("1.2.3"));
    assert!(value(&default, "service.instance.id").is_some());
    let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,deployment=b%2Cc");
    let named = settings(&[attributes]);
    assert_eq!(value(&named, "service.name"), Some("a"));
    assert_eq!(value(&named, "deployment"), Some("b,c"));
    let named = settings(&[attributes, ("OTEL_SERVICE_NAME", "d")]);
    assert_eq!(value(&named, "service.name"), Some("d"));
    let bad = settings(&[("OTEL_RESOURCE_ATTRIBUTES", "a=1,b")]);
    assert_eq!((value(&bad, "a"), bad.warnings.len()), (None, 1));
}

#[test]
fn numbers_and_samplers_have_defaults() {
    let traces = settings(&[]).traces.unwrap();
    assert_eq!((traces.max_queue, traces.max_batch), (2048, 512));
    assert_eq!(traces.delay, Duration::from_secs(5));
    assert_eq!(traces.destination.timeout, Duration::from_secs(10));
    assert_eq!(traces.sampler, DEFAULT_SAMPLER);
    let changed = settings(&[
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "700"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "250"),
        ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "300"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0"),
    ]);
    assert!(changed.warnings.is_empty(), "{:?}", changed.warnings);
    let (traces, metrics) = (changed.traces.unwrap(), changed.metrics.unwrap());
    assert_eq!((traces.max_queue, traces.max_batch), (100, 100));
    assert_eq!(traces.destination.timeout, Duration::from_millis(700));
    assert_eq!(metrics.interval, Duration::from_millis(250));
    assert_eq!(metrics.destination.timeout, Duration::from_millis(300));
    assert!(!traces.sampler.is_sampled([1; 16], None));
}

#[test]
fn unusable_variables_cause_warnings() {
    for (name, value) in [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_SCHEDULE_DELAY", "5s"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "99999999999999"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
    ] {
        let warnings = settings(&[(name, value)]).warnings;
        assert!(!warnings.is_empty() && warnings.iter().all(|it| it.contains(name)), "{name}");
    }
    let sampler = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
    let warnings = settings(&[sampler, ("OTEL_TRACES_SAMPLER_ARG", "2")]).warnings;
    assert_eq!(warnings.len(), 1);
}
