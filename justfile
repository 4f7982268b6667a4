# The ways to work, for just 1.1 or later. CI calls the same commands.

# list the recipes
_default:
    @just --list

# start everything on this machine, without Docker
up *flags:
    go run ./bench up {{flags}}

# start everything in containers
compose-up:
    docker compose up --build

# build the policy of opa/ and publish it where the containers read it
compose-bundle:
    docker compose run --rm bundle

# stop the containers and forget their data
down:
    docker compose down -v

# mixed load with slow readers, resets and restarts of the API, for a while
soak time="20m":
    HEADGATE_SOAK={{time}} go test -timeout 2h -run Soak -v ./bench/e2e

# the long forms of the end-to-end tests: more flips, more revocations, larger bodies
test-long: opa
    HEADGATE_LONG=1 go test -timeout 2h -v ./bench/e2e ./proxy/pdp

# what CI runs
ci:
    .ci/run

# build the pinned OPA into .bin/opa
opa:
    .ci/opa

# all tests of the Go program; needs .bin/opa and redis-server
test: opa
    .ci/test

# the document of our own endpoints against a running proxy
test-openapi: opa
    go test -C bench/openapi -count=1 ./...

# images, the stack in containers, its isolation and a fault drill; needs a Docker engine
test-containers:
    .ci/containers

# tests of the policy
test-policy: opa
    cd opa && OPA_BIN="$PWD/../.bin/opa" go test ./...

# build the policy bundle and publish it where the running stack reads it
bundle out=".bin/published/bundle.tar.gz": opa
    go run -C opa ./build -opa ../.bin/opa -out "{{absolute_path(out)}}"

# gofmt, vet, staticcheck
lint:
    .ci/lint

# every fuzz target for a while
fuzz time="20s":
    .ci/fuzz {{time}}

# write the generated tables of the documentation anew
docs:
    go test ./proxy -run TestREADME -update
    go test ./bench/report -update

# micro benchmarks
bench:
    go test -run '^$' -bench . -benchmem ./proxy/...

# measure everything and write the page of results: under 15 minutes
results out="bench/results":
    go run ./bench run --out "{{out}}"

# the stress ramp of k6 against a running proxy (needs k6)
k6 script="stress":
    k6 run -e PROXY_URL="${PROXY_URL:-http://localhost:3001}" -e ISSUER_URL="${ISSUER_URL:-http://localhost:8080/auth/realms/cwms}" bench/k6/{{script}}.js
