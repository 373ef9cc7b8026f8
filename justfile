# Short names for common tasks of contributors.

# Everything that CI runs.
check:
    scripts/test

# Only the tests. Arguments go to nextest, as in `just test -p exec-server resume`.
test *arguments:
    cargo nextest run {{arguments}}

# Load and faults on a server with all features, for this many minutes. SOAK_SEED=N repeats a run.
soak minutes:
    SOAK_MINUTES={{minutes}} cargo nextest run --profile soak --release -p exec-server --test e2e --run-ignored only --no-capture -E 'test(=soak::soak_everything)'

# The tests that repeat a scenario, with their full counts. Takes some minutes after the build.
soak-counts *arguments:
    cargo nextest run --profile soak --release -p exec-server -p exec-server-host -p exec-server-relay -p exec-server-server --run-ignored only -E 'test(soak_) - test(=soak::soak_everything)' {{arguments}}
    cargo nextest run --profile soak --release -p exec-server-client --run-ignored only -E 'test(ten_thousand)' {{arguments}}
    cargo nextest run --profile soak --release -p exec-server-rendezvous --run-ignored only --no-capture -E 'test(a_hundred_thousand)' {{arguments}}

# Builds the program as one static file and prints its path.
static *arguments:
    scripts/static {{arguments}}

# Builds a wheel, npm packages and a tarball in dist/.
package *arguments:
    scripts/package {{arguments}}

# The tests of packaging/ and scripts/package with the static program. Takes some minutes to build.
static-test:
    STATIC_PROGRAM="$(scripts/static)" cargo nextest run -p exec-server --test e2e -E 'test(packaging::) | test(packages::)'

bench *arguments:
    cargo run --release -- bench {{arguments}}

# The Python and TypeScript clients against the Rust client. Arguments go to the script.
bench-clients *arguments:
    cargo build --release -p exec-server --bin exec-server --example bench_client
    clients/typescript/scripts/build
    clients/bench/run target/release/exec-server {{arguments}}

fmt:
    cargo fmt --all
