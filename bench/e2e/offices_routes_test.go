package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"headgate/bench/stack"
)

// The command explains a request to an operator: what policy is asked, and which
// part of the request says so.
func TestRoutesCommand(t *testing.T) {
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	proxy := filepath.Join(t.TempDir(), "proxy")
	build := exec.Command("go", "build", "-o", proxy, "./proxy")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	body := filepath.Join(t.TempDir(), "body.xml")
	if err := os.WriteFile(body, []byte(`<timeseries><office-id>SPK</office-id><name>Folsom.Elev.Inst.1Hour.0.Ccp-Rev</name></timeseries>`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a cursor of another office", []string{"GET", "/cwms-data/catalog/TIMESERIES?office=swt&page=" + page("SPK/Folsom.Elev.Inst.1Hour.0.Rev||SPK||.*")}, `
resource      catalog
action        read
method        GET
route         /catalog/{dataset}
subresource   {dataset}
offices       SPK SWT
office_scope  many
office_mask   -

office  SWT  query office
cursor  -    query page as catalog
cursor  SPK  query page as catalog
`},
		{"a body of another office", []string{"POST", "/cwms-data/timeseries?office=SWT", body}, `
resource      timeseries
action        create
method        POST
route         /timeseries
subresource   -
offices       SPK SWT
office_scope  many
office_mask   -
parameter     Elev

other-office  SWT   query office
office        SPK   xml /*/office-id
parameter     Elev  xml /*/name
`},
		{"a path that no route has", []string{"GET", "/cwms-data/no/such?office=SWT"}, `
resource      no
action        read
method        GET
route         unknown
subresource   -
offices       -
office_scope  unknown (no route has this path)
office_mask   -
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, faults bytes.Buffer
			cmd := exec.Command(proxy, append([]string{"routes"}, c.args...)...)
			cmd.Stdout, cmd.Stderr, cmd.Env = &out, &faults, []string{}
			if err := cmd.Run(); err != nil || faults.Len() > 0 {
				t.Fatalf("%v: %s", err, faults.String())
			}
			if got := out.String(); got != strings.TrimPrefix(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}
