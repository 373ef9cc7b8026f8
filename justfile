# Shorter names for what contributors do often.

# Everything that CI runs.
check:
    scripts/test

# The tests alone; arguments go to nextest, as in `just test -p exec-server resume`.
test *arguments:
    cargo nextest run {{arguments}}

# Load and faults on a server with everything switched on, for this many minutes. SOAK_SEED=N repeats a run.
soak minutes:
    SOAK_MINUTES={{minutes}} cargo nextest run --profile soak --release -p exec-server --test e2e --run-ignored only --no-capture -E 'test(=soak::soak_everything)'

# The full counts of the tests that repeat something, in some minutes after the build.
soak-counts *arguments:
    cargo nextest run --profile soak --release -p exec-server -p exec-server-host -p exec-server-relay -p exec-server-server --run-ignored only -E 'test(soak_) - test(=soak::soak_everything)' {{arguments}}
    cargo nextest run --profile soak --release -p exec-server-client --run-ignored only -E 'test(ten_thousand)' {{arguments}}
    cargo nextest run --profile soak --release -p exec-server-rendezvous --run-ignored only --no-capture -E 'test(a_hundred_thousand)' {{arguments}}

# The program as one static file. Prints its path.
static *arguments:
    scripts/static {{arguments}}

# A wheel, npm packages and a tarball, in dist/.
package *arguments:
    scripts/package {{arguments}}

# The tests of packaging/ and scripts/package with the static program, in some minutes of building.
static-test:
    STATIC_PROGRAM="$(scripts/static)" cargo nextest run -p exec-server --test e2e -E 'test(packaging::) | test(packages::)'

bench *arguments:
    cargo run --release -- bench {{arguments}}

fmt:
    cargo fmt --all
