"""An OpenTelemetry collector for tests: decodes each export with the official messages and prints it as
a line of JSON.

The first line of its output is its URL.
"""

import argparse
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

parser = argparse.ArgumentParser()
parser.add_argument("--reject", type=int, default=0, help="spans or data points of each export")
parser.add_argument("--unavailable", type=int, default=0, help="exports that are refused at first")
parser.add_argument("--count", action="store_true", help="print no exports; GET returns counts")
parser.add_argument("--tls", nargs=3, metavar=("CERTIFICATE", "KEY", "CLIENT_AUTHORITY"))
options = parser.parse_args()


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def resources(entries):
    assert len(entries) == 1, entries
    return entries[0], attributes(entries[0].resource.attributes)


def decode_traces(body):
    entry, resource = resources(trace_service.ExportTraceServiceRequest.FromString(body).resource_spans)
    [scope] = entry.scope_spans
    spans = [
        {
            "traceId": span.trace_id.hex(),
            "spanId": span.span_id.hex(),
            "parentSpanId": span.parent_span_id.hex(),
            "traceState": span.trace_state,
            "name": span.name,
            "kind": trace_pb2.Span.SpanKind.Name(span.kind),
            "status": trace_pb2.Status.StatusCode.Name(span.status.code),
            "flags": span.flags,
            "nanos": span.end_time_unix_nano - span.start_time_unix_nano,
            "start": span.start_time_unix_nano,
            "attributes": attributes(span.attributes),
        }
        for span in scope.spans
    ]
    return {"resource": resource, "scope": scope.scope.name, "spans": spans}


def decode_point(point):
    decoded = {"attributes": attributes(point.attributes)}
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano, point
    if isinstance(point, metrics_pb2.HistogramDataPoint):
        decoded |= {"count": point.count, "sum": point.sum}
        decoded |= {"counts": list(point.bucket_counts), "bounds": list(point.explicit_bounds)}
    else:
        decoded["value"] = getattr(point, point.WhichOneof("value"))
    return decoded


def decode_metrics(body):
    entry, resource = resources(metrics_service.ExportMetricsServiceRequest.FromString(body).resource_metrics)
    [scope] = entry.scope_metrics
    metrics = []
    for metric in scope.metrics:
        kind = metric.WhichOneof("data")
        data = getattr(metric, kind)
        if kind != "gauge":
            assert data.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
        if kind == "sum":
            assert data.is_monotonic
        points = [decode_point(point) for point in data.data_points]
        metrics.append({"name": metric.name, "kind": kind, "unit": metric.unit, "points": points})
    return {"resource": resource, "scope": scope.scope.name, "metrics": metrics}


DECODERS = {"/v1/traces": decode_traces, "/v1/metrics": decode_metrics}


counts = {"spans": 0, "metrics": 0}
# Traces and metrics arrive on different threads, and a long line takes several writes.
printing = threading.Lock()


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, json.dumps(counts).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        export = {"path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}}
        export |= DECODERS[self.path](body)
        # latin-1 decodes any bytes, so that tests find text in them.
        export["body"] = body.decode("latin-1")
        if options.count:
            for kind in counts:
                counts[kind] += len(export.get(kind, []))
        else:
            with printing:
                print(json.dumps(export), flush=True)
        response = trace_service.ExportTraceServiceResponse()
        if options.reject:
            response.partial_success.rejected_spans = options.reject
        options.unavailable -= 1
        self.answer(503 if options.unavailable >= 0 else 200, response.SerializeToString())

    def answer(self, status, answer):
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
if options.tls:
    certificate, key, client_authority = options.tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(client_authority)
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(f"{'https' if options.tls else 'http'}://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
